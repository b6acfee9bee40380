"""Loss-scaling strategies, one file each."""
