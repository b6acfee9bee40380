"""What every task demands of a model's output."""

from __future__ import annotations

import torch
from torch import Tensor

from mpt.errors import ModelError, Problem


def require_output(output: object, wanted: tuple[int, ...], axes: str) -> Tensor:
    """The output itself, a floating tensor of the wanted shape.

    Raises: ModelError naming both shapes.
    """
    if not isinstance(output, Tensor):
        what = f"the model returned a {type(output).__name__}, but the task wants one tensor of shape {wanted} ({axes})"
        raise ModelError(Problem("model", what, "return the logits alone, without auxiliary outputs or a wrapper"))
    if tuple(output.shape) != wanted:
        what = f"the output has shape {tuple(output.shape)}, but the task wants {wanted} ({axes})"
        raise ModelError(Problem("model, task", what, _fitted(tuple(output.shape), wanted)))
    if not output.is_floating_point():
        raise ModelError(Problem("model", f"the output is {output.dtype}, not floating", "return logits, not classes"))
    return output


def _fitted(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """What would make the wanted shape of this one."""
    axes = ",".join("BL"[: len(wanted) - 1])
    if shape[-1:] != wanted[-1:]:
        more = "" if len(shape) == len(wanted) else f", and return {axes},{wanted[-1]}"
        return f"match the model's last layer to the data's {wanted[-1]} classes{more}"
    if len(shape) > len(wanted):
        return f"flatten or pool what comes before the last layer: x.flatten({len(wanted) - 1})"
    return f"keep one row of {wanted[-1]} logits for each target: return {axes},{wanted[-1]}"


def counting_dtype(device: torch.device) -> torch.dtype:
    """float64, exact up to 2^53 counts, where the device has it; float32 (2^24) on MPS."""
    return torch.float32 if device.type == "mps" else torch.float64
