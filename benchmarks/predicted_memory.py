"""Row 11: the predicted peak against a run's measured one, over six models and eight precisions."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path

from _cells import Cell, value
from _measure import Effort
from _row import main
from _six import SIX

from mpt.build import make_plan
from mpt.config.compose import compose
from mpt.predict.fake import trace
from mpt.predict.memory import for_device
from mpt.train.run import train

PRECISIONS = ("fp32", "bf16", "fp16", "bf16_true", "bf16_split", "fp16_master", "fp8", "mxfp8")
WORST_PERCENT, MEDIAN_PERCENT, LIMIT_S = 5.0, 3.0, 5.0
WHAT = (
    "|predicted / measured - 1| of `mpt train`'s summary on a CPU (sizes of all tensors alive in an observed step), "
    f"predicted from a trace on fake tensors before the run; {', '.join(SIX)}; {', '.join(PRECISIONS)}"
)


def measure(effort: Effort) -> list[Cell]:
    """Of row 11."""
    return cells(11, PRECISIONS, (), WHAT, LIMIT_S)


def cells(row: int, precisions: Sequence[str], more: tuple[str, ...], what: str, limit_s: float | None) -> list[Cell]:
    """The worst, the median, and the longest time that a prediction took; a line for each is printed."""
    pairs = [compared(net, precision, (*words, *more)) for net, words in SIX.items() for precision in precisions]
    errors, spent = zip(*pairs, strict=True)
    return [
        value(row, "worst", [max(errors)], WORST_PERCENT, what, unit="%"),
        value(row, "median", [statistics.median(errors)], MEDIAN_PERCENT, what, unit="%"),
        value(row, "told in, longest", [max(spent)], limit_s, "plan and trace of one of these", unit="s"),
    ]


def compared(net: str, precision: str, words: tuple[str, ...]) -> tuple[float, float]:
    """Percent between both, and the seconds that predicting took."""
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        steps = ("trainer.max_steps=3", "trainer.eval_every=0", "checkpoint.every=0", "device=cpu")
        cfg = compose([*words, *steps, f"precision={precision}", f"run_dir={folder}/run"])
        start_s = time.perf_counter()
        plan = make_plan(cfg)
        told = for_device(trace(cfg, plan), plan.device).peak_bytes
        spent_s = time.perf_counter() - start_s
        code = train(cfg, ["benchmark"])
        assert code == 0, f"the run ended with {code}"
        peak = json.loads((Path(folder) / "run" / "summary.json").read_text())["memory"]["peak_bytes"]
    print(f"  {net} {precision}: {told:,} predicted, {peak:,} measured, {spent_s:.2f} s", flush=True)
    return 100 * abs(told / peak - 1), spent_s


if __name__ == "__main__":
    main(measure, __doc__)
