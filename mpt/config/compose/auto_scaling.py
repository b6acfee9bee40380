"""Which strategy scaling=auto means, and the keys that a strategy uses."""

from __future__ import annotations

from collections.abc import Set

from omegaconf import DictConfig, OmegaConf

from mpt.config.compose.session import Session
from mpt.formats.table import COMPUTE

_ROLES = ("precision.compute", "precision.param", "precision.master")


def scaling_keys(hydra: Session, choice: str) -> list[str]:
    """What the YAML of a strategy lists; of nulls only limits: one made of others shows the keys of all."""
    entry = hydra.entry("scaling", choice)
    listed = {str(k) for k, v in entry.items_ex(resolve=False) if v is not None or k in ("min_scale", "max_scale")}
    return sorted(listed - {"name", "rule"})


def strategy(cfg: DictConfig, typed: Set[str]) -> str:
    """The policy's strategy; where its formats were among the keys `typed`, the one that fits what came of it."""
    compute, param, master = (OmegaConf.select(cfg, role) for role in _ROLES)
    policys = str(cfg.precision.scaling)
    if "precision.scaling" in typed or typed.isdisjoint(_ROLES) or compute not in COMPUTE:
        return policys
    if compute != "float16" or (param == "float16" and master is None):
        return "none"
    return "dynamic" if policys == "none" else policys
