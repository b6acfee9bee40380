"""Which number format each role uses, the mechanism that makes it so, and the audit that proves it.

Names are looked up on first use: `resolve` and `support` need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpt.precision.assignment import assign
    from mpt.precision.audit import Auditor
    from mpt.precision.capability import Mechanism, resolve, support
    from mpt.precision.policy import Policy, install
    from mpt.precision.switches import flags, observed

_HOMES = {
    "assign": "assignment",
    "Auditor": "audit",
    "Mechanism": "capability",
    "resolve": "capability",
    "support": "capability",
    "Policy": "policy",
    "install": "policy",
    "flags": "switches",
    "observed": "switches",
}

__all__ = ["Auditor", "Mechanism", "Policy", "assign", "flags", "install", "observed", "resolve", "support"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
