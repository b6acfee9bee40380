"""`python -m mpt`."""

from __future__ import annotations

from mpt.cli import entry

entry()
