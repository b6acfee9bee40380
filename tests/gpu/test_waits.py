"""Between log points the host never waits for the GPU."""

from __future__ import annotations

import pytest
import torch

from mpt.formats.exponents import exponents
from mpt.telemetry.clock import Clock
from mpt.telemetry.history import History
from mpt.train.numerics import observer
from tests.gpu._gpu_kit import CNN, GPT, Kit, host_wait_is_allowed, host_wait_is_error

WARM_UP, STEPS = 3, 30
"""More than the 22 batches of an epoch of digits, so that the next epoch's order is uploaded inside."""
RUNS = {
    "fp32": (*CNN, "precision=fp32"),
    "tf32 clip": (*CNN, "precision=tf32", "trainer.clip_norm=1"),
    "bf16 ema": (*CNN, "precision=bf16", "trainer.ema_decay=0.9"),
    "fp16 clip ema": (*CNN, "precision=fp16", "trainer.clip_norm=1", "trainer.ema_decay=0.9"),
    "fp16_master": (*CNN, "precision=fp16_master", "optimizer=sgd"),
    "bf16_true": (*CNN, "precision=bf16_true"),
    "gpt fp16": (*GPT, "precision=fp16", "trainer.clip_norm=1"),
    "gpt bf16 adam": (*GPT, "precision=bf16", "optimizer=adam"),
}


@pytest.mark.cuda_only
def test_the_debug_mode_sees_a_read() -> None:
    value = torch.ones((), device="cuda")
    host_wait_is_error()
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            value.item()
    finally:
        host_wait_is_allowed()


@pytest.mark.cuda_only
@pytest.mark.parametrize("name", RUNS)
def test_steps_with_their_data_their_times_and_their_history_make_the_host_wait_for_nothing(name: str) -> None:
    kit = Kit(*RUNS[name])
    clock, history = Clock("cuda"), History(kit.run.lr)

    def steps(count: int) -> None:
        for _ in range(count):
            clock.begin()
            clock.fetch()
            batch = kit.batch()
            clock.fetched()
            attempt = kit.engine.stepper([batch])
            history.add(attempt)
            clock.end(attempt.samples)

    with kit.switched():
        steps(WARM_UP)
        torch.cuda.synchronize()
        host_wait_is_error()
        try:
            steps(STEPS)
        finally:
            host_wait_is_allowed()
    rows = history.drain(clock.drain())
    assert len(rows) == WARM_UP + STEPS
    assert all(row.time_s > 0 for row in rows)


@pytest.mark.cuda_only
@pytest.mark.parametrize("level", ["light", "full"])
def test_a_step_whose_tensors_are_looked_at_makes_the_host_wait_for_nothing(level: str) -> None:
    kit = Kit(*CNN, "precision=fp16", f"numerics={level}")
    looks = observer(kit.run, kit.engine.buffers)

    def look(step: int) -> None:
        kit.engine.stepper(looks.watch(step, [kit.batch()]))

    with kit.switched():
        look(1)
        torch.cuda.synchronize()
        host_wait_is_error()
        try:
            look(50)
        finally:
            host_wait_is_allowed()


@pytest.mark.cuda_only
@pytest.mark.parametrize("deterministic", [False, True])
def test_exponents_are_counted_as_on_a_cpu(deterministic: bool) -> None:
    x = torch.randn(10_001) * torch.exp2(20 * torch.randn(10_001))
    torch.use_deterministic_algorithms(deterministic)
    try:
        assert torch.equal(exponents(x.cuda()).cpu(), exponents(x))
    finally:
        torch.use_deterministic_algorithms(False)
