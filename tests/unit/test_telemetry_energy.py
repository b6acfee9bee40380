"""Joules from counters that wrap around, of packages alone, and a reason where there is none."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mpt.telemetry import energy
from mpt.telemetry.energy import EnergyMeter
from mpt.types import DeviceFacts, Unmeasured

CPU = DeviceFacts("cpu", "AMD EPYC", "2.14.1")
GPU = DeviceFacts("cuda", "NVIDIA H200", "2.14.1", (9, 0), index=1)


def package(root: Path, name: str, microjoules: int, wraps_at: int = 10_000_000) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "max_energy_range_uj").write_text(f"{wraps_at}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    return folder / "energy_uj"


def test_joules_are_those_of_all_packages_since_the_meter_was_made(tmp_path: Path) -> None:
    first, second = package(tmp_path, "intel-rapl:0", 4_000_000), package(tmp_path, "intel-rapl:1", 0)
    package(tmp_path, "intel-rapl:0:0", 0).write_text("9000000\n")  # the cores of package 0: counted already
    meter = EnergyMeter(CPU, tmp_path)
    first.write_text("6500000\n")
    second.write_text("1000000\n")
    meter.poll()
    assert meter.summary()["joules"] == pytest.approx(3.5)


def test_a_counter_that_begins_anew_is_counted_on(tmp_path: Path) -> None:
    counter = package(tmp_path, "intel-rapl:0", 9_000_000)
    meter = EnergyMeter(CPU, tmp_path)
    counter.write_text("2000000\n")  # 1 J up to the end of its range, 2 J after it
    meter.poll()
    assert meter.summary()["joules"] == pytest.approx(3.0)


def test_a_resumed_run_adds_to_what_it_had_spent(tmp_path: Path) -> None:
    counter = package(tmp_path, "intel-rapl:0", 0)
    before = EnergyMeter(CPU, tmp_path)
    counter.write_text("2000000\n")
    before.poll()
    after = EnergyMeter(CPU, tmp_path)
    after.load_state_dict(before.state_dict())
    counter.write_text("5000000\n")
    after.poll()
    assert after.summary()["joules"] == pytest.approx(5.0)


def test_without_a_counter_joules_are_null_with_the_reason(tmp_path: Path) -> None:
    package(tmp_path, "intel-rapl:0", 0).unlink()
    meter = EnergyMeter(CPU, tmp_path)
    meter.poll()
    assert meter.summary() == {
        "joules": Unmeasured(f"no readable energy counter below {tmp_path} (RAPL; most systems let root alone read it)")
    }


def test_a_gpu_is_asked_by_its_own_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    spent, asked = [1000.0, 1000.0, 3500.0], []
    fake = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: asked.append(uuid) or "handle",
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: spent.pop(0),
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(energy, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"uuid-{index}"))
    meter = EnergyMeter(GPU)
    meter.poll()
    assert asked == ["GPU-uuid-1"]
    assert meter.summary()["joules"] == 2.5


def test_a_gpu_without_nvml_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "find_spec", lambda name: None)
    told: Any = EnergyMeter(GPU).summary()["joules"]
    assert told.reason == "pynvml is not installed: pip install nvidia-ml-py"
