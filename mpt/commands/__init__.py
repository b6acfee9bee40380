"""Subcommands: a file is a command, with SUMMARY, USAGE, ORDER (its place in the overview) and run(args) -> exit code."""
