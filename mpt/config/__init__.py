"""What was asked: YAML and command-line words become typed values."""
