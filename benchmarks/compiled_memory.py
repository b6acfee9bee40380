"""Row 24: the predicted peak of compiled steps against what torch's allocator gave in one, over six models."""

from __future__ import annotations

from _cells import Cell
from _measure import Effort
from _row import main
from _six import SIX
from predicted_memory import cells

PRECISIONS = ("fp32", "bf16")
WHAT = (
    "|predicted / measured - 1| of `mpt train`'s summary with trainer.compile=true on a CPU (torch's allocator in "
    f"a profiled step, but workspace of its own kernels), predicted from the compiler's own code on fake tensors; "
    f"{', '.join(SIX)}; {', '.join(PRECISIONS)}"
)


def measure(effort: Effort) -> list[Cell]:
    """As row 11, without a limit of time."""
    return cells(24, PRECISIONS, ("trainer.compile=true",), WHAT, None)


if __name__ == "__main__":
    main(measure, __doc__)
