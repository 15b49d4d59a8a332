"""What the command does with tables and models, without the command line around it."""
