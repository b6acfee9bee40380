"""The benchmarks' own arithmetic: spreads, verdicts, turns, the table. Nothing is timed here."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def module(name: str) -> ModuleType:
    return __import__(name)


def test_a_spread_has_numpys_percentiles() -> None:
    values = np.random.default_rng(0).random(23)
    found = module("_cells").spread(list(values))
    assert np.allclose([found.p10, found.median, found.p90], np.percentile(values, [10, 50, 90]), rtol=1e-15)


def test_a_cell_above_ten_percent_noise_is_void_and_no_target_is_met() -> None:
    cells = module("_cells")
    quiet, noisy = [1.0, 1.01, 1.02, 1.01, 1.0], [1.0, 1.0, 1.0, 1.3, 1.3]
    assert cells.ratio(1, "x", quiet, quiet, 1.05, "").verdict() == "met"
    assert cells.ratio(1, "x", quiet, [0.5 * v for v in quiet], 1.05, "").verdict() == "missed"
    void = cells.ratio(1, "x", quiet, noisy, 1.05, "")
    assert (void.verdict(), void.met) == ("void (noise)", None)
    assert "void" in void.line()


def test_counts_are_exact_and_never_void() -> None:
    cells = module("_cells")
    assert cells.value(3, "x", [0, 0, 0, 0, 1], 0, "", unit="count").void is False


def test_programs_take_turns_in_alternating_order_and_the_first_round_is_dropped() -> None:
    measure = module("_measure")
    order: list[str] = []

    def program(name: str) -> Any:
        def run() -> float:
            order.append(name)
            return float(len(order))

        return run

    found = measure.interleaved({"a": program("a"), "b": program("b")}, measure.Effort(repeats=4, budget_s=0))
    assert "".join(order) == "ab" + "abbaabbaab"  # five repeats at least, although four were asked for and time is up
    assert found["a"] == [3.0, 6.0, 7.0, 10.0, 11.0]


def test_every_row_of_the_runner_exists_and_rows_measured_again_replace_older_ones(tmp_path: Path) -> None:
    run = module("run")
    assert all((FOLDER / script).is_file() for script in run.ROWS.values())
    cells = module("_cells")
    older, newer = (cells.value(row, "x", [v] * 5, 1, "w", unit="s").to_json() for row, v in ((13, 0.5), (13, 0.1)))
    other = cells.value(17, "y", [2.0] * 5, 3, "w", unit="us").to_json()
    machine = {"date": "2026-01-01", "cpu": "c", "cores": 2, "python": "3", "torch": "2"}
    out = tmp_path / "r.json"
    run.save(out, [{"schema": "s", "machine": machine, "cells": [other, older]}])
    run.save(out, [{"schema": "s", "machine": machine, "cells": [newer]}])
    kept = json.loads(out.read_text())["cells"]
    assert [(cell["row"], cell["figure"]) for cell in kept] == [(13, 0.1), (17, 2.0)]
    table = module("report").table(kept)
    assert "| 13 | x | 0.1 s | – | 0.1 s | ≤ 1 | met | 0% | 5 |" in table
    assert "| 17 | y | 2 µs |" in table


def test_the_seam_leaves_the_data_set_as_it_was() -> None:
    runner = module("_runner")
    from mpt import registry
    from mpt.data import digits

    with runner.seam("digits", lambda source: source):
        assert registry.load("data", "digits") is not digits
    assert registry.load("data", "digits") is digits


def test_the_experts_loop_makes_the_weights_of_the_runners_step() -> None:
    """Same weights, batches, rates and kernels: the peer does the same training, so comparing times is fair."""
    import torch

    runner = module("_runner")
    steps = runner.Steps("model=mlp", "model.width=16", "device=cpu", "data.limit=256")
    expert = runner.expert(steps.of, 8)
    steps.run(8)
    expert.run(8)
    for ours, theirs in zip(steps.of.policy.weights, expert.model.parameters(), strict=True):
        assert (ours - theirs).abs().max() <= 8 * 16 * 2.0**-24 * (1 + theirs.abs().max())
        assert not torch.equal(theirs, torch.zeros_like(theirs))


def test_frameworks_get_the_experts_batches_and_those_that_are_missing_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    frameworks, peers = module("_frameworks"), module("_peers")
    table = peers.Table(torch.arange(12.0).view(6, 2), torch.arange(6), torch.tensor([[0, 3], [5, 1]]), False)
    batches = frameworks.Batches(table, block=2)
    given = list(batches)
    assert len(given) == len(batches) == frameworks.WARM + 3
    assert [targets.tolist() for _, targets in given[:3]] == [[0, 3], [5, 1], [0, 3]]
    assert torch.equal(given[1][0], table.inputs[[5, 1]])
    assert batches.stamps[1] > batches.stamps[0] > 0
    monkeypatch.setattr(frameworks, "find_spec", lambda name: None if name == "lightning" else object())
    assert frameworks.installed() == (["Accelerate", "HF Trainer", "timm's loop"], ["Fabric", "Lightning Trainer"])


def test_photographs_for_speed_compress_as_photographs_do(tmp_path: Path) -> None:
    """Files of ImageNet have 0.4 to 0.9 bytes a pixel at the usual qualities."""
    photos = module("_photos")
    root = photos.write_tree(tmp_path, [(256, 256)], each=1)
    sizes = [path.stat().st_size for path in (root / "train").glob("*/*.jpg")]
    assert len(sizes) == 2
    assert all(0.4 < size / 256**2 < 0.9 for size in sizes)
