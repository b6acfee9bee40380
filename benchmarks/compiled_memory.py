"""Row 24: the predicted peak of compiled steps against what torch's allocator gave in one, over six models."""

from __future__ import annotations

import statistics

from _cells import Cell, value
from _measure import Effort
from _row import main
from _six import SIX
from predicted_memory import MEDIAN_PERCENT, WORST_PERCENT, compared

PRECISIONS = ("fp32", "bf16")
WHAT = (
    "|predicted / measured - 1| of `mpt train`'s summary with trainer.compile=true on a CPU (torch's allocator in "
    f"a profiled step, but workspace of its own kernels), predicted from the compiler's own code on fake tensors; "
    f"{', '.join(SIX)}; {', '.join(PRECISIONS)}"
)


def measure(effort: Effort) -> list[Cell]:
    """The worst, the median, and the longest time that a prediction took; a line for each is printed."""
    errors, spent = [], []
    for net, words in SIX.items():
        for precision in PRECISIONS:
            error, seconds = compared(net, precision, (*words, "trainer.compile=true"))
            errors.append(error)
            spent.append(seconds)
    return [
        value(24, "worst", [max(errors)], WORST_PERCENT, WHAT, unit="%"),
        value(24, "median", [statistics.median(errors)], MEDIAN_PERCENT, WHAT, unit="%"),
        value(24, "told in, longest", [max(spent)], None, "plan and trace of one of these", unit="s"),
    ]


if __name__ == "__main__":
    main(measure, __doc__)
