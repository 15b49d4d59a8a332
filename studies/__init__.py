"""The studies that the docs quote, run by `make study`. They stand beside the package, outside its wheel."""
