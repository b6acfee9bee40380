"""Which weights of a checkpoint a low-bit policy would take: those of the layers that the plan of its run lowers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpt.errors import MptError

if TYPE_CHECKING:
    from mpt.checkpoint.lint import Target

CONFIG = "config.yaml"


def in_layers(target: Target, policy: str, word: Path, checkpoint: Path) -> Target:
    """An operand's target for the tensors that the policy lowers; where no plan can be made for all, saying so.

    `word` is what was typed, a run folder or `checkpoint` itself.
    """
    from mpt.formats.operand import Operand

    if not isinstance(target.spec, Operand):
        return target
    folder = next((path for path in (word, checkpoint.parent.parent) if (path / CONFIG).is_file()), None)
    found = None if folder is None else _weights(folder, policy)
    if found is None:
        return replace(target, role=f"{target.role}, if all layers took part")
    low, layers = found
    return replace(target, role=f"{target.role} in {len(low)} of {layers} layers", only=low)


def _weights(folder: Path, policy: str) -> tuple[frozenset[str], int] | None:
    """Weights that are operands in low bits, and how many layers multiply; None where the run can't be planned here."""
    from mpt.build import make_plan
    from mpt.config import saved
    from mpt.config.compose import compose

    try:
        cfg = saved.load(folder / CONFIG)
        plan = make_plan(replace(cfg, precision=compose([f"precision={policy}"]).precision, device="cpu"))
    except (MptError, OSError):  # its data or its model's code are not here
        return None
    layers = [row for row in plan.rows if row.kind == "gemm"]
    low = [row for row in layers if row.compute not in (plan.mechanism.compute, "float32")]
    return frozenset(f"{row.name}.weight" for row in low), len(layers)
