"""The loop, its state, and evaluation."""
