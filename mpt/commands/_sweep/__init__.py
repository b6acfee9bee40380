"""Sweeps: every job is checked before the first starts, runs by itself, and leaves its ending on disk."""
