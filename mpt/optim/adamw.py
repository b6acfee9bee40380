"""Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

from __future__ import annotations

from functools import partial

from mpt.optim._adam import FUSED_ON, build_adam

__all__ = ["FUSED_ON", "build"]

build = partial(build_adam, decoupled=True)
