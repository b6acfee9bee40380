"""summary.json: every name that outsiders rely on, and a reason wherever a figure is null."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mpt.record.strict import dumps
from mpt.telemetry.clock import Speed
from mpt.telemetry.history import Totals
from mpt.telemetry.memory import Memory
from mpt.telemetry.summary import Extras, Identity, Outcome, PrecisionSummary, Quality, Summary
from mpt.types import DeviceFacts, StepRow, Unmeasured

NAMES = {
    "": "schema status reason exit_code name seed config_fingerprint data_fingerprint steps updates skipped samples "
    "epochs final best precision scaling speed memory time_s device versions",
    "final": "train_loss eval_loss accuracy",
    "best": "accuracy update",
    "precision": "requested effective backend mechanism audit",
    "scaling": "strategy init min max final skipped growths",
    "speed": "samples_per_s step_p50_ms step_p95_ms n data_wait_share compile_s startup_s mfu peak_tflops",
    "memory": "peak_bytes params_bytes grads_bytes optimizer_bytes activations_bytes method predicted_peak_bytes",
    "time_s": "total train eval checkpoint data",
}


def document(totals: Totals, speed: Speed, **extras: Any) -> dict[str, Any]:
    made = Summary(
        Outcome("done", "10 steps", 0),
        Identity("mine", 3, "c0ffee", "decade"),
        totals,
        epochs=1.5,
        quality=Quality(0.5, {"eval_loss": float("nan"), "accuracy": 0.75}, {"accuracy": 0.8, "update": 2}),
        precision=PrecisionSummary("bf16", "bfloat16", "auto", "native", "match"),
        scaling="dynamic",
        speed=speed,
        memory=Memory(1, 2, 3, 4, 5, 6, 7, 8, 9, Unmeasured("no /proc"), 0, "by hand"),
        split={"total": 9.0, "startup": 1.0, "train": 5.0, "data": 0.5, "eval": 2.0, "checkpoint": 0.25},
        device=DeviceFacts("cpu", "a processor", "2.14.1"),
        versions={"torch": "2.14.1"},
        **extras,
    )
    return json.loads(dumps(made.to_json()), parse_constant=pytest.fail)


def test_every_name_that_outsiders_rely_on_is_there() -> None:
    totals = Totals()
    totals.count(StepRow(1, 1, True, 1.0, 0.1, 1.0, 8.0, 32, 0.1, 0.0))
    got = document(totals, Speed(100.0, 10.0, 12.0, 5, 0.01))
    for group, names in NAMES.items():
        assert set(names.split()) <= (got[group] if group else got).keys(), group
    assert got["scaling"]["init"] == got["scaling"]["final"] == 8.0
    assert (got["steps"], got["updates"], got["samples"]) == (1, 1, 32)
    assert got["speed"]["startup_s"] == 1.0


def nulls(value: Any, where: str = "") -> list[tuple[str, bool]]:
    """Every null in the document, and whether a reason or a mark stands beside it."""
    if isinstance(value, list):
        return [found for i, item in enumerate(value) for found in nulls(item, f"{where}[{i}]")]
    if not isinstance(value, dict):
        return []
    own = [
        (f"{where}.{key}", f"{key}_reason" in value or key in value.get("nonfinite", {}))
        for key, item in value.items()
        if item is None
    ]
    return own + [found for key, item in value.items() for found in nulls(item, f"{where}.{key}")]


def test_a_figure_that_was_not_measured_is_null_with_its_reason_never_zero() -> None:
    why = Unmeasured("2 steps, fewer than the 5 warm-up steps + 1")
    got = document(Totals(), Speed(why, why, why, 0, why))
    assert got["speed"]["samples_per_s"] is None
    assert got["speed"]["samples_per_s_reason"] == why.reason
    assert got["scaling"]["init_reason"] == "no step was taken"
    allowed = {".device.capability", ".device.memory_bytes", ".device.torchao", ".first_nonfinite_loss"}
    assert [name for name, told in nulls(got) if not told and name not in allowed] == []


def test_further_members_and_measured_extras_are_taken_over() -> None:
    extras = Extras(compile_s=3.5, more={"lost_updates": 0.25})
    got = document(Totals(), Speed(1.0, 1.0, 1.0, 1, 0.0), extras=extras)
    assert got["speed"]["compile_s"] == 3.5
    assert got["lost_updates"] == 0.25
