"""The rules that decide what a site may release of its rows."""
