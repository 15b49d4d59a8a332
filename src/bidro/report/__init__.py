"""Plots and files for people."""
