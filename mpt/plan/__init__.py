"""What will happen: device facts, steps, a row per module."""
