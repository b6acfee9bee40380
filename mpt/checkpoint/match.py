"""Whether saved weights fit a model, told before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from mpt.errors import Problem

_SHOWN = 5
_HALF = (torch.float16, torch.bfloat16)


def model_mismatch(saved: Mapping[str, Tensor | Sequence[int]], model: nn.Module, where: str) -> list[Problem]:
    """One problem for each way in which saved tensors (or their shapes) are those of another model; none: they fit.

    `where` names the checkpoint. At most five names of each kind are told.
    """
    want = {name: tuple(t.shape) for name, t in model.state_dict().items() if isinstance(t, Tensor)}
    got = {name: tuple(t.shape if isinstance(t, Tensor) else t) for name, t in saved.items() if not isinstance(t, dict)}
    missing = [f"{name} {_shape(want[name])}" for name in want if name not in got]
    extra = [f"{name} {_shape(got[name])}" for name in got if name not in want]
    wrong = [
        f"{name} is {_shape(got[name])}, the model's {_shape(want[name])}"
        for name in want
        if name in got and got[name] != want[name]
    ]
    kinds = (
        ("lacks tensors of the model", missing),
        ("holds tensors that the model lacks", extra),
        ("holds tensors of other shapes", wrong),
    )
    return [Problem(where, f"{what}: {_some(names)}", _hint(missing, extra)) for what, names in kinds if names]


def non_finite(saved: Mapping[str, Tensor], model: nn.Module, where: str) -> list[Problem]:
    """A problem where trained weights hold NaN or infinity: nothing can be learned from them."""
    names = [name for name, p in model.named_parameters() if p.requires_grad and name in saved]
    bad = [name for name in names if not torch.isfinite(saved[name]).all()]
    if not bad:
        return []
    what = f"holds NaN or infinity in {len(bad)} of {len(names)} weights: {_some(bad)}"
    return [Problem(where, what, "it was saved when training had gone wrong already: take an earlier checkpoint")]


def half_weights(saved: Mapping[str, Tensor]) -> list[str]:
    """Names of tensors that are stored in float16 or bfloat16."""
    return [name for name, tensor in saved.items() if isinstance(tensor, Tensor) and tensor.dtype in _HALF]


def _hint(missing: Sequence[str], extra: Sequence[str]) -> str:
    if missing or extra:
        return "it is a checkpoint of another model: give the same model=… and its options as the run that saved it"
    return "same model, other sizes: compare model.* and the number of classes with the run that saved it"


def _shape(shape: Iterable[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return "; ".join(names[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
