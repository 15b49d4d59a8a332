"""Random problems, solved by bidro and judged by plain NumPy: see `__main__` for how to run it."""
