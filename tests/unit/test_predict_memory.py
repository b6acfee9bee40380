"""Predicted memory: against a run's own measurement, against hand-worked sizes, and by batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mpt.build import make_plan
from mpt.config.compose import compose
from mpt.formats.hadamard import hadamard_matrix
from mpt.formats.operand import Operand
from mpt.formats.quantise import quantise
from mpt.predict.fake import TooLarge, trace
from mpt.predict.fits import within
from mpt.predict.memory import blocks, curve, for_device, memory, scaling
from mpt.predict.operands import Call, TensorSpec
from mpt.predict.repeats import repeated
from mpt.predict.trace import Storage, Trace
from mpt.predict.tracker import OUTSIDE, Tracker, Untraceable
from mpt.types import DeviceFacts
from tests.e2e._run import Done

TINY = {
    "small_cnn": ["data.limit=256"],
    "mlp": ["model=mlp", "data.limit=256"],
    "gpt": ["model=gpt", "model.layers=1", "model.width=32", "data=shakespeare", "data.batch_size=4", "data.limit=32"],
}


def run(folder: Path, *words: str) -> Done:
    return Done(folder / "run", *words, "trainer.max_steps=3", "trainer.predict=true", "device=cpu")


@pytest.mark.parametrize("net", TINY)
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp16_master", "bf16_split", "nvfp4"])
def test_a_runs_predicted_peak_is_the_measured_one(net: str, precision: str, tmp_path: Path) -> None:
    found = run(tmp_path, *TINY[net], f"precision={precision}").summary["memory"]
    assert found["predicted_peak_bytes"] == pytest.approx(found["peak_bytes"], rel=0.005)


@pytest.mark.parametrize(
    "words",
    [
        ["optimizer=sgd", "optimizer.momentum=0"],
        ["optimizer=rmsprop"],
        ["optimizer=adagrad", "trainer.clip_norm=1"],
        ["trainer.accumulate=3", "trainer.ema_decay=0.9"],
        ["trainer.channels_last=false", "precision=fp16", "trainer.accumulate=2"],
        ["optimizer.fused=false", "precision=bf16_true"],
    ],
    ids=" ".join,
)
def test_optimizers_accumulation_and_averages_are_predicted_too(words: list[str], tmp_path: Path) -> None:
    found = run(tmp_path, *TINY["small_cnn"], *words).summary["memory"]
    assert found["predicted_peak_bytes"] == pytest.approx(found["peak_bytes"], rel=0.005)


@pytest.mark.parametrize(
    ("words", "copied"),
    [
        (["trainer.eval_every=3", "checkpoint.every=3"], False),
        (["trainer.eval_every=1", "checkpoint.every=9"], True),
        (["trainer.eval_every=1", "checkpoint.every=0"], False),
        (["trainer.eval_every=0", "checkpoint.every=9"], False),
        (["trainer.eval_every=0", "checkpoint.every=9", "guard.spike=rollback"], True),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else str(x),
)
def test_the_copy_that_a_save_beside_steps_takes_is_predicted_where_there_is_one(
    words: list[str], copied: bool, tmp_path: Path
) -> None:
    found = run(tmp_path, *TINY["mlp"], "data.batch_size=64", *words).summary["memory"]
    assert bool(found["snapshot_bytes"]) is copied
    # What a checkpoint holds besides tensors of the model are states of random generators: 15 kB.
    assert found["predicted_peak_bytes"] == pytest.approx(found["peak_bytes"], abs=2**14)


def test_skipped_steps_hold_no_more_than_is_predicted(tmp_path: Path) -> None:
    words = ("precision=fp16", "scaling.init_scale=1e30", "scaling.max_scale=1e30", "guard.skips=off")
    done = Done(tmp_path / "run", *TINY["mlp"], *words, "trainer.max_steps=3", "trainer.predict=true", code=3)
    found = done.summary["memory"]
    assert done.summary["skipped"] == 3
    assert found["predicted_peak_bytes"] == pytest.approx(found["peak_bytes"], rel=0.005)


def test_a_short_run_says_why_it_has_no_prediction(tmp_path: Path) -> None:
    found = Done(tmp_path / "run", "trainer.max_steps=1", *TINY["mlp"]).summary["memory"]
    assert found["predicted_peak_bytes"] is None
    assert "less than 60 s" in found["predicted_peak_bytes_reason"]


def of(*words: str, batch: int | None = None) -> Trace:
    cfg = compose([*words, "device=cpu"])
    return trace(cfg, make_plan(cfg), batch)


def test_the_categories_are_the_sizes_of_their_tensors() -> None:
    made = of(*TINY["mlp"], "precision=fp16_master", "trainer.ema_decay=0.9")
    cfg = compose([*TINY["mlp"], "device=cpu"])
    n = make_plan(cfg).params
    found = memory(made)
    assert sum(found.parts.values()) == found.peak_bytes
    assert made.lasting["parameters"] == 2 * n
    assert made.lasting["masters"] == 4 * n
    assert made.lasting["optimizer"] == 8 * n + 4  # two moments, and a counter
    assert made.lasting["ema"] == 4 * n
    assert sum(made.weights.values()) == pytest.approx((2 + 2 + 4 + 8) * n, rel=1e-4)
    gradients = sum(s.nbytes for s in made.storages if s.gradient)
    assert gradients == 2 * n + 4 * n  # of the weights, and the masters' own


def test_what_a_chain_keeps_for_its_backward_is_counted_by_module() -> None:
    # flatten, linear, tanh (8 wide), linear: only the tanh keeps a tensor of its own, which the last linear keeps too
    kept = memory(of("model=custom", "model.path=tests.contract._user_model:make", "data.batch_size=16")).kept
    assert kept.pop("2") == 16 * 8 * 4
    log_probabilities = 16 * 10 * 4
    assert log_probabilities <= kept.pop(OUTSIDE) <= log_probabilities + 3 * 4  # and scalars of the loss
    assert kept == {}


@pytest.mark.parametrize("net", TINY)
def test_a_line_through_two_batches_tells_the_peak_of_a_third(net: str) -> None:
    line = scaling(of(*TINY[net], batch=2), of(*TINY[net], batch=6))
    assert line is not None
    device = DeviceFacts("cuda", "x", "2", capability=(7, 0))
    direct = for_device(of(*TINY[net], batch=32), device)
    assert line.peak_bytes(32) + for_device(of(*TINY[net], batch=2), device).parts["workspace"] > direct.peak_bytes
    # what lasts is not rounded to blocks in the line: at most 511 bytes a category and storage
    assert abs(line.peak_bytes(32) - memory(of(*TINY[net], batch=32), blocks).peak_bytes) < 10 * 512


def test_the_largest_batch_is_the_last_one_that_fits() -> None:
    line = scaling(of(*TINY["mlp"], batch=2), of(*TINY["mlp"], batch=6))
    assert line is not None
    limit = line.peak_bytes(100)
    largest = line.largest(limit)
    assert line.peak_bytes(largest) <= limit < line.peak_bytes(largest + 1)
    assert line.largest(line.peak_bytes(1) - 1) == 0


def test_live_bytes_follow_the_events() -> None:
    sizes = np.array([10, 20, 5])
    assert curve([0, 1, ~0, 2, ~1, ~2], sizes).tolist() == [10, 30, 20, 25, 5, 0]
    storages = tuple(Storage(int(n), "m", "forward", False) for n in sizes)
    found = memory(Trace(1, 1, (), storages, (0, 1, ~0, 2, ~1, ~2), 2, {"parameters": 7}))
    assert (found.peak_bytes, found.parts) == (37, {"parameters": 7, "activations": 30})
    assert found.kept == {"m": 30}


def test_cudas_allocator_counts_in_blocks() -> None:
    assert [blocks(n) for n in (0, 1, 512, 513)] == [0, 512, 512, 1024]


def test_no_tensor_that_holds_nothing_stays_behind() -> None:
    before = torch.get_rng_state()
    of(*TINY["mlp"], "precision=nvfp4")
    assert type(hadamard_matrix(torch.device("cpu"))) is torch.Tensor
    assert torch.equal(before, torch.get_rng_state())


def test_a_model_that_reads_its_numbers_is_told_with_the_module_and_the_measured_way(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Inner(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        y = super().forward(x.flatten(1))\n"
        "        return y if y.sum() > 0 else -y\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.inner = Inner(64, 10)\n"
        "    def forward(self, x):\n"
        "        return self.inner(x)\n"
        "def build():\n"
        "    return Net()\n"
    )
    with pytest.raises(Untraceable, match="module `inner`: reads a tensor's value") as caught:
        of("model=custom", f"model.path={tmp_path / 'mine.py'}:build")
    assert "mpt bench" in caught.value.problems[0].hint


def net(folder: Path, layers: str) -> str:
    """`model.path=` of a model of those layers on digits."""
    file = folder / f"{folder.name}.py"  # modules of one name would be one
    file.write_text(f"from torch import nn\ndef make(**_):\n    return nn.Sequential({layers})\n")
    return f"model.path={file}:make"


def test_a_model_whose_modules_are_copies_of_each_other_is_traced(tmp_path: Path) -> None:
    layer = "nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)"
    made = of("model=custom", net(tmp_path, f"nn.Flatten(1, 2), {layer}, nn.Flatten(), nn.Linear(64, 10)"))
    assert made.lasting["parameters"] == 4 * (2 * (4 * (8 * 8 + 8) + 8 * 16 + 16 + 16 * 8 + 8 + 4 * 8) + 650)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adagrad", "rmsprop"])
def test_a_model_larger_than_this_machine_is_traced(optimizer: str, tmp_path: Path) -> None:
    n = 2**43  # float32 weights of 32 TiB: more than any machine's address space takes four times
    large = f"nn.Flatten(), nn.Linear(64, 10), nn.Unflatten(1, (10, 1)), nn.Linear(1, {n}, bias=False)"
    path = net(tmp_path, f"{large}, nn.AdaptiveAvgPool1d(1), nn.Flatten()")
    made = of("model=custom", path, f"optimizer={optimizer}", "data.batch_size=1")
    assert made.lasting["parameters"] == 4 * (n + 650)


def test_an_optimizer_that_decides_by_its_numbers_is_named() -> None:
    with pytest.raises(Untraceable, match="optimizer=lbfgs: decides by its numbers"):
        of(*TINY["mlp"], "optimizer=lbfgs")


def test_a_model_that_fails_leaves_no_log_of_torchs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Untraceable, match="63"):
        of("model=custom", net(tmp_path, "nn.Flatten(), nn.Linear(63, 10)"))
    assert not caplog.records


ALIKE = ["model=mlp", "model.depth=4", "model.width=64", "data.limit=256", "precision.min_weights=0"]


@pytest.mark.parametrize(
    "words",
    [
        [*TINY["gpt"], "precision=bf16_split"],
        [*TINY["gpt"], "precision=nvfp4"],
        [*ALIKE, "precision=mxfp8", "trainer.checkpoint_activations=['[35]']"],
        [*ALIKE, "precision=fp8", "precision.param=bfloat16"],
    ],
    ids=lambda words: " ".join(words[-2:]),
)
def test_what_is_noted_again_or_made_from_what_is_known_is_what_a_full_trace_finds(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpt.optim._windows.WINDOW", 1 << 11)
    words = [*words, "precision.moment=int8", "trainer.accumulate=2"]
    quick = of(*words)
    monkeypatch.setattr("mpt.predict.fake.spare_repeats", lambda *_: None)
    monkeypatch.setattr("mpt.predict.kinds._maker", lambda *_: None)
    full = of(*words)
    assert (quick.events, quick.storages, quick.turns) == (full.events, full.storages, full.turns)
    told = [[replace(op, signature=0) for op in made.ops] for made in (quick, full)]
    assert told[0] == told[1]
    for ours, theirs in zip(quick.ops, full.ops, strict=True):  # views tell of what they are: another weight
        if ours.kernel:
            assert operands(quick.calls[ours.signature]) == operands(full.calls[theirs.signature])


def test_operands_of_one_kind_are_rounded_once_in_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Operand] = []

    def counted(x: torch.Tensor, op: Operand, amax: torch.Tensor | None = None) -> torch.Tensor:
        calls.append(op)
        return quantise(x, op, amax)

    monkeypatch.setattr("mpt.predict.repeats.quantise", counted)
    counts = []
    for depth in (4, 12):
        calls.clear()
        of("model=mlp", f"model.depth={depth}", "model.width=64", "data.limit=64", "precision=mxfp8")
        counts.append(len(calls))
    assert counts[0] == counts[1] > 0


def test_a_step_whose_weights_are_too_much_is_not_traced() -> None:
    cfg = compose([*TINY["mlp"], "device=cpu"])
    plan = make_plan(cfg)
    kept = sum(trace(cfg, plan).lasting.values())
    assert trace(cfg, plan, at_most=kept).ops
    with pytest.raises(TooLarge, match="between steps"):
        trace(cfg, plan, at_most=kept - 1)


def test_a_step_fits_up_to_its_peak() -> None:
    cfg = compose([*TINY["mlp"], "device=cpu"])
    plan = make_plan(cfg)
    peak = memory(trace(cfg, plan, 1)).peak_bytes
    assert within(cfg, plan, 1, peak) == peak
    assert within(cfg, plan, 1, peak - 1) is None


def operands(call: Call) -> list[object]:
    return [leaf for leaf in call.leaves if isinstance(leaf, TensorSpec)]


def test_a_run_that_leaves_a_storage_behind_is_not_taken_for_another() -> None:
    tracker = Tracker(torch.nn.Identity(), tf32=False)
    tracker.phase = "update"
    kept: list[torch.Tensor] = []

    def run(size: int, *, keep: bool) -> None:
        made = torch.zeros(size)
        if keep:
            kept.append(made)

    drop = repeated(lambda size: run(size, keep=False), lambda size: size, tracker)
    hold = repeated(lambda size: run(size, keep=True), lambda size: size, tracker)
    with tracker:
        for _ in range(3):
            drop(5)
            hold(6)
    assert [tensor.numel() for tensor in kept] == [6, 6, 6]
    assert [s.nbytes for s in tracker.lifetimes.storages()] == 3 * [20, 24]
    assert tracker.lifetimes.order(tracker.forward_end) == (0, ~0, 1, 2, ~2, 3, 4, ~4, 5)
