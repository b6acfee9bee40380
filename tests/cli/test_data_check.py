"""`mpt data check`: reads everything, names what is wrong, counts what is odd."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mpt.cli import main

PIXELS = np.random.default_rng(0).integers(0, 255, (30, 40, 3), dtype=np.uint8)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for part in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(3):
                Image.fromarray(PIXELS).save(tmp_path / part / name / f"{i}.jpg")
    return tmp_path


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["data", "check", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def folder(root: Path) -> tuple[str, ...]:
    return "data=image_folder", f"data.root={root}", "data.workers=2"


@pytest.mark.parametrize("data", ["digits", "synthetic_images", "synthetic_tokens"])
def test_clean_data_are_read_in_full_and_exit_0(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = checked(capsys, f"data={data}")
    assert code == 0
    assert found["wrong"] == []
    assert found["samples"]["train"] > found["samples"]["eval"] > 0


def test_i1_each_file_that_can_not_be_decoded_is_named_with_the_reason(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = tree / "train" / "a"
    whole = (a / "0.jpg").read_bytes()
    (a / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (a / "empty.jpg").touch()
    (a / "page.jpg").write_text("<html>404</html>")
    (a / "nowhere.png").symlink_to("gone.png")
    (a / "itself.png").symlink_to("itself.png")
    (tree / "val" / "b" / "bad.png").write_bytes(b"\x89PNG\r\n")
    code, found = checked(capsys, *folder(tree))
    assert code == 5
    wrong = {Path(item["name"]).name: item["why"] for item in found["wrong"]}
    assert set(wrong) == {"cut.jpg", "empty.jpg", "page.jpg", "nowhere.png", "itself.png", "bad.png"}
    assert "truncated" in wrong["cut.jpg"]
    assert wrong["page.jpg"].endswith("cannot identify the format of the image")
    assert "No such file" in wrong["nowhere.png"]
    assert found["samples"] == {"train": 11, "eval": 7}
    assert main(["data", "check", *folder(tree)]) == 5
    assert "6 of 11 training and 7 evaluation samples can't be used" in capsys.readouterr().out


def test_i1_a_pipe_or_a_device_among_the_images_is_named_and_neither_waited_for_nor_read(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tree / "train" / "a" / "pipe.png")
    (tree / "train" / "a" / "zeros.jpg").symlink_to("/dev/zero")
    code, found = checked(capsys, *folder(tree))
    assert code == 5
    assert {Path(item["name"]).name for item in found["wrong"]} == {"pipe.png", "zeros.jpg"}
    assert all("no regular file" in item["why"] for item in found["wrong"])


def test_i2_i3_converted_files_are_no_fault_and_are_counted_by_kind(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, grey = tree / "train" / "a", PIXELS[..., 0]
    Image.fromarray(grey).save(a / "grey.png")
    Image.fromarray(grey).save(a / "grey2.png")
    Image.fromarray(PIXELS).convert("CMYK").save(a / "cmyk.jpg")
    Image.fromarray(PIXELS).convert("RGBA").save(a / "alpha.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(a / "deep.png")
    first = Image.fromarray(PIXELS).convert("P")
    first.save(a / "moves.gif", save_all=True, append_images=[Image.fromarray(255 - PIXELS).convert("P")])
    os.rename(a / "2.jpg", a / "jpeg.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(PIXELS).save(a / "lies.jpg", exif=exif)
    code, found = checked(capsys, *folder(tree))
    assert code == 0
    assert {item["what"]: item["count"] for item in found["odd"]} == {
        "L converted to RGB": 2,
        "P converted to RGB": 1,
        "CMYK converted to RGB": 1,
        "RGBA with transparency, laid on data.background": 1,
        "I;16 converted to RGB": 1,
        "animated: its first frame": 1,
        "JPEG inside a file named PNG": 1,
        "turned upright as its EXIF says": 1,
    }


def test_a_decompression_bomb_is_wrong(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4000)
    Image.new("1", (100, 100)).save(tree / "train" / "a" / "bomb.png")
    code, found = checked(capsys, *folder(tree)[:-1], "data.workers=1")
    assert code == 5
    assert [Path(w["name"]).name for w in found["wrong"] if "decompression bomb" in w["why"]] == ["bomb.png"]


def test_a_name_can_not_steer_the_terminal(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "train" / "a" / "x\x1b[2J\x07.png").touch()
    assert main(["data", "check", *folder(tree)]) == 5
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b[2J\\x07.png" in out


@pytest.mark.parametrize(("body", "why"), [("x[7] = float('nan')", "not finite"), ("pass", None)])
def test_nan_pixels_in_the_users_arrays_are_named(
    body: str, why: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"arrays_{body[0]}.py"  # a module of its own: the process has imported the other one
    file.write_text(
        "import torch\n"
        "def make():\n"
        "    x, y = torch.zeros(20, 1, 4, 4), torch.arange(20) % 10\n"
        f"    {body}\n"
        "    return {'train': (x, y), 'eval': (torch.zeros(2, 1, 4, 4), y[:2])}\n"
    )
    code, found = checked(capsys, "data=custom", f"data.path={file}:make")
    assert code == (5 if why else 0)
    assert [(w["name"], w["why"]) for w in found["wrong"]] == ([("train sample 7", f"inputs are {why}")] if why else [])


def test_labels_out_of_range_and_nan_in_the_users_data_set_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "labelled.py").write_text(
        "import torch\n"
        "from torch.utils.data import Dataset\n"
        "class Mine(Dataset):\n"
        "    def __len__(self):\n"
        "        return 40\n"
        "    def __getitem__(self, i):\n"
        "        x = torch.full((1, 8, 8), float('nan') if i == 5 else 0.0)\n"
        "        return x, 11 if i == 33 else i % 10\n"
        "def make():\n"
        "    return {'train': Mine(), 'eval': Mine(), 'classes': 10}\n"
    )
    code, found = checked(capsys, "data=custom", f"data.path={tmp_path / 'labelled.py'}:make", "data.workers=2")
    assert code == 5
    train = {w["name"]: w["why"] for w in found["wrong"] if w["part"] == "train"}
    assert set(train) == {"sample 5 of data.path", "sample 33 of data.path"}
    assert "64 of 64 numbers are not finite" in train["sample 5 of data.path"]
    assert "from 0 to 9, got 11" in train["sample 33 of data.path"]


def test_what_batches_do_to_the_numbers_is_told(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, few = checked(capsys, *folder(tree))
    assert any("fewer than data.batch_size=64" in note for note in few["notes"])
    _, odd = checked(capsys, *folder(tree), "data.batch_size=4")
    assert any("2 of 6 training samples are left out of each epoch" in note for note in odd["notes"])


@pytest.mark.parametrize(("words", "told"), [([], "mpt data check"), (["chekc"], "mpt data check data=")])
def test_a_wrong_verb_gets_the_right_one(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *words]) == 2
    assert told in capsys.readouterr().err


def test_data_that_are_not_there_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "data=image_folder", f"data.root={tmp_path / 'no'}"]) == 2
    assert "no folder" in capsys.readouterr().err
