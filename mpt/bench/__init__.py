"""Measured speed and memory: precisions and settings take turns on the present device."""
