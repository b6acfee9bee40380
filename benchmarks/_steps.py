"""One process that times the runner's step: `_steps.py NET STEPS`. Prints milliseconds, the median of five turns."""

from __future__ import annotations

import statistics
import sys

from _six import SIX

from mpt.bench.cell import Cell
from mpt.config.compose import compose


def main(net: str, steps: int) -> None:
    cell = Cell(net, compose([*SIX[net], "precision=fp32", "device=cpu"]))
    cell.observe()
    cell.step_ms(steps)
    print(statistics.median(cell.step_ms(steps) for _ in range(5)))
    cell.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
