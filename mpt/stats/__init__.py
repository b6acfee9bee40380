"""What paired runs can and can't say: intervals, equivalence within a margin, and the seeds still needed."""
