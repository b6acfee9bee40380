"""Checkpoints from elsewhere that are whole by their marker and yet no run's: refused by part, never a bug."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mpt.checkpoint import CheckpointStore, load
from mpt.checkpoint.contents import PARTS
from mpt.checkpoint.marker import MARKER, STATE
from mpt.cli import main
from mpt.errors import ExitCode
from tests.e2e._run import TINY, Done

WORDS = (*TINY, "precision=fp16_master", "trainer.max_steps=6", "trainer.ema_decay=0.5")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return Done(tmp_path_factory.mktemp("run") / "r", *WORDS)


def seal(folder: Path, **over: object) -> None:
    """The marker says `over`, with a right checksum of itself."""
    found = json.loads((folder / MARKER).read_text().splitlines()[0]) | over
    body = json.dumps(found, sort_keys=True)
    (folder / MARKER).write_text(f"{body}\nsha256 {hashlib.sha256(body.encode()).hexdigest()}\n")


def ends(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What `mpt …` says, which is refused with a next move."""
    code = main([str(word) for word in words])
    told = capsys.readouterr().err
    assert code == ExitCode.REFUSED, told
    assert "hint: " in told
    assert "Traceback" not in told
    return told


def refused_everywhere(folder: Path, out: Path, capsys: pytest.CaptureFixture[str], part: str) -> None:
    for words in (("show", folder), ("lint", folder, "--precision", "fp16"), ("export", folder, out / "o")):
        assert part in ends(capsys, "checkpoint", *words)
    for verb in ("resume", "init_from"):
        assert part in ends(capsys, "train", *WORDS, f"run_dir={out / 'r'}", f"{verb}={folder}")
    assert not (out / "r").exists()


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_of_another_type_or_not_there_is_named(
    part: str, run: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for bad in ("x" if PARTS[part] is not str else 3, [3], None):
        if bad is None and part in ("trained", "place", "versions"):
            continue
        state = {**load(run.folder), part: bad}
        folder = CheckpointStore(tmp_path / f"{type(bad).__name__}/checkpoints", 1).save(state, step=6, update=6)
        assert f"`{part}` is {bad!r}" in ends(capsys, "checkpoint", "show", folder)
        ends(capsys, "train", *WORDS, f"run_dir={tmp_path / 'r'}", f"resume={folder}")
    state = {name: value for name, value in load(run.folder).items() if name != part}
    folder = CheckpointStore(tmp_path / "checkpoints", 1).save(state, step=6, update=6)
    refused_everywhere(folder, tmp_path, capsys, f"lacks `{part}`")


INSIDE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "weights that are numbers": ("model", lambda part: dict.fromkeys(part, 1)),
    "weights without names": ("model", lambda part: dict(enumerate(part.values()))),
    "complex weights": ("model", lambda part: {n: t.to(torch.complex64) for n, t in part.items()}),
    "masters that are none": ("policy", lambda part: {**part, "masters": 3}),
    "buffers of another model": ("buffers", lambda part: {**part, "flat": [torch.ones(7)]}),
    "no strategy": ("scaler", lambda part: {}),
    "a scale that is a word": ("scaler", lambda part: {**part, "state": "x"}),
    "moments of another model": ("optimizer", lambda part: {"state": 3}),
    "an average of nothing": ("ema", lambda part: {"average": 3}),
    "steps that are words": ("history", lambda part: {**part, "step": "6"}),
    "steps below 0": ("history", lambda part: {**part, "step": -6}),
    "no total time": ("clock", lambda part: {}),
    "no joules": ("energy", lambda part: {}),
    "a best that is a list": ("progress", lambda part: {**part, "best": [1]}),
    "no generator": ("rng", lambda part: {}),
    "a generator of another length": ("rng", lambda part: dict.fromkeys(part, torch.ones(2))),
    "settings that are no JSON": ("essence", lambda part: "{"),
    "settings that are a list": ("essence", lambda part: "[1]"),
}


@pytest.mark.parametrize(("part", "change"), INSIDE.values(), ids=INSIDE)
def test_a_part_with_something_else_inside_is_named(
    part: str, change: Callable[[Any], Any], run: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = load(run.folder)
    folder = CheckpointStore(tmp_path / "checkpoints", 1).save({**state, part: change(state[part])}, step=6, update=6)
    told = ends(capsys, "train", *WORDS, f"run_dir={tmp_path / 'r'}", f"resume={folder}")
    assert part in told
    assert not (tmp_path / "r").exists()


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "a marker that is a pipe": lambda folder: fifo(folder / MARKER),
    "a marker without an end": lambda folder: endless(folder / MARKER),
    "a marker of 20 GB": lambda folder: os.truncate(folder / MARKER, 20 << 30),
    "a state that is a pipe": lambda folder: (seal(folder, state_bytes=0), fifo(folder / STATE)),
    "a state without an end": lambda folder: (seal(folder, state_bytes=0), endless(folder / STATE)),
    "a step that is a word": lambda folder: seal(folder, step="6"),
    "a step that is a list": lambda folder: seal(folder, step=[6]),
    "a step below 0": lambda folder: seal(folder, step=-1),
    "a schema that is a list": lambda folder: seal(folder, schema=["mpt.checkpoint/2"]),
}


@pytest.mark.parametrize("damage", UNREADABLE.values(), ids=UNREADABLE)
def test_what_never_ends_or_makes_no_sense_is_passed_over(damage: Callable[[Path], object], tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=3)
    good = store.save({"n": 1}, step=3, update=3)
    bad = store.save({"n": 2}, step=6, update=6)
    damage(bad)
    newest, rejected = store.newest_valid()
    assert newest == good
    assert [path for path, _ in rejected] == [bad]
    store.save({"n": 3}, step=6, update=6)
    assert load(store.dir)["n"] == 3


def test_links_among_checkpoints_are_pruned_and_what_they_point_to_stays(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=1)
    store.save({"n": 1}, step=1, update=1).rename(tmp_path / "elsewhere")
    link = store.dir / "update-000001"
    link.symlink_to(tmp_path / "elsewhere")
    (store.dir / ".update-000007.tmp").symlink_to(tmp_path / "elsewhere")
    (store.dir / "update-000002").symlink_to(tmp_path / "nowhere")
    os.mkfifo(store.dir / "BEST")
    store.save({"n": 2}, step=2, update=2)
    assert sorted(p.name for p in store.dir.iterdir()) == ["BEST", "update-000002"]
    assert load(tmp_path / "elsewhere")["n"] == 1


def test_an_export_to_where_nothing_can_be_written_is_refused(
    run: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no folder" in ends(capsys, "checkpoint", "export", run.folder, tmp_path / "none/o.safetensors")
    assert "can't be written" in ends(capsys, "checkpoint", "export", run.folder, tmp_path / ("o" * 300))
