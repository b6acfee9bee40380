"""A built wheel holds conf/ and recipes/, and works without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import mpt

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, as an installer would lay them out."""
    pytest.importorskip("hatchling", reason="hatchling (extra `test`) builds the wheel")
    built = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"mpt-{mpt.__version__}-py3-none-any.whl"
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    return site


def run(site: Path, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mpt", *args], cwd="/", env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("folder", ["conf", "recipes"])
def test_the_wheel_holds_every_yaml(folder: str, unpacked: Path) -> None:
    shipped = unpacked / "mpt" / "_data" / folder
    at_top = {path.relative_to(ROOT / folder): path.read_bytes() for path in (ROOT / folder).rglob("*.yaml")}
    assert at_top
    assert {path.relative_to(shipped): path.read_bytes() for path in shipped.rglob("*.yaml")} == at_top


def test_the_wheel_holds_the_data_and_its_licences(unpacked: Path) -> None:
    files = {path.name for path in (unpacked / "mpt" / "data" / "files").iterdir()}
    assert {"digits.csv.gz", "digits.txt", "shakespeare.txt.gz"} <= files


def test_the_wheel_holds_what_report_pages_are_made_of(unpacked: Path) -> None:
    shipped = {path.name for path in (unpacked / "mpt" / "report" / "assets").iterdir()}
    assert shipped == {path.name for path in (ROOT / "mpt" / "report" / "assets").iterdir()}
    assert "plotly-LICENSE.txt" in shipped


def test_an_unpacked_wheel_composes_from_the_root_folder(unpacked: Path) -> None:
    shown = yaml.safe_load(run(unpacked, "train", "--cfg", "job", "precision=bf16", "model=resnet50"))
    assert shown["model"]["arch"] == "resnet50"
    where = run(unpacked, "train", "--info", "searchpath")
    assert str(unpacked / "mpt" / "_data" / "conf") in where
