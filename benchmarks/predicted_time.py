"""Row 12: the predicted step time after a one-second calibration against the measured one, on a CPU, native formats."""

from __future__ import annotations

import statistics
from functools import partial

from _cells import Cell, ratio, value
from _measure import Effort, interleaved
from _row import main
from _six import SIX

from mpt.bench.cell import Cell as Steps
from mpt.build import make_plan
from mpt.config.compose import compose
from mpt.predict.prediction import predict
from mpt.types import Unmeasured

PRECISIONS = ("fp32", "bf16")
WORST_PERCENT, MEDIAN_PERCENT = 15.0, 8.0
CALIBRATIONS = 3
WHAT = (
    "step time of `mpt plan` (trace on fake tensors, then a second of measuring rates and the step's own ops) "
    "/ the runner's step, median"
)


def measure(effort: Effort) -> list[Cell]:
    """A cell for each net and precision, then the worst and the median of those that are not void."""
    cells = [cell(net, precision, effort) for net in SIX for precision in PRECISIONS]
    errors = [100 * abs(c.figure - 1) for c in cells if not c.void]
    if not errors:
        return cells
    told = f"|predicted / measured - 1| over the {len(errors)} cells of {len(cells)} that are not void"
    return [
        *cells,
        value(12, "worst", [max(errors)], WORST_PERCENT, told, unit="%"),
        value(12, "median", [statistics.median(errors)], MEDIAN_PERCENT, told, unit="%"),
    ]


def cell(net: str, precision: str, effort: Effort) -> Cell:
    """Predictions come first: nothing that was measured of the step is known to them."""
    cfg = compose([*SIX[net], f"precision={precision}", "device=cpu"])
    predicted = [predict(cfg, make_plan(cfg)).step_s for _ in range(CALIBRATIONS)]
    told = [seconds for seconds in predicted if not isinstance(seconds, Unmeasured)]
    steps = Steps(net, cfg)
    steps.observe()
    turn = max(1, round(50 / max(steps.step_ms(2), 1e-3)))
    found = interleaved({"ours": partial(steps.step_ms, turn)}, effort)["ours"]
    steps.close()
    return ratio(12, f"{net} {precision}", [1e3 * s for s in told], found, None, WHAT)


if __name__ == "__main__":
    main(measure, __doc__, repeats=20, budget_s=5)
