"""Row 3: how often a step reads a device scalar on the host, outside log points; counted, not timed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from _cells import Cell, value
from _measure import Effort
from _row import main
from _runner import whole_run
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

BLOCKS = 120
LOG_EVERY = 50
HARD = ("trainer.clip_norm=1", "trainer.ema_decay=0.9", "trainer.accumulate=2", f"trainer.log_every={LOG_EVERY}")
RUNS = {
    "small_cnn fp32": ("model=small_cnn", "precision=fp32"),
    "small_cnn bf16": ("model=small_cnn", "precision=bf16"),
    "small_cnn fp16": ("model=small_cnn", "precision=fp16"),
    "small_cnn fp16_master": ("model=small_cnn", "precision=fp16_master"),
    "small_cnn bf16_true": ("model=small_cnn", "precision=bf16_true"),
    "gpt fp16": (*("model=gpt", "model.layers=2", "model.width=32", "precision=fp16"), "data=shakespeare"),
    "small_cnn sgd": ("model=small_cnn", "optimizer=sgd"),
}
NO_KERNEL = ("model=small_cnn", "optimizer=rmsprop")
"""torch has no fused RMSprop: the plan says that each step reads the device once, and the count shows it."""
WHAT = (
    "aten::_local_scalar_dense (seen by a dispatch mode), .tolist() and .cpu() in the whole loop, in the steps that no "
    "log point follows; clipping, EMA and accumulation are on"
)


class Reads(TorchDispatchMode):
    """Counts the op behind `.item()`, `float(tensor)` and `if tensor`, and calls of `.tolist()` and `.cpu()`."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self._calls = _Calls(self)

    def __enter__(self) -> Reads:
        self._calls.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._calls.__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class _Calls(TorchFunctionMode):
    """On a CPU these read memory without an op; on a GPU they would wait for it."""

    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._reads.count += func in (torch.Tensor.tolist, torch.Tensor.cpu)
        return func(*args, **(kwargs or {}))


def measure(effort: Effort) -> list[Cell]:
    """One exact count for each run, and one that is known not to be 0."""
    cells = [value(3, name, reads(words), 0, WHAT, unit="count") for name, words in RUNS.items()]
    return [*cells, value(3, "small_cnn rmsprop, no fused kernel", reads(NO_KERNEL), None, WHAT, unit="count")]


def reads(words: tuple[str, ...]) -> list[float]:
    """Reads in each step that no log point follows."""
    seen: list[int] = []
    mode = Reads()
    with Reads() as control:
        bool(torch.ones(()))
        torch.ones(2).tolist()
    assert control.count == 2, "the mode does not see reads"
    with mode:
        # a turn every two micro-batches, which are one step
        words = (*words, *HARD, "data.batch_size=16", "device=cpu")
        whole_run(list(words), block=2, blocks=BLOCKS, peer=lambda _: lambda: seen.append(mode.count))
    # the dry pass, which may read what it likes, falls into the first
    counts = {step: after - before for step, (before, after) in enumerate(pairwise(seen), 1) if step > 1}
    return [count for step, count in counts.items() if step % LOG_EVERY]


if __name__ == "__main__":
    main(measure, __doc__)
