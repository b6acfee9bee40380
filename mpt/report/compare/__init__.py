"""Many runs side by side: what differs, which precision is as good, and how sure that is. Reads files only."""
