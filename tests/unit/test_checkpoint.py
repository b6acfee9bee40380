"""Checkpoints: whole or not there, verified, never lost to a newer one that failed."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpt.checkpoint import CheckpointStore, find, half_weights, load, model_mismatch
from mpt.checkpoint.marker import MARKER, STATE
from mpt.errors import CheckpointError, ExitCode, RunFault


def state(n: int = 1) -> dict[str, Any]:
    return {
        "model": {"weight": torch.full((3, 4), float(n)), "half": torch.arange(5, dtype=torch.bfloat16)},
        "optimizer": {"state": {0: {"step": torch.tensor(float(n))}}, "groups": [{"lr": 0.1, "names": ("a", None)}]},
        "rng": torch.get_rng_state(),
        "n": n,
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints, with=odd ünames", keep=2)


def test_what_was_saved_is_loaded_with_every_type_and_dtype(store: CheckpointStore) -> None:
    path = store.save(state(), step=9, update=8)
    assert path.name == "update-000008"
    assert same(load(path), state())
    assert same(torch.load(path / STATE), state())


def test_loaded_tensors_can_be_changed_without_changing_the_file(store: CheckpointStore) -> None:
    path = store.save(state(), step=1, update=1)
    load(path)["model"]["weight"].add_(1)
    assert same(load(path), state())


def test_the_newest_and_the_best_are_kept(store: CheckpointStore) -> None:
    for n in (1, 2, 3, 4):
        store.save(state(n), step=n, update=n)
        if n == 1:
            store.mark_best(1)
    assert names(store.dir) == ["BEST", "update-000001", "update-000003", "update-000004"]
    assert store.best() == store.dir / "update-000001"
    store.mark_best(3)
    store.save(state(5), step=5, update=5)
    store.save(state(6), step=6, update=6)
    assert names(store.dir) == ["BEST", "update-000003", "update-000005", "update-000006"]


def test_an_update_saved_again_at_a_later_step_replaces_the_first(store: CheckpointStore) -> None:
    store.save(state(1), step=5, update=4)
    store.mark_best(4)
    path = store.save(state(2), step=7, update=4)
    assert names(store.dir) == ["BEST", "update-000004"]
    assert load(path)["n"] == 2
    assert store.best() == path


def test_a_kill_between_the_two_renames_of_a_replacement_loses_nothing(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(state(1), step=5, update=4)
    rename = Path.rename

    def dies(self: Path, target: Path) -> Path:
        if self.name.endswith(".tmp"):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", dies)
    with pytest.raises(KeyboardInterrupt):
        store.save(state(2), step=7, update=4)
    monkeypatch.undo()
    assert load(store.dir)["n"] == 1
    store.save(state(3), step=8, update=4)
    assert names(store.dir) == ["update-000004"]
    assert load(store.dir)["n"] == 3


def test_checkpoints_of_a_course_that_was_left_go_with_the_next_save(store: CheckpointStore) -> None:
    for n in (1, 2, 3):
        store.save(state(n), step=n * 10, update=n * 10)
    store.save(state(4), step=25, update=24)
    assert names(store.dir) == ["update-000020", "update-000024"]


def test_checkpoints_that_a_rollback_may_choose_are_kept_beside_the_newest(store: CheckpointStore) -> None:
    for n in (1, 2, 3, 4, 5):
        store.save(state(n), step=10 * n, update=n, keeping=[10, 20] if n > 2 else [])
    assert names(store.dir) == [f"update-{n:06d}" for n in (1, 2, 4, 5)]
    assert store.of_steps([30, 20, 10]) == store.dir / "update-000002"
    (store.dir / "update-000002" / STATE).write_bytes(b"damaged")
    assert store.of_steps([30, 20, 10]) == store.dir / "update-000001"
    assert store.of_steps([30]) is None
    assert store.forget_after(20) == ["update-000005", "update-000004"]
    assert store.holds(1)
    assert not store.holds(5)


@pytest.mark.parametrize("damage", ["truncate", "flip", "grow", "no state", "no marker", "marker"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(store: CheckpointStore, damage: str) -> None:
    good = store.save(state(1), step=1, update=1)
    bad = store.save(state(2), step=2, update=2)
    data = bytearray((bad / STATE).read_bytes())
    if damage == "no state":
        (bad / STATE).unlink()
    elif damage == "no marker":
        (bad / MARKER).unlink()
    elif damage == "marker":
        (bad / MARKER).write_text((bad / MARKER).read_text().replace('"step": 2', '"step": 3'))
    else:
        data[len(data) // 2] ^= damage == "flip"
        (bad / STATE).write_bytes({"truncate": data[:-1], "flip": data, "grow": data + b"x"}[damage])
    newest, rejected = store.newest_valid()
    assert newest == good
    assert [path for path, _ in rejected] == [bad]
    assert STATE in rejected[0][1] or MARKER in rejected[0][1]
    with pytest.raises(CheckpointError, match="update-000002"):
        load(bad)
    assert load(store.dir)["n"] == 1


def test_a_newer_schema_is_refused_with_its_name(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from mpt.checkpoint import store as module

    class Newer(module.Marker):
        def dumps(self) -> str:
            object.__setattr__(self, "schema", "mpt.checkpoint/3")
            return super().dumps()

    monkeypatch.setattr(module, "Marker", Newer)
    path = store.save(state(), step=1, update=1)
    with pytest.raises(CheckpointError, match=r"schema mpt\.checkpoint/3, this version reads .*mpt\.checkpoint/2"):
        load(path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return CheckpointStore(tmp_path_factory.mktemp("fuzz"), keep=1).save(state(), step=1, update=1)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_that_were_flipped_or_cut_never_load_and_never_give_another_error(
    saved: Path, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([STATE, MARKER]))
    whole = (saved / name).read_bytes()
    if data.draw(st.booleans()):
        broken = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
        broken = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
    try:
        (saved / name).write_bytes(broken)
        with pytest.raises(CheckpointError):
            load(saved)
    finally:
        (saved / name).write_bytes(whole)


def test_a_state_file_that_runs_code_is_refused_even_with_a_right_checksum(store: CheckpointStore) -> None:
    from mpt.checkpoint.marker import Marker, digest

    path = store.save(state(), step=1, update=1)
    torch.save({"x": CheckpointStore(store.dir, 1)}, path / STATE)
    size = (path / STATE).stat().st_size
    (path / MARKER).write_text(Marker(1, 1, size, digest(path / STATE)).dumps())
    with pytest.raises(CheckpointError, match=r"state\.pt can't be loaded"):
        load(path)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_save_that_fails_is_a_fault_that_keeps_the_older_and_leaves_nothing_behind(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    store.save(state(1), step=1, update=1)

    def fails(fd: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(RunFault, match=os.strerror(error)) as caught:
        store.save(state(2), step=2, update=2)
    monkeypatch.undo()
    assert caught.value.exit_code == ExitCode.FAULT
    assert "update-000002" in caught.value.problems[0].where
    assert names(store.dir) == ["update-000001"]
    assert load(store.dir)["n"] == 1


def test_a_disk_that_fills_up_while_torch_writes_is_told_as_such(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(state(1), step=1, update=1)
    real = Path.open

    def opens(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return open("/dev/full", mode) if self.name == STATE and "w" in mode else real(self, mode, *args, **kwargs)

    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    monkeypatch.setattr(Path, "open", opens)
    with pytest.raises(RunFault, match="No space left on device"):
        store.save(state(2), step=2, update=2)
    monkeypatch.undo()
    assert names(store.dir) == ["update-000001"]


def test_too_little_space_is_told_before_anything_is_written(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 10**6, 10**6))
    with pytest.raises(RunFault, match="1 MB are free"):
        store.save(state(), step=1, update=1)
    assert names(store.dir) == []


def test_what_a_killed_save_left_is_swept_up_by_the_next(store: CheckpointStore) -> None:
    left = store.dir / ".update-000001.tmp"
    left.mkdir(parents=True)
    (left / STATE).write_bytes(b"half")
    assert store.newest_valid() == (None, [])
    store.save(state(2), step=2, update=2)
    assert names(store.dir) == ["update-000002"]


def test_state_that_default_torch_load_would_refuse_is_not_saved(store: CheckpointStore) -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"state\.rng\.0\. is a ndarray|state\.rng\[0\] is a ndarray"):
        store.save({"rng": [numpy.zeros(3)]}, step=1, update=1)
    with pytest.raises(TypeError, match="Path"):
        store.save({"where": store.dir}, step=1, update=1)
    assert not store.dir.exists()


def test_find_takes_a_run_a_folder_of_checkpoints_one_of_them_and_its_file(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run" / "checkpoints", keep=2)
    store.save(state(1), step=1, update=1)
    newest = store.save(state(2), step=2, update=2)
    for path in (tmp_path / "run", store.dir, newest, newest / STATE):
        assert find(path) == newest
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "run")
    assert load(link)["n"] == 2


def test_find_says_what_it_wants_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        find(tmp_path)
    with pytest.raises(CheckpointError, match="no such file or folder"):
        find(tmp_path / "nowhere")
    (tmp_path / "model.pt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"model\.pt"):
        find(tmp_path / "model.pt")


def test_a_checkpoint_of_another_model_is_told_by_names_and_shapes() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    own = model.state_dict()
    assert model_mismatch(own, model, "c") == []
    other = {name: own[name] for name in own if name != "0.bias"}
    other["1.weight"] = torch.zeros(7)
    other |= {f"extra{i}": torch.zeros(()) for i in range(8)}
    missing, extra, wrong = model_mismatch(other, model, "some/checkpoint")
    assert missing.where == "some/checkpoint"
    assert "0.bias 4" in missing.what
    assert extra.what.endswith("; and 3 more")
    assert extra.what.count("extra") == 5
    assert "1.weight is 7, the model's 4" in wrong.what
    assert "model=" in missing.hint


def test_shapes_alone_are_enough_to_compare() -> None:
    model = torch.nn.Linear(3, 4)
    assert model_mismatch({"weight": (4, 3), "bias": [4]}, model, "c") == []
    (problem,) = model_mismatch({"weight": (5, 3), "bias": (5,)}, model, "c")
    assert "weight is 5×3, the model's 4×3" in problem.what


def test_weights_in_16_bits_are_noticed() -> None:
    tensors = {"a": torch.zeros(1), "b": torch.zeros(1).half(), "c": torch.zeros(1).bfloat16(), "n": torch.tensor(1)}
    assert half_weights(tensors) == ["b", "c"]


_KILLS = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from mpt.checkpoint import CheckpointStore, load

store, rng, last = CheckpointStore(Path(sys.argv[1]), keep=2), random.Random(0), 0
for round in range(100):
    if round >= 15 and last > 0:
        break
    child = os.fork()
    if child == 0:
        for n in range(last + 1, last + 1000):
            store.save({"w": torch.full((50_000,), float(n)), "n": n}, step=n, update=n - n % 2)
            if n % 5 == 0:
                store.mark_best(n - n % 2)
    time.sleep(rng.uniform(0.0, 0.06 * (1 + round // 15)))  # longer where a busy machine saves nothing in that time
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    newest, rejected = store.newest_valid()
    assert rejected == [], rejected
    if newest is None:
        assert last == 0
        continue
    state = load(newest)
    assert state["n"] >= last and bool((state["w"] == state["n"]).all())
    last = state["n"]
assert last > 0
print("survived", last)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")
def test_a_kill_at_any_moment_of_a_save_loses_no_checkpoint(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", _KILLS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120)
    assert done.stdout.startswith("survived"), done.stderr
