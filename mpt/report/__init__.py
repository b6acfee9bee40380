"""What a run folder tells; reads files only, never torch."""
