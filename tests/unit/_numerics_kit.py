"""Looks at gradients that are known, written into run folders made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mpt.telemetry.tally import Tally
from tests.unit._runs_kit import write_run


def spread_out(centre: float, bits: float, n: int = 4000, seed: int = 0) -> Tensor:
    """Numbers around 2^centre whose logarithms are normal with a deviation of `bits`."""
    g = torch.Generator().manual_seed(seed)
    signs = torch.randint(2, (n,), generator=g) * 2 - 1
    return torch.exp2(centre + bits * torch.randn(n, generator=g).clamp(-4, 4)) * signs


def look(step: int, tensors: Mapping[str, Mapping[str, Tensor]], scale: float = 1.0, **more: Any) -> dict[str, Any]:
    """A line of numerics.jsonl."""
    tally = Tally(None)
    for role, named in tensors.items():
        for name, x in named.items():
            tally.add(role, name, x)
    return {"step": step, "update": step, "applied": True, "scale": scale, "noise": None, **tally.read(), **more}


def looked_at(folder: Path, lines: Sequence[Mapping[str, Any]], precision: str = "bf16", **given: Any) -> Path:
    """A run folder with these looks; its compute format is torch's name of the precision."""
    write_run(folder, precision, **given)
    config = folder / "config.yaml"
    formats = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
    text = config.read_text().replace(f"compute: {precision}", f"compute: {formats[precision]}")
    config.write_text(text)
    with (folder / "numerics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return folder
