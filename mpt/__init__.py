"""Mixed-precision training that says what it does."""

__version__ = "0.1.0"
