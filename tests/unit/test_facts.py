"""Facts about devices, with torch's answers put in by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mpt.errors import ConfigError, ExitCode
from mpt.plan import facts
from mpt.plan.facts import probe


@pytest.fixture
def no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("NVIDIA H200", "Tesla T4")
    found = [
        SimpleNamespace(name=n, major=m, minor=i, total_memory=10**9)
        for n, m, i in zip(names, (9, 7), (0, 5), strict=True)
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: found[i])


@pytest.mark.usefixtures("no_devices")
def test_auto_is_the_cpu_where_there_is_nothing_else() -> None:
    got = probe("auto")
    assert (got.type, got.torch, got.capability, got.index) == ("cpu", torch.__version__, None, 0)
    assert type(got.torch) is str
    assert got.name
    assert got == probe("cpu")


@pytest.mark.usefixtures("two_gpus")
def test_cuda_devices_are_told_with_capability_memory_and_index() -> None:
    first, second = probe("auto"), probe("cuda:1")
    assert (first.type, first.name, first.capability, first.index) == ("cuda", "NVIDIA H200", (9, 0), 0)
    assert (second.name, second.capability, second.memory_bytes, second.index) == ("Tesla T4", (7, 5), 10**9, 1)
    assert probe("cuda") == first
    assert probe("cpu").type == "cpu"


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="got `cuda:2`, there are 2 CUDA devices") as caught:
        probe("cuda:2")
    assert "device=cuda:0 or device=cuda:1" in caught.value.problems[0].hint
    assert caught.value.exit_code == ExitCode.REFUSED


@pytest.mark.usefixtures("no_devices")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
def test_an_absent_kind_of_device_is_refused_by_key(device: str) -> None:
    with pytest.raises(ConfigError, match=f"device: got `{device}`") as caught:
        probe(device)
    assert caught.value.problems[0].hint == "there is device=cpu"


@pytest.mark.usefixtures("no_devices")
def test_hidden_gpus_are_given_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES hides every device"):
        probe("cuda")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(ConfigError, match="was built without CUDA"):
        probe("cuda")


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "cuda:x", "CPU", "", "h100-nv"])
def test_words_that_name_no_device_are_refused(device: str) -> None:
    with pytest.raises(ConfigError, match="want auto, cpu, cuda, cuda:N or mps"):
        probe(device)


def test_memory_of_the_machine_is_a_positive_number_of_bytes() -> None:
    got = facts._machine_bytes()
    assert got is None or got > 2**20


def test_a_plan_can_be_made_for_a_gpu_that_is_not_there_and_a_run_can_not() -> None:
    got = facts.facts_of("b200")
    assert (got.type, got.name, got.capability, got.torch) == ("cuda", "NVIDIA B200", (10, 0), torch.__version__)
    with pytest.raises(ConfigError, match="mpt plan device=b200"):
        probe("b200")
    assert facts.facts_of("cpu") == probe("cpu")


@pytest.mark.parametrize("name", ["h100", "h200", "a100", "v100", "b200"])
def test_a_gpu_is_known_by_the_name_of_its_socketed_form_too(name: str) -> None:
    assert facts.facts_of(f"{name}-sxm") == facts.facts_of(name)
    with pytest.raises(ConfigError, match=f"mpt plan device={name}-sxm"):
        probe(f"{name}-sxm")
