"""`python -m benchmarks`: all rows, as `python benchmarks/run.py` measures them."""

from __future__ import annotations

import sys

from benchmarks.run import main

sys.exit(main())
