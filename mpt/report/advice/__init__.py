"""What a run's record says about other loss scalings and formats than its own."""
