"""What every room uses and that knows nothing of learning: errors, arrays, pytrees, splits, sets, files."""
