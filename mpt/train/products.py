"""Which library multiplies float32 matrices in a run."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

from mpt.config.schema import RunConfig
from mpt.plan.plan import Plan
from mpt.precision.routing import routed, suits


def float32_products(cfg: RunConfig, plan: Plan) -> AbstractContextManager[str | None]:
    """oneDNN inside where that is faster and exact (trainer.onednn); gives what is to be told of it.

    Compiled models keep torch's own: the compiler asks for the switch in its older form, which torch then refuses.
    """
    allowed = cfg.trainer.onednn == "auto" and not cfg.trainer.compile
    return routed(allowed and suits(plan.device, _products(plan)))


def _products(plan: Plan) -> float:
    """Multiplications of the mean linear layer in a micro-batch; images count one row a sample."""
    linears = [row.params for row in plan.rows if row.kind == "gemm" and not row.type.startswith("Conv")]
    rows = plan.batch_size * (math.prod(plan.data.shape) if plan.data.kind == "tokens" else 1)
    return rows * sum(linears) / len(linears) if linears else 0.0
