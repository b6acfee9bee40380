"""The run folder: written once, read without torch."""
