"""`python -m mpt`."""

from __future__ import annotations

import sys

from mpt.cli import main

sys.exit(main())
