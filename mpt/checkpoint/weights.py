"""A checkpoint's weights under their own names, in the finest values that it holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from mpt.checkpoint.contents import taking
from mpt.errors import CheckpointError, Problem


def weights_of(state: Mapping[str, Any], *, averaged: bool, where: str) -> dict[str, Tensor]:
    """The model's tensors by name: masters in place of half weights, or the average where `averaged`.

    Raises: CheckpointError where there is no average, or it can't be told which weight is which.
    """
    found: dict[str, Tensor] = {k: v for k, v in state["model"].items() if isinstance(v, Tensor)}
    found |= state["policy"].get("masters", {})
    if not averaged:
        return found
    with taking("ema", where):
        return found | dict(_average(state, where))


def _average(state: Mapping[str, Any], where: str) -> Iterator[tuple[str, Tensor]]:
    if not state["ema"]:
        hint = "leave --averaged away; trainer.ema_decay makes an average"
        raise CheckpointError(Problem(where, "holds no average of weights", hint))
    if state["trained"] is None:
        what = "was saved by a version that did not name what it averaged"
        raise CheckpointError(Problem(where, what, "go on with the run for a step, and export its new checkpoint"))
    names, average = state["trained"], state["ema"]["average"]
    yield from zip(names, average[: len(names)], strict=True)
    flats = average[len(names) :]
    layouts = [part for part, flat in zip(*_buffers(state), strict=True) if flat.is_floating_point()]
    for layout, flat in zip(layouts, flats, strict=True):
        start = 0
        for name, shape in layout:
            size = math.prod(shape)
            if name in state["model"]:  # a buffer that is in no state dict has no name outside
                yield name, flat[start : start + size].view(shape)
            start += size


def _buffers(state: Mapping[str, Any]) -> tuple[list[Any], list[Tensor]]:
    return state["buffers"]["layout"], state["buffers"]["flat"]
