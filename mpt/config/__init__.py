"""From YAML and the command line to one typed RunConfig; no torch."""
