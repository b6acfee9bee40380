"""What of a plan is not obvious from its configuration, a sentence each."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mpt.config.data import idle_places
from mpt.config.gpus import GPUS
from mpt.config.schema import RunConfig
from mpt.config.update import rounds_stochastically
from mpt.plan.plan import Plan
from mpt.precision.low.hardware import dotted
from mpt.precision.low.recipes import INSTALL, KNOWN_TORCHAO
from mpt.precision.low.settings import low_bit

_GPT2_VOCABULARY = 50257
_ROUNDED = 0.01
"""By how much a model may be larger or smaller than its name says: 124,439,808 are called 124M."""

WITH_TORCHAO = f"low-bit layers are native with torchao {dotted(KNOWN_TORCHAO)} on that machine: {INSTALL}"
"""Of a plan for a GPU that is not here: what is installed there is not known, and not what is installed here."""

_LEFT_OUT = 0.2
"""The share of an epoch's samples from which on it is told that they are left out."""

_EAGER = "trainer.compile has no effect: emulated formats run eagerly"


def notes(cfg: RunConfig, plan: Plan, reads_device: bool) -> tuple[str, ...]:
    """What a user should read before the run starts; `reads_device`: whether its optimizer does, in each step."""
    told = [*_vocabulary(cfg, plan), *_mechanism(cfg, plan), *_low_bit(cfg, plan), *_length(cfg, plan)]
    if reads_device:
        told.append(f"optimizer={cfg.optimizer.name} has no fused kernel here: one read of the device in each step")
    return (*told, *_small_numbers(cfg), *_data(cfg, plan), *_elsewhere(cfg))


def _vocabulary(cfg: RunConfig, plan: Plan) -> Iterator[str]:
    """Why a language model that is named by its size has another, where GPT-2's vocabulary would give that one."""
    data, name, width = plan.data, re.fullmatch(r".*-(\d+)m", cfg.model.choice), cfg.model.options.get("width")
    if name is None or data.kind != "tokens" or not isinstance(width, int) or data.num_classes == _GPT2_VOCABULARY:
        return
    named = 10**6 * int(name[1])
    if abs(plan.params + (_GPT2_VOCABULARY - data.num_classes) * width - named) > _ROUNDED * named:
        return
    vocabulary = f"the {name[1]}M of its name are with GPT-2's {_GPT2_VOCABULARY:,}"
    yield f"{plan.params / 1e6:.0f}M parameters, as {data.name} has a vocabulary of {data.num_classes:,}: {vocabulary}"


def _mechanism(cfg: RunConfig, plan: Plan) -> Iterator[str]:
    device = plan.device.type
    if plan.mechanism.how == "emulated":
        yield f"{plan.mechanism.compute} is emulated here: its numerics are real, its speed says nothing"
        if cfg.trainer.compile:
            yield _EAGER
    if cfg.trainer.cuda_graphs and device != "cuda":
        yield f"trainer.cuda_graphs has no effect: the device is {device}, and only CUDA has graphs of kernels"


def _low_bit(cfg: RunConfig, plan: Plan) -> Iterator[str]:
    m = plan.mechanism
    if not m.low:
        if low_bit(cfg.precision) is not None:
            what = f"no layer takes {cfg.precision.name}, all is {m.compute}"
            yield f"{what}: the table of `mpt plan` says why for each"
        return
    native = any(row.how == "native" and row.compute not in (m.compute, "float32") for row in plan.rows)
    if native and cfg.device in GPUS:
        yield WITH_TORCHAO
    if m.low_how == "emulated":
        yield f"{m.low} is emulated here: its numerics are real, its speed says nothing"
    if cfg.trainer.compile and m.how != "emulated" and m.low_how == "emulated":
        yield _EAGER
    if "floor" in m.scale_rules:
        yield (
            "scales by `floor` saturate the top of each block, and stochastic rounding can't make up for it: in e2m1 "
            "gradients shrink by 2 to 4 %, and a small GPT ended at a loss of 2.72 where `rceil` gave 2.57; training "
            "of billions of weights in e4m3 has diverged by it"
        )


def _length(cfg: RunConfig, plan: Plan) -> Iterator[str]:
    """What can't be learned, or not in so many steps."""
    steps = plan.length.steps
    if plan.data.kind == "images" and plan.data.num_classes == 1:
        yield "there is one class: any answer is right, the loss is 0, and nothing can be learned"
    if cfg.schedule.warmup >= steps:
        yield f"the warm-up of {cfg.schedule.warmup} updates is not over when the run ends: {steps} steps"


def _small_numbers(cfg: RunConfig) -> Iterator[str]:
    """What becomes of numbers that are too small for their format."""
    p = cfg.precision
    if cfg.optimizer.options.get("eps", 0) is None and p.moment == "float16":
        yield "optimizer.eps is 2^-12: smaller ones vanish beside float16 moments"
    if p.master is None and p.param != "float32":
        stored = f"weights are stored in {p.param} without a float32 master copy"
        measured = "small updates are lost, and their share is measured"
        if rounds_stochastically(p):
            measured = "updates are rounded stochastically, kept on average; the share of weights that stay is measured"
        yield f"{stored}: {measured}"
    if cfg.scaling.name == "none" and p.compute == "float16":
        yield "float16 gradients without loss scaling: the share that becomes zero is measured"


def _data(cfg: RunConfig, plan: Plan) -> Iterator[str]:
    idle = [f"data.workers={cfg.data.workers}"] if cfg.data.workers else []
    idle += ["data.on_error=skip"] if cfg.data.on_error == "skip" else []
    if plan.data_bytes and idle:
        yield f"without effect: {' and '.join(idle)}; {plan.data.name} is read whole before the run"
    yield from idle_places(cfg.data)
    n, at_once = plan.data.n_train, plan.batch_size * plan.processes
    if n % at_once >= _LEFT_OUT * n:
        left = f"{n % at_once:,} of {n:,} training samples are left out of each epoch, others each time"
        yield f"{left}: a smaller data.batch_size than {plan.batch_size} leaves out fewer"
    if plan.data.synthetic:
        yield "synthetic data: for speed measurements, nothing can be learned from it"


def _elsewhere(cfg: RunConfig) -> Iterator[str]:
    """What is not done here, and what is done by code of the user's."""
    if cfg.distributed.name != "none":
        yield f"distributed={cfg.distributed.name} is predicted: this version trains with one process"
    if cfg.plugins:
        yield "runs code of yours: plugins " + ", ".join(cfg.plugins)
    for group, options in (("model", cfg.model.options), ("data", cfg.data.options)):
        if options.get("path"):
            yield f"runs code of yours: {group}.path {options['path']}"
