"""A prediction for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpt.config.gpus import gpu_of
from mpt.predict.prediction import Prediction
from mpt.types import Unmeasured


def predicted(made: Prediction, speed: Mapping[str, float | Unmeasured], price_per_h: float | None) -> dict[str, Any]:
    """`predicted` of `mpt plan --json`; what is not known is null, with its reason beside it."""
    memory, time, step_s = made.memory, made.time, made.step_s
    document: dict[str, Any] = {"rates": made.how, "loading_s": made.loading_s}
    document |= {"samples": made.samples, "sent_bytes": made.communication.sent_bytes}
    _put(document, "communication_s", made.communication.seconds)
    _put(document, "exposed_communication_s", made.communication.exposed_s)
    if isinstance(memory, Unmeasured):
        _put(document, "peak_bytes", memory)
    else:
        document |= {"peak_bytes": memory.peak_bytes, "phase": memory.phase, "parts_bytes": memory.parts}
        document |= {"activations_bytes": memory.kept_bytes}
    if made.not_told:
        document |= {"note": made.not_told}
    _put(document, "limit_bytes", made.limit_bytes)
    _put(document, "largest_batch", made.largest_batch)
    _put(document, "step_s", step_s)
    if not isinstance(time, Unmeasured) and not isinstance(step_s, Unmeasured):
        run_s, gpu = step_s * made.plan.length.steps, gpu_of(made.plan.device.name)
        document |= {"bounds_s": time.bounds, "phases_s": time.phases, "flops": time.flops, "launches": time.launches}
        document |= {"moved_bytes": time.moved_bytes, "wait_s": made.wait_s, "run_s": run_s}
        n = made.plan.processes
        document["energy_j"] = None if gpu is None else n * gpu.power_w * run_s
        document["cost"] = None if price_per_h is None else n * price_per_h * run_s / 3600
        for name, seconds in speed.items():
            value = seconds if isinstance(seconds, Unmeasured) else seconds / (step_s - made.wait_s)
            _put(document, f"speedup_over_{name}", value)
    document["modules"] = _modules(made)
    return document


def _modules(made: Prediction) -> dict[str, dict[str, Any]]:
    memory, time = made.memory, made.time
    kept = {} if isinstance(memory, Unmeasured) else memory.kept
    spent = {} if isinstance(time, Unmeasured) else time.modules
    return {
        name: {
            "state_bytes": made.weights.get(name, 0),
            "kept_bytes": kept.get(name, 0),
            "seconds": spent[name].total_s if name in spent else None,
            "bound": spent[name].bound if name in spent else None,
        }
        for name in dict.fromkeys([*(row.name for row in made.plan.rows), *kept, *spent])
    }


def _put(document: dict[str, Any], key: str, value: float | Unmeasured) -> None:
    if isinstance(value, Unmeasured):
        document |= {key: None, f"{key}_reason": value.reason}
    else:
        document[key] = value
