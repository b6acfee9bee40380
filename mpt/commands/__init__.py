"""Subcommands: a file is a command.

Each has SUMMARY, USAGE, ORDER (its place in the overview) and run(args) -> exit code.
"""
