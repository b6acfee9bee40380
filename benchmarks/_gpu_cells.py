"""What gpu_check measures on one GPU: real nets in each precision, and the runner against an expert's loop."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _cells import spread
from _measure import per_step_ms
from _photos import write_tree
from _runner import ONLY_STEPS, Steps, expert, waiter, whole_run
from torch.utils.flop_counter import FlopCounterMode

from mpt.build import Run, build, make_plan
from mpt.config.compose import compose
from mpt.data._workers import usable_cpus
from mpt.precision.switches import flags
from mpt.predict.fake import trace
from mpt.predict.memory import for_device
from mpt.predict.timing import time_of
from mpt.types import Unmeasured

ROOT = Path(__file__).parent.parent
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
Found = dict[str, Any]


@dataclass(frozen=True)
class Nets:
    """Words of the nets at their full size, or at a toy size for trying the script out."""

    resnet: tuple[str, ...]
    gpt: tuple[str, ...]
    llama: tuple[str, ...]
    """Blocks as wide as those of a Llama of 7B weights, with a small vocabulary: nearly all work is products."""
    matmul: int
    block: int
    blocks: int


FULL = Nets(
    resnet=("model=resnet50", "data=synthetic_images", "data.n=512", "data.image_size=224", "data.batch_size=256"),
    gpt=("model=gpt2-124m", "data=synthetic_tokens", "data.n=64", "data.batch_size=16"),
    llama=(
        *(
            "model=gpt",
            "model.layers=2",
            "model.width=4096",
            "model.heads=32",
            "model.context=2048",
            "model.bias=false",
        ),
        *("data=synthetic_tokens", "data.n=16", "data.vocab=1024", "data.batch_size=8"),
    ),
    matmul=8192,
    block=50,
    blocks=20,
)
TINY = Nets(
    resnet=("model=small_cnn", "model.width=8", "data=digits", "data.batch_size=16"),
    gpt=(
        *("model=gpt", "model.layers=1", "model.width=32", "model.heads=2", "model.context=16"),
        *("data=synthetic_tokens", "data.n=8", "data.vocab=64", "data.batch_size=2"),
    ),
    llama=(
        *("model=gpt", "model.layers=1", "model.width=32", "model.heads=2", "model.context=16", "model.bias=false"),
        *("data=synthetic_tokens", "data.n=8", "data.vocab=64", "data.batch_size=2"),
    ),
    matmul=64,
    block=5,
    blocks=2,
)


def facts(device: str, only: str, limit_s: float) -> Found:
    """Every test of tests/gpu, one entry each: passed, failed with its message, or skipped with its reason."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "facts.xml", Path(folder) / "log"
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--junitxml={out}", "tests/gpu"]
        command += ["--ignore=tests/gpu/test_gpu_check.py"]  # it runs this script
        command += ["-k", only] if only else []
        env = {**os.environ, "MPT_GPU_TESTS_ON": device, "PYTHONPATH": str(ROOT)}
        try:
            with log.open("w") as file:
                subprocess.run(command, cwd=ROOT, env=env, stdout=file, stderr=file, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return _so_far(log.read_text(), limit_s)
        if not out.exists():
            raise RuntimeError(f"pytest left no report: {log.read_text()[-2000:]}")
        tests = [_outcome(case) for case in ET.parse(out).iter("testcase")]
    counts = {word: sum(t["outcome"] == word for t in tests) for word in ("passed", "failed", "skipped")}
    return {**counts, "not_passed": [t for t in tests if t["outcome"] != "passed"], "names": [t["name"] for t in tests]}


def _so_far(log: str, limit_s: float) -> Found:
    """What pytest had told when its time was over."""
    lines = log.splitlines()
    failed = [line for line in lines if " FAILED" in line]
    passed = sum(" PASSED" in line for line in lines)
    return {"passed": passed, "failed": len(failed), "stopped_after_s": limit_s, "names": failed, "last": lines[-1:]}


def _outcome(case: ET.Element) -> Found:
    name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
    for tag, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        element = case.find(tag)
        if element is not None:
            told = f"{element.get('message', '')}\n{element.text or ''}"[:3000]
            return {"name": name, "outcome": outcome, "why": told}
    return {"name": name, "outcome": "passed"}


class Clocked:
    """Milliseconds of device work, by events on CUDA and by the host's clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._wait = device, waiter(device)

    def __call__(self, run: Callable[[int], object], steps: int) -> float:
        """Of one step of `run(steps)`."""
        if self._device.type != "cuda":
            return per_step_ms(run, steps)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run(steps)
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / steps


def ceiling(device: str, precision: str, size: int) -> Found:
    """TFLOP/s of one large product on random operands, under the policy's own switches: what a net can hope for."""
    steps = Steps("model=mlp", "model.width=8", f"precision={precision}", f"device={device}")
    run = steps.of
    left, right = (torch.randn(size, size, device=run.device) for _ in range(2))
    if run.plan.mechanism.half:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
        left, right = left.to(dtype), right.to(dtype)

    def multiply(count: int) -> None:
        for _ in range(count):
            left @ right

    timed = Clocked(run.device)
    with flags(run.cfg.precision, run.plan.device):
        timed(multiply, 5)
        ms = min(timed(multiply, 10) for _ in range(5))
    return {"tflops": 2 * size**3 / ms / 1e9, "mechanism": steps.mechanism}


def throughput(device: str, words: tuple[str, ...], precision: str, *, compiled: bool) -> Found:
    """Steps of the runner in one precision: time by device events, samples/s, TFLOP/s, the allocator's peak."""
    start_s = time.perf_counter()
    more = [f"precision={precision}", f"trainer.compile={str(compiled).lower()}", f"device={device}"]
    steps = Steps(*words, *more)
    run, wait = steps.of, waiter(steps.of.device)
    if run.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    first_s = per_step_ms(steps.run, 1, wait) / 1e3
    steps.run(4)
    wait()
    timed = Clocked(run.device)
    step_ms = [timed(steps.run, 4) for _ in range(6)]
    found = spread(step_ms)
    tokens = run.data.spec.shape[0] if run.data.spec.kind == "tokens" else 1
    peak = torch.cuda.max_memory_allocated() if run.device.type == "cuda" else None
    return {
        "step_ms": found.median,
        "step_p10_ms": found.p10,
        "noise": found.noise,
        "n": found.n,
        "samples_per_s": 1e3 * run.cfg.data.batch_size / found.median,
        "tokens_per_s": 1e3 * run.cfg.data.batch_size * tokens / found.median if tokens > 1 else None,
        "peak_bytes": peak,
        "first_step_s": first_s,
        "mechanism": steps.mechanism,
        "wall_s": time.perf_counter() - start_s,
    }


def predicted(device: str, words: tuple[str, ...], precision: str, *, compiled: bool) -> Found:
    """What `mpt plan` tells of those steps on this device, to hold against what was measured: rows 11, 12 and 24."""
    start_s = time.perf_counter()
    compile_word = f"trainer.compile={str(compiled).lower()}"
    cfg = compose([*words, f"precision={precision}", compile_word, f"device={device}", *ONLY_STEPS])
    plan = make_plan(cfg)
    traced = trace(cfg, plan)
    found, how = time_of(cfg, plan, traced)
    step_ms = found.reason if isinstance(found, Unmeasured) else 1e3 * found.total_s
    peak_bytes = for_device(traced, plan.device).peak_bytes
    return {"peak_bytes": peak_bytes, "step_ms": step_ms, "rates": how, "wall_s": time.perf_counter() - start_s}


def images_from_files(device: str, each: int, batches: int) -> Found:
    """256-pixel JPEGs to batches on the device, by all CPUs: ours, and torchvision's DataLoader to the CPU (row 19)."""
    from images import BATCH, SHAPES, image_us, ours, peer

    workers = usable_cpus()
    with tempfile.TemporaryDirectory() as folder:
        root = write_tree(Path(folder), SHAPES["256-pixel"], each)
        times = {
            name: min(image_us(partial(read, root, workers), batches, 2 * workers) for _ in range(3))
            for name, read in (("ours", partial(ours, device=device)), ("peer", peer))
        }
    found = {f"{name}_images_per_s": 1e6 / us for name, us in times.items()}
    return {**found, "ratio": times["ours"] / times["peer"], "workers": workers, "batch": BATCH}


def flops(device: str, words: tuple[str, ...]) -> Found:
    """Floating-point operations of one forward and backward, as torch's own counter sees them."""
    run = build(compose([*words, f"device={device}", "precision=fp32"]))
    batch = next(run.data.train(start=0))
    with FlopCounterMode(display=False) as counter:
        run.task.loss_sum(run.model(batch.inputs), batch).backward()
    return {"flops_per_step": counter.get_total_flops()}


def overhead(device: str, words: tuple[str, ...], nets: Nets, *, half: bool = False) -> Found:
    """A step of the whole runner, every default record on, against an expert's bare loop; they take turns."""
    times: list[float] = []

    def peer(run: Run) -> Callable[[], object]:
        by_hand, wait = expert(run, 200, half=half), waiter(run.device)
        return lambda: times.append(per_step_ms(by_hand.run, nets.block, wait))

    ours = whole_run([*words, f"device={device}"], block=nets.block, blocks=nets.blocks, peer=peer)
    mine, theirs = spread(ours), spread(times[1 : 1 + len(ours)])
    return {
        "step_ms": mine.median,
        "expert_step_ms": theirs.median,
        "ratio": mine.median / theirs.median,
        "ratio_p10": mine.p10 / theirs.p10,
        "noise": max(mine.noise, theirs.noise),
        "n": mine.n,
        "paired_ratio": statistics.median(a / b for a, b in zip(ours, times[1:], strict=False)),
    }
