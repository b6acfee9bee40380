"""What the tensors of a run look like, step by step: recorded right, without a change to the run."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mpt.build import build
from mpt.checkpoint import load
from mpt.config.compose import compose
from mpt.formats.exponents import exponents
from mpt.record.numerics import GRADIENTS, OUTPUT_GRADIENTS, ROLES, WEIGHTS, numerics_of
from mpt.record.reader import dumps, read_run
from mpt.train.engine import make_engine
from mpt.train.numerics import NoNumerics, Numerics, observer
from mpt.train.rounded import MANTISSAS, RoundedProducts
from mpt.types import StepRow
from tests.e2e._cli import lines
from tests.e2e._run import TINY, Done
from tests.unit._step_kit import Reads

SHORT = (*TINY, "trainer.max_steps=12", "trainer.log_every=5", "trainer.eval_every=0", "checkpoint.every=6")


def weights(folder: Path) -> list[torch.Tensor]:
    return list(load(folder / "checkpoints/update-000012")["model"].values())


def row(step: int, scale: float = 1.0, norm: float = 1.0, *, applied: bool = True) -> StepRow:
    return StepRow(step, step, applied, 1.0, 1e-3, norm, scale, 16, 0.1, 0.0)


class Kit:
    """A run's stepper and what looks at it."""

    def __init__(self, *words: str) -> None:
        self.run = build(compose([*TINY, "trainer.max_steps=20", *words]))
        engine = make_engine(self.run)
        self.step, self.observer = engine.stepper, observer(self.run, engine.buffers)
        self._batches = self.run.data.train(start=0)

    def look(self, step: int = 1) -> Any:
        micro = self.run.cfg.trainer.accumulate
        return self.step(self.observer.watch(step, [next(self._batches) for _ in range(micro)]))

    def told(self, given: StepRow) -> dict[str, Any]:
        (found,) = self.observer.rows([given])
        return json.loads(dumps(found))


WORDS = [
    ("precision=fp32",),
    ("precision=fp16", "trainer.accumulate=2", "model.dropout=0.1"),
    ("precision=fp16", "scaling=per_layer"),
    ("precision=fp8_delayed", "model.width=32"),
    ("precision=bf16_true",),
]


@pytest.mark.parametrize("words", WORDS)
def test_a_run_that_is_looked_at_has_the_same_numbers(words: tuple[str, ...], tmp_path: Path) -> None:
    Done(tmp_path / "off", *SHORT, *words)
    Done(tmp_path / "full", *SHORT, *words, "numerics=full", "numerics_every=3")
    off, full = weights(tmp_path / "off"), weights(tmp_path / "full")
    assert all(torch.equal(a, b) for a, b in zip(off, full, strict=True))
    assert [r["loss"] for r in lines(tmp_path / "off/steps.jsonl")] == [
        r["loss"] for r in lines(tmp_path / "full/steps.jsonl")
    ]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method")  # of torch 2.11's compiler as it is loaded
def test_a_compiled_run_is_looked_at_beside_its_graph_and_has_the_same_numbers(tmp_path: Path) -> None:
    words = (*TINY, "trainer.max_steps=4", "model=mlp", "trainer.compile=true", "trainer.eval_every=0")
    Done(tmp_path / "off", *words)
    Done(tmp_path / "full", *words, "numerics=full", "numerics_every=2")
    a, b = (load(tmp_path / n / "checkpoints/update-000004")["model"] for n in ("off", "full"))
    assert all(torch.equal(a[k], b[k]) for k in a)
    looks = lines(tmp_path / "full/numerics.jsonl")
    assert [look["step"] for look in looks] == [1, 2, 4]
    assert looks[1]["activations"].keys()
    assert looks[1]["gradients"].keys()
    assert (looks[1]["output_gradients"], "compiled" in looks[1]["output_gradients_reason"]) == (None, True)


def test_steps_are_the_first_and_every_nth_and_strictly_increase(tmp_path: Path) -> None:
    run = Done(tmp_path / "r", *SHORT, "numerics=light", "numerics_every=4")
    assert [look["step"] for look in lines(run.folder / "numerics.jsonl")] == [1, 4, 8, 12]
    assert (run.folder / "numerics.jsonl").read_text().splitlines()[0] == '{"schema": "mpt.numerics/1"}'


def test_a_run_that_goes_on_has_the_looks_of_one_that_never_stopped(tmp_path: Path) -> None:
    words = (*SHORT, "numerics=full", "numerics_every=4")
    whole = Done(tmp_path / "whole", *words)
    Done(tmp_path / "other", *words, f"resume={whole.folder}/checkpoints/update-000006")
    shutil.copytree(whole.folder, tmp_path / "broken")
    (tmp_path / "broken/DONE").unlink()
    shutil.rmtree(tmp_path / "broken/checkpoints/update-000012")
    with (tmp_path / "broken/numerics.jsonl").open("a") as file:
        file.write('{"step": 99, "torn')
    Done(tmp_path / "broken", *words, "resume=auto")
    for name in ("other", "broken"):
        assert lines(tmp_path / name / "numerics.jsonl") == lines(whole.folder / "numerics.jsonl")


@pytest.mark.parametrize("level", ["light", "full"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp16_master"])
def test_a_step_that_is_looked_at_reads_nothing_on_the_host(level: str, precision: str) -> None:
    kit = Kit(f"precision={precision}", f"numerics={level}", "trainer.accumulate=2")
    kit.look(2)
    with Reads() as reads:
        kit.look(50)
    assert reads.count == 0


def test_hooks_are_there_at_the_steps_that_are_looked_at_only() -> None:
    kit = Kit("numerics=full")
    kit.look(1)
    assert not any(m._forward_hooks for m in kit.run.model.modules())
    assert len(kit.told(row(1))["activations"]) > 5
    kit.look(2)
    assert kit.observer.rows([row(2)]) == []


def test_gradients_are_those_of_the_whole_update_scaled_and_their_scale_is_beside_them() -> None:
    plain = Kit("numerics=full")
    plain.look()
    scaled = Kit("numerics=full")
    scaled.run.scaler.active = True
    scaled.run.scaler.scale.fill_(2.0**7)
    scaled.look()
    a, b = numerics_of([plain.told(row(1))]).looks[0], numerics_of([scaled.told(row(1, 2.0**7))]).looks[0]
    assert b.scale_of(GRADIENTS) == 2.0**7
    assert a.of(GRADIENTS).keys() == dict(plain.run.model.named_parameters()).keys()
    for role in (GRADIENTS, OUTPUT_GRADIENTS):
        for name, stat in a.of(role).items():
            assert b.of(role)[name].counts[7:].tolist() == stat.counts[:-7].tolist(), (role, name)
    assert a.of(WEIGHTS).keys() == a.of(GRADIENTS).keys()


def test_weights_and_activations_are_counted_as_they_are() -> None:
    kit = Kit("numerics=full")
    seen: dict[str, torch.Tensor] = {}
    name, module = next((n, m) for n, m in kit.run.model.named_modules() if isinstance(m, nn.Conv2d))
    handle = module.register_forward_hook(lambda m, i, out: seen.update({"out": out.detach().clone()}))
    want = exponents(module.weight).tolist()
    kit.look()
    handle.remove()
    told = kit.told(row(1))
    stat = told["weights"][f"{name}.weight"]
    assert stat["counts"] == want[stat["low"] + 127 :][: len(stat["counts"])]
    out = told["activations"][name]
    assert out["n"] == seen["out"].numel()
    assert out["amax"] == float(seen["out"].abs().max())
    assert sum(out["counts"]) + out["zero"] == out["n"]


def test_light_counts_a_sample_and_tells_of_how_many() -> None:
    kit = Kit("numerics=light", "model.width=64")
    kit.look()
    told = kit.told(row(1))
    assert set(told) & set(ROLES) == {"activations", "gradients"}
    sampled = [s for s in told["gradients"].values() if "size" in s]
    assert sampled
    assert all(s["n"] <= 4096 < s["size"] for s in sampled)


def test_a_non_finite_gradient_is_counted_and_has_no_largest() -> None:
    kit = Kit("numerics=full")
    weight = next(p for n, p in kit.run.model.named_parameters() if p.dim() == 4)
    weight.register_hook(lambda g: torch.where(torch.arange(g.numel()).view(g.shape) < 3, math.inf, g))
    kit.look()
    stat = next(s for s in kit.told(row(1, applied=False))["gradients"].values() if s["nonfinite"])
    assert (stat["nonfinite"], stat["amax"]) == (3, None)


def test_the_noise_of_a_gradient_compares_one_micro_batch_with_all() -> None:
    kit = Kit("numerics=light", "trainer.accumulate=4", "model.dropout=0")
    batches = [next(kit._batches) for _ in range(4)]
    attempt = kit.step(kit.observer.watch(1, batches))
    noise = kit.told(row(1, norm=float(attempt.norm)))["noise"]
    alone = Kit("numerics=off", "model.dropout=0").step([batches[0]])
    assert noise["small_sq"] == pytest.approx(float(alone.norm) ** 2, rel=1e-4)
    assert noise["big_sq"] == pytest.approx(float(attempt.norm) ** 2)
    assert (noise["small"], noise["big"]) == (16, 16)  # the row's samples


def test_noise_that_was_not_measured_says_why() -> None:
    kit = Kit("numerics=light")
    kit.look()
    assert "accumulate" in kit.told(row(1))["noise_reason"]
    kit = Kit("numerics=light", "trainer.accumulate=2")
    kit.look()
    assert "skipped" in kit.told(row(1, applied=False))["noise_reason"]


def test_rounded_products_of_random_operands_have_the_sqnr_of_their_mantissas() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 256))
    products = RoundedProducts(model)
    products.keep("0", model[0], (torch.randn(64, 512),))
    products.measure()
    found = products.read()["0"]
    for bits in MANTISSAS:  # errors of ulp² / 12 against numbers with evenly spread logarithms, twice
        one = 10 * math.log10(12 * 4**bits * 1.5 / math.log(2))
        assert found[str(bits)] == pytest.approx(one - 10 * math.log10(2), abs=1.5)


def test_a_product_that_cancels_loses_more() -> None:
    x = torch.randn(64, 64)
    model = nn.Linear(128, 64, bias=False)
    with torch.no_grad():
        model.weight[:, 64:] = -model.weight[:, :64] * (1 + 1e-3 * torch.randn(64, 64))
    products = RoundedProducts(model)
    products.keep("", model, (torch.cat([x, x], 1),))
    products.measure()
    assert products.read()[""]["3"] < 10


def test_looks_grow_rarer_in_long_runs() -> None:
    run = build(compose([*TINY, "trainer.max_steps=40000", "numerics=light"]))
    found = observer(run, make_engine(run).buffers)
    assert isinstance(found, Numerics)
    assert found._every == 200
    assert isinstance(observer(build(compose([*TINY])), make_engine(run).buffers), NoNumerics)


def test_damaged_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    run = Done(tmp_path / "r", *SHORT, "numerics=light", "numerics_every=6")
    path = run.folder / "numerics.jsonl"
    text = path.read_text().splitlines()
    path.write_text("\n".join([text[0], text[1], '{"step": 2}', "no json", text[1], text[2], text[3][:50]]))
    found = read_run(run.folder).numerics
    assert [look.step for look in found.looks] == [1, 6]
    assert found.bad >= 3


def test_a_run_without_looks_has_none(tmp_path: Path) -> None:
    run = Done(tmp_path / "r", *SHORT)
    assert read_run(run.folder).numerics.looks == ()
    assert (run.folder / "numerics.jsonl").read_text() == '{"schema": "mpt.numerics/1"}\n'


def test_an_attempt_that_is_made_anew_is_looked_at_once_and_leaves_no_hook() -> None:
    kit = Kit("numerics=full")
    last = list(kit.run.model.modules())[-1]
    handle = last.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
    with pytest.raises(RuntimeError, match="out of memory"):
        kit.look(1)
    handle.remove()
    assert not any(m._forward_hooks for m in kit.run.model.modules())
    kit.look(1)
    told = kit.told(row(1))
    assert all(s["n"] <= s.get("size", s["n"]) for s in told["activations"].values())
    again = Kit("numerics=full")
    again.look(1)
    assert told["activations"].keys() == again.told(row(1))["activations"].keys()
