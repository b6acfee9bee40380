"""Rows of the performance table, one command each; `python -m benchmarks` runs them all."""
