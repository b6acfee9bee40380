"""What a prediction says where the model is compiled: its figures are the eager step's, and how a compiled one differs.

Not predicted: which intermediate results a compiler keeps and fuses. Its own cut of the graph (AOTAutograd's minimal
one) with fused chains left out came within 4 % of a compiled GPT's and a ResNet's peak and missed small_cnn's by 15 %.
"""

from __future__ import annotations

from dataclasses import replace

from mpt.config.schema import RunConfig
from mpt.plan.plan import Plan
from mpt.predict.trace import Trace
from mpt.types import Unmeasured

MEMORY = (
    "trainer.compile=true: peak and largest batch are those of the eager step. Beyond weights and state, compiled "
    "steps took as much for a GPT and an MLP (-0.1 to +0.6 %), 13 to 32 % less for small_cnn, resnet18, "
    "mobilenet_v3_large and convnext_tiny in float32, and 10 % more for small_cnn in bf16, measured on a CPU"
)
"""Largest sums of what torch's profiler saw allocated and freed in a step, compiled over eager, torch 2.14."""
TIME = "trainer.compile=true: the time is that of the eager step; what a compiler fuses is not predicted"


NOT_TOLD = Unmeasured("told of compiled steps on GPUs by name")


def is_compiled(cfg: RunConfig, plan: Plan) -> bool:
    """Whether the step would run compiled: emulated formats run eagerly."""
    m = plan.mechanism
    return cfg.trainer.compile and m.how != "emulated" and not (m.low and m.low_how == "emulated")


def products(trace: Trace) -> Trace:
    """What no compiler leaves out."""
    return replace(trace, ops=tuple(op for op in trace.ops if op.executed))
