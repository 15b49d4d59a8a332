"""Setting up a consortium: kits, services, and what monitoring is told."""
