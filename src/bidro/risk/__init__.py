"""The clients' risks as functions of the model: one contract (`oracle`), and where risks come from: second
moments, rows on the host, replies of clients."""
