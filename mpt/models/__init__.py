"""Models, one file an idea."""
