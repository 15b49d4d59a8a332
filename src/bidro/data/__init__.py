"""From tables to clients' rows of numbers: tables, schema, standard units, curves' bases, federations."""
