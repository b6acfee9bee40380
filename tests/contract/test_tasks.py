"""What every task promises: a float32 loss as a sum and a count, and metrics that sums over batches make."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from mpt import registry
from mpt.errors import ConfigError, ModelError
from mpt.tasks._base import Task
from mpt.tasks._safety import LOSSES
from mpt.types import Batch, DataSpec
from tests.unit._step_kit import Reads

SPECS = {
    "images": DataSpec("made up", "images", (1, 4, 4), 5, 10, 10, (), ""),
    "tokens": DataSpec("made up", "tokens", (6,), 5, 10, 10, (), ""),
}
TASKS = [(name, kind) for name, kind in (("classification", "images"), ("language_modeling", "tokens"))]
ALL = [*TASKS, ("auto", "images"), ("auto", "tokens")]


def made(kind: str, n: int = 8) -> tuple[torch.Tensor, Batch]:
    generator = torch.Generator().manual_seed(0)
    places = SPECS[kind].shape if kind == "tokens" else ()
    output = torch.randn(n, *places, 5, generator=generator)
    targets = torch.randint(5, (n, *places), generator=generator)
    return output, Batch(torch.zeros(n), targets)


@pytest.fixture(params=ALL, ids="-".join)
def case(request: pytest.FixtureRequest) -> tuple[Task, str]:
    name, kind = request.param
    return registry.load("tasks", name).build({}, SPECS[kind]), kind


def test_every_task_is_tested_here() -> None:
    assert {name for name, _ in ALL} == set(registry.names("tasks"))


@pytest.mark.parametrize("loss", [*LOSSES, None])
def test_no_loss_reads_a_device_scalar(loss: str | None) -> None:
    kind = "tokens" if loss is None else "images"
    task = registry.load("tasks", "auto").build({} if loss is None else {"loss": loss}, SPECS[kind])
    output, batch = made(kind)
    output = output.sigmoid().requires_grad_()
    with Reads() as reads:
        task.loss_sum(output, batch).backward()
        task.sums(output.detach(), batch)
        task.count(batch)
    assert reads.count == 0
    with Reads() as reads:
        F.one_hot(batch.targets)
    assert reads.count > 0  # the counter counts


def test_auto_is_the_task_that_fits_the_data() -> None:
    for name, kind in TASKS:
        assert registry.load("tasks", "auto").build({}, SPECS[kind]).name == name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_loss_is_a_float32_sum_whatever_the_output_is(case: tuple[Task, str], dtype: torch.dtype) -> None:
    task, kind = case
    output, batch = made(kind)
    loss = task.loss_sum(output.to(dtype), batch)
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    assert torch.equal(loss, task.loss_sum(output.to(dtype).float(), batch))


def test_sum_over_count_is_the_mean_of_torch_in_float64(case: tuple[Task, str]) -> None:
    task, kind = case
    output, batch = made(kind)
    expected = torch.nn.functional.cross_entropy(output.double().flatten(0, -2), batch.targets.flatten())
    measured = task.loss_sum(output, batch).double() / task.count(batch)
    # Each of the `count` terms and their sum are rounded to 24 bits.
    assert abs(measured - expected) <= 4 * task.count(batch) * 2.0**-24 * expected


def test_metrics_of_parts_are_those_of_the_whole(case: tuple[Task, str]) -> None:
    task, kind = case
    output, batch = made(kind)
    whole = task.metrics(task.sums(output, batch).tolist(), task.count(batch))
    parts = [Batch(batch.inputs[s], batch.targets[s]) for s in (slice(3), slice(3, 8))]
    sums = sum(task.sums(output[s], p) for s, p in zip((slice(3), slice(3, 8)), parts, strict=True))
    together = task.metrics(sums.tolist(), sum(task.count(p) for p in parts))
    assert together.keys() == whole.keys()
    assert all(math.isclose(together[k], whole[k], rel_tol=8 * 2.0**-24) for k in whole)


def test_the_headline_is_among_the_metrics(case: tuple[Task, str]) -> None:
    task, kind = case
    output, batch = made(kind)
    metrics = task.metrics(task.sums(output, batch).tolist(), task.count(batch))
    assert task.headline in metrics
    assert "loss" in metrics
    assert task.mode in ("min", "max")


def test_an_output_that_fits_passes(case: tuple[Task, str]) -> None:
    task, kind = case
    output, batch = made(kind)
    task.check(output, batch)
    task.check(output.half(), batch)


@pytest.mark.parametrize(
    ("kind", "shape", "hint"),
    [
        ("images", (8, 4), "match the model's last layer to the data's 5 classes"),
        ("images", (8, 1, 4, 5), "flatten or pool what comes before the last layer: x.flatten(1)"),
        ("images", (32, 5), "keep one row of 5 logits for each target: return B,5"),
        ("images", (8, 3, 4), "last layer to the data's 5 classes, and return B,5"),
        ("tokens", (8, 6, 2, 5), "flatten or pool what comes before the last layer: x.flatten(2)"),
        ("tokens", (48, 5), "keep one row of 5 logits for each target: return B,L,5"),
    ],
)
def test_a_misshaped_output_is_told_what_would_mend_it(kind: str, shape: tuple[int, ...], hint: str) -> None:
    task = registry.load("tasks", "auto").build({}, SPECS[kind])
    with pytest.raises(ModelError) as refused:
        task.check(torch.zeros(shape), made(kind)[1])
    assert refused.value.problems[0].hint.endswith(hint)


def test_an_output_of_another_shape_is_refused_with_both_shapes(case: tuple[Task, str]) -> None:
    task, kind = case
    output, batch = made(kind)
    with pytest.raises(ModelError) as refused:
        task.check(output[..., :4], batch)
    assert str(tuple(output[..., :4].shape)) in str(refused.value)
    assert str(tuple(output.shape)) in str(refused.value)


def test_an_output_that_is_no_tensor_is_refused(case: tuple[Task, str]) -> None:
    task, kind = case
    output, batch = made(kind)
    with pytest.raises(ModelError, match="returned a tuple"):
        task.check((output, output), batch)


def test_class_numbers_instead_of_logits_are_refused(case: tuple[Task, str]) -> None:
    task, kind = case
    output, batch = made(kind)
    with pytest.raises(ModelError, match="not floating"):
        task.check(output.long(), batch)


def test_an_unknown_option_is_refused_by_its_key() -> None:
    for name, kind in TASKS:
        with pytest.raises(ConfigError, match=r"task\.los: no such option"):
            registry.load("tasks", name).build({"los": "mse"}, SPECS[kind])
