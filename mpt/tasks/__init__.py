"""Losses and metrics, one file a task."""
