"""Which kernels multiply matrices of a run on a CPU, where torch's own choice is slow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from mpt.config.schema import RunConfig
from mpt.plan.plan import Plan
from mpt.precision import routing, short_attention


@contextmanager
def cpu_products(cfg: RunConfig, plan: Plan) -> Iterator[list[str]]:
    """oneDNN for float32 products, and attention over short contexts by whole matrices, inside where that is faster and
    exact (trainer.onednn); gives what is to be told of it.

    Compiled models keep torch's own: the compiler asks for the switch in its older form, which torch then refuses.
    """
    allowed = cfg.trainer.onednn == "auto" and not cfg.trainer.compile
    through_onednn = allowed and routing.suits(plan.device, _products(plan))
    whole = allowed and short_attention.suits(plan.device) and _attends(plan)
    with routing.routed(through_onednn) as routed, short_attention.short_attention(whole) as short:
        yield [told for told in (routed, short) if told]


def _attends(plan: Plan) -> bool:
    """Whether the model may attend over a context that is short enough."""
    short = plan.data.kind != "tokens" or math.prod(plan.data.shape) <= short_attention.MAX_KEYS
    names = (f"{row.name} {row.type}".lower() for row in plan.rows)
    return short and any("attention" in name or "attn" in name for name in names)


def _products(plan: Plan) -> float:
    """Multiplications of the mean linear layer in a micro-batch; images count one row a sample."""
    linears = [row.params for row in plan.rows if row.kind == "gemm" and not row.type.startswith("Conv")]
    rows = plan.batch_size * (math.prod(plan.data.shape) if plan.data.kind == "tokens" else 1)
    return rows * sum(linears) / len(linears) if linears else 0.0
