"""Data sets, one file an idea."""
