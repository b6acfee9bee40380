"""What CPU tests cannot show, on one GPU, in less than --minutes: `python benchmarks/gpu_check.py OUT.json`.

Every test of tests/gpu, then cells of speed; the file is written after each of them. An error in one is recorded and
the next one runs. Without a GPU it says so and exits with 0; `--device cpu --tiny` tries the script out.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _gpu_cells import (
    FULL,
    PRECISIONS,
    TINY,
    Found,
    ceiling,
    facts,
    flops,
    images_from_files,
    overhead,
    predicted,
    throughput,
)
from _machine import machine

from mpt.errors import MptError

SCHEMA = "mpt.gpu_check/1"
FAULTS = (
    *(RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, ImportError, OSError),
    *(SyntaxError, subprocess.SubprocessError, MptError),
)
"""What a cell may fail with and the next still run; an interrupt ends the script."""


@dataclass
class Cell:
    """A name, what it measures, and the seconds it is allowed to need for being started."""

    name: str
    measure: Callable[[], Found]
    needs_s: float


@dataclass
class Check:
    """The document under way."""

    path: Path
    end_s: float
    cells: dict[str, Found] = field(default_factory=dict)

    def left_s(self) -> float:
        return self.end_s - time.monotonic()

    def run(self, cell: Cell) -> None:
        """Measure, or record why not; the file then holds it."""
        start_s = time.monotonic()
        if self.left_s() < cell.needs_s:
            found: Found = {"skipped": f"{self.left_s():.0f} s were left, it may take {cell.needs_s:.0f}"}
        else:
            found = guarded(cell.measure)
        self.cells[cell.name] = {**found, "cell_s": round(time.monotonic() - start_s, 2)}
        print(f"{cell.name}: {brief(found)}", flush=True)
        self.write()

    def write(self) -> None:
        """All cells so far, with the machine."""
        document = {"schema": SCHEMA, "machine": machine(), "cells": self.cells}
        self.path.write_text(json.dumps(document, indent=1, default=str) + "\n")


def guarded(measure: Callable[[], Found]) -> Found:
    """What was measured, or the error with its traceback; memory is free again."""
    try:
        return measure()
    except FAULTS as error:
        return {"error": f"{type(error).__name__}: {error}"[:2000], "traceback": traceback.format_exc()[-4000:]}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def brief(found: Found) -> str:
    """The figures of a cell in a line."""
    told = [f"{key} {value:.4g}" for key, value in found.items() if isinstance(value, float | int)]
    return ", ".join([*told, *(f"{key}: {found[key]}" for key in ("error", "skipped") if key in found)])[:400]


def plan(device: str, tiny: bool, facts_s: float, only: str) -> list[Cell]:
    """All cells, the most telling first. Seconds are guesses for a recent GPU."""
    nets = TINY if tiny else FULL
    mlp, cnn = ("model=mlp", "model.width=64"), ("model=small_cnn",)
    cells = [Cell("facts", partial(facts, device, only, facts_s), 20)] if facts_s else []
    cells += [Cell(f"ceiling {p}", partial(ceiling, device, p, nets.matmul), 5) for p in PRECISIONS]
    cells += [Cell("overhead mlp", partial(overhead, device, mlp, nets), 10)]
    cells += [Cell("overhead small_cnn", partial(overhead, device, cnn, nets), 10)]
    for name, words in (("resnet50", nets.resnet), ("gpt2", nets.gpt)):
        cells.append(Cell(f"flops {name}", partial(flops, device, words), 10))
        cells += [
            Cell(f"{name} {p}", partial(throughput, device, words, p, compiled=False), 15) for p in reversed(PRECISIONS)
        ]
        cells.append(Cell(f"predicted {name} bf16", partial(predicted, device, words, "bf16", compiled=False), 15))
    small = nets if tiny else replace(nets, block=4, blocks=6)
    half = (*nets.gpt, "precision=bf16")
    cells.append(Cell("overhead gpt2 bf16", partial(overhead, device, half, small, half=True), 20))
    cells.append(Cell("flops llama", partial(flops, device, nets.llama), 10))
    cells += [
        Cell(f"llama {p}", partial(throughput, device, nets.llama, p, compiled=device == "cuda"), 60)
        for p in ("bf16", "fp8")
    ]
    cells.append(Cell("images", partial(images_from_files, device, *((4, 1) if tiny else (32, 48))), 40))
    if device == "cuda":
        graphs = (*cnn, "trainer.cuda_graphs=true")
        cells += [
            Cell("small_cnn bf16 compiled", partial(throughput, device, cnn, "bf16", compiled=True), 40),
            Cell("small_cnn bf16 graphs", partial(throughput, device, graphs, "bf16", compiled=True), 40),
        ]
        cells += [
            Cell(f"gpt2 {p} compiled", partial(throughput, device, nets.gpt, p, compiled=True), 60)
            for p in ("bf16", "fp16", "tf32", "fp32")
        ]
        cells += [
            Cell("predicted gpt2 bf16 compiled", partial(predicted, device, nets.gpt, "bf16", compiled=True), 30),
        ]
    return cells


def table(cells: dict[str, Found]) -> list[str]:
    """Speeds side by side: TFLOP/s, their share of one large product's, and the gain over float32."""
    lines = [f"{'':22}{'ms/step':>9}{'samples/s':>11}{'TFLOP/s':>9}{'of product':>11}{'/ fp32':>8}{'peak GB':>9}"]
    for name, cell in cells.items():
        net, _, rest = name.partition(" ")
        if "samples_per_s" not in cell:
            continue
        precision = rest.split()[0]
        work = cells.get(f"flops {net}", {}).get("flops_per_step", 0)
        top = cells.get(f"ceiling {precision}", {}).get("tflops", 0)
        base = cells.get(f"{net} fp32", {}).get("step_ms", 0)
        tflops = work / cell["step_ms"] / 1e9
        lines.append(
            f"{name:22}{cell['step_ms']:9.2f}{cell['samples_per_s']:11.1f}{tflops:9.1f}"
            + (f"{tflops / top:11.0%}" if top else f"{'-':>11}")
            + (f"{base / cell['step_ms']:8.2f}" if base else f"{'-':>8}")
            + (f"{cell['peak_bytes'] / 1e9:9.2f}" if cell["peak_bytes"] else f"{'-':>9}")
        )
    return lines


def arguments(argv: list[str] | None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("gpu_check.json"), help="where to write")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--tiny", action="store_true", help="toy sizes")
    parser.add_argument("--minutes", type=float, default=6, help="no cell starts that might pass this")
    parser.add_argument("--facts-s", type=float, default=150, help="seconds for the tests of tests/gpu; 0: none")
    parser.add_argument("--only-facts", default="", help="pytest's -k for them")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """0 where every cell ran or was skipped, 1 where one failed."""
    start_s = time.monotonic()
    args = arguments(argv)
    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "none"
    if device == "none" or (device == "cuda" and not torch.cuda.is_available()):
        print("no GPU: skipped (torch.cuda.is_available() is False)")
        return 0
    check = Check(args.out, start_s + 60 * args.minutes)
    for cell in plan(device, args.tiny, args.facts_s, args.only_facts):
        check.run(cell)
    print("\n".join(table(check.cells)))
    broken = [name for name, cell in check.cells.items() if "error" in cell or cell.get("failed")]
    for failed in check.cells.get("facts", {}).get("not_passed", []):
        if failed["outcome"] == "failed":
            print(f"FAILED {failed['name']}\n{failed['why'][:600]}")
    print(f"{len(check.cells)} cells in {time.monotonic() - start_s:.0f} s, failed: {', '.join(broken) or 'none'}")
    print(f"written: {args.out}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
