"""Weights in files of other programs start a run, whatever wrappers left in their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mpt.checkpoint.foreign import NESTED, WRAPPERS, read_weights
from mpt.errors import CheckpointError
from tests.e2e._run import TINY, Done


class Net(nn.Module):
    """A norm, and a head that is tied to the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.body[0].weight


@pytest.fixture
def net() -> Net:
    torch.manual_seed(1)
    return Net()


def renamed(net: nn.Module, before: str, inside: str = "") -> dict[str, Tensor]:
    return {before + name.replace("body.", f"body.{inside}"): t.clone() for name, t in net.state_dict().items()}


def assert_read(path: Path, net: nn.Module) -> list[str]:
    got, told = read_weights(path, net)
    want = net.state_dict()
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)
    return told


@pytest.mark.parametrize("key", ["", *NESTED])
@pytest.mark.parametrize("before", ["", *WRAPPERS, "module._orig_mod.", "_orig_mod.module.", "model._orig_mod."])
def test_nested_and_wrapped_state_dicts_are_the_models_own(key: str, before: str, net: Net, tmp_path: Path) -> None:
    held: dict[str, Any] = renamed(net, before)
    torch.save({key: held, "epoch": 3, "optimizer": {"lr": 0.1}} if key else held, tmp_path / "w.pt")
    told = assert_read(tmp_path / "w.pt", net)
    assert bool(told) == bool(key or before)
    assert all(piece in " ".join(told) for piece in (key, before))


def test_pieces_inside_of_names_go_too(net: Net, tmp_path: Path) -> None:
    torch.save(renamed(net, "module.", "_orig_mod."), tmp_path / "w.pt")
    assert_read(tmp_path / "w.pt", net)


def test_a_models_own_names_that_look_like_a_wrappers_stay(tmp_path: Path) -> None:
    held = nn.ModuleDict({"model": nn.Linear(2, 2), "module": nn.Linear(2, 2)})
    torch.save(held.state_dict(), tmp_path / "w.pt")
    assert assert_read(tmp_path / "w.pt", held) == []
    only = nn.ModuleDict({"model": nn.Linear(2, 2)})
    torch.save(only.state_dict(), tmp_path / "v.pt")
    assert assert_read(tmp_path / "v.pt", only) == []


def test_tied_names_and_counts_of_batches_may_be_left_out(net: Net, tmp_path: Path) -> None:
    held = renamed(net, "")
    del held["head.weight"], held["body.1.num_batches_tracked"]
    torch.save(held, tmp_path / "w.pt")
    assert_read(tmp_path / "w.pt", net)


def test_safetensors_are_read(net: Net, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file(renamed(net, "module."), tmp_path / "w.safetensors")
    assert_read(tmp_path / "w.safetensors", net)


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (nn.Linear(2, 2), "could run code"),
        (torch.zeros(3), "holds no weights by name, but a Tensor"),
        ({"epoch": 3}, "holds no weights by name, but epoch"),
        ({}, "holds no weights by name, but nothing"),
        (b"hello world", "is damaged, or no file that torch.save wrote"),
        (b"", "is damaged, or no file that torch.save wrote"),
        (b'{"loss": 1}', "is damaged, or no file that torch.save wrote"),
    ],
)
def test_a_file_without_weights_is_refused_by_what_it_holds(held: Any, told: str, net: Net, tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    path.write_bytes(held) if isinstance(held, bytes) else torch.save(held, path)
    with pytest.raises(CheckpointError, match=told):
        read_weights(path, net)


def test_a_damaged_safetensors_file_is_refused(net: Net, tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"no such thing")
    with pytest.raises(CheckpointError, match="can't be read"):
        read_weights(tmp_path / "w.safetensors", net)


def test_a10_a_run_starts_from_half_weights_of_another_program_in_float32(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*TINY, "model=mlp", "trainer.max_steps=1", "optimizer.lr=1e-12", "precision=fp16")
    first = Done(tmp_path / "a", *words)
    state = torch.load(first.folder / "checkpoints" / "update-000001" / "state.pt")
    torch.save({"state_dict": {f"module.{k}": v.half() for k, v in state["model"].items()}}, tmp_path / "w.ckpt")
    second = Done(tmp_path / "b", *words, f"init_from={tmp_path / 'w.ckpt'}")
    told = capsys.readouterr().err
    assert "weights lie under `state_dict`" in told
    assert "`module.` is no part of the names" in told
    assert "6 tensors were saved in 16 bits and are float32 weights now" in told
    assert second.evals[-1]["loss"] == pytest.approx(first.evals[-1]["loss"], rel=2**-10)


def test_weights_that_are_no_numbers_start_and_continue_nothing(tmp_path: Path) -> None:
    words = (*TINY, "model=mlp", "trainer.max_steps=1")
    model = torch.load(Done(tmp_path / "a", *words).folder / "checkpoints" / "update-000001" / "state.pt")["model"]
    model["1.weight"][0, 0] = float("nan")
    torch.save(model, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"NaN or infinity in 1 of 6 weights: 1.weight\n.*earlier checkpoint"):
        Done(tmp_path / "b", *words, f"init_from={tmp_path / 'w.pt'}")
    assert not (tmp_path / "b").exists()


def test_a_run_is_not_resumed_from_weights_alone_nor_from_a_run_that_saved_nothing(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"is a file, and no checkpoint of a run\n.*init_from="):
        Done(tmp_path / "b", *TINY, f"resume={tmp_path / 'w.pt'}")
    unsaved = Done(tmp_path / "a", *TINY, "trainer.max_steps=1").folder
    for path in (unsaved / "checkpoints").glob("update-*"):
        path.rename(tmp_path / path.name)
    with pytest.raises(CheckpointError, match="is a run that saved no checkpoint"):
        Done(tmp_path / "b", *TINY, f"resume={unsaved}")


def test_a_wrapped_model_takes_the_weights_of_what_is_inside(net: Net, tmp_path: Path) -> None:
    torch.save(renamed(net, ""), tmp_path / "w.pt")
    wrapped = nn.Sequential()
    wrapped.add_module("model", net)
    assert assert_read(tmp_path / "w.pt", wrapped) == [
        "`model.` is part of this model's names: put before those of the file"
    ]
