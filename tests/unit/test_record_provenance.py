"""Where a run came from."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import mpt
from mpt.record import provenance
from mpt.record.cpu import cpu_info, parse
from mpt.types import DeviceFacts

_X86 = """processor\t: 0
model name\t: AMD EPYC 9B45 128-Core Processor
flags\t\t: fpu sse avx2 avx512f avx512_bf16 amx_tile
bugs\t\t: spectre_v1
processor\t: 1
model name\t: AMD EPYC 9B45 128-Core Processor
"""
_ARM = "processor\t: 0\nFeatures\t: fp asimd asimdhp bf16 sve\nHardware\t: Some Board\n"


def test_flags_and_model_are_read_from_both_kinds_of_cpuinfo() -> None:
    assert parse(_X86) == ("AMD EPYC 9B45 128-Core Processor", ("avx2", "avx512f", "avx512_bf16", "amx_tile"))
    assert parse(_ARM) == ("Some Board", ("asimdhp", "bf16"))
    assert parse("") == ("", ())


def test_a_machine_without_cpuinfo_still_has_a_model_and_cores(tmp_path: Path) -> None:
    info = cpu_info(tmp_path / "none")
    assert info.model
    assert info.flags == ()
    assert info.cores >= 1


def test_variables_that_change_numbers_are_kept_and_secrets_are_not() -> None:
    environ = {
        "OMP_NUM_THREADS": "2",
        "NVIDIA_TF32_OVERRIDE": "0",
        "HOME": "/home/me",
        "TORCH_API_KEY": "x",
        "HYDRA_TOKEN": "x",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    kept = {"CUDA_VISIBLE_DEVICES": "1", "NVIDIA_TF32_OVERRIDE": "0", "OMP_NUM_THREADS": "2"}
    assert provenance.variables(environ) == kept


def test_the_environment_names_device_flags_threads_and_versions() -> None:
    facts = DeviceFacts("cpu", "a processor", "2.14.1")
    env = provenance.environment(facts, {"cudnn.benchmark": False}, threads=2)
    assert env["schema"] == "mpt.env/1"
    assert env["device"]["name"] == "a processor"
    assert env["flags"] == {"cudnn.benchmark": False}
    assert env["cpu"]["threads"] == 2
    assert {"python", "torch", "mpt"} <= env["versions"].keys()
    assert env["versions"]["mpt"] == mpt.__version__


def test_the_hash_changes_with_content_and_name_of_a_source_file_only(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    first = provenance.package_hash(tmp_path)
    (tmp_path / "a.pyc").write_text("compiled")
    assert provenance.package_hash(tmp_path) == first
    (tmp_path / "a.py").write_text("x = 2\n")
    second = provenance.package_hash(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, provenance.package_hash(tmp_path)}) == 3


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    git(tmp_path, "init", "-q")
    (tmp_path / "model.py").write_text("layers = 2\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_the_source_names_the_command_so_that_a_shell_takes_it_again(tree: Path) -> None:
    text = provenance.source(["mpt", "train", "name=a b"], tree)
    assert text.startswith("command: mpt train 'name=a b'\n")
    assert f"mpt: {mpt.__version__}, sha256 of its files " in text


def test_the_source_of_a_run_that_goes_on_keeps_the_command_that_began_it(tree: Path) -> None:
    first = provenance.source(["mpt", "train", "seed=3"], tree)
    second = provenance.source(["mpt", "train", "resume=a"], tree, before=first)
    third = provenance.source(["mpt", "train", "resume=b"], tree, before=second)
    assert third.startswith("command: mpt train resume=b\nbegun by: mpt train seed=3\n")
    assert [provenance.begun_by(text) for text in (first, second, third, "")] == ["mpt train seed=3"] * 3 + [""]


def test_the_source_has_the_commit_the_changes_and_the_untracked_names(tree: Path) -> None:
    clean = provenance.source(["mpt"], tree)
    assert f"\ncommit: {git(tree, 'rev-parse', 'HEAD').strip()}\n" in clean
    assert "--- changes ---" not in clean
    (tree / "model.py").write_text("layers = 3\n")
    (tree / "new.py").write_text("")
    assert provenance.source(["mpt"], tree) == clean  # a process has loaded its code, and runs that
    provenance._state.cache_clear()
    dirty = provenance.source(["mpt"], tree)
    assert "-layers = 2\n+layers = 3\n" in dirty
    assert "--- untracked ---\nnew.py\n" in dirty


def test_a_folder_outside_any_tree_or_ignored_by_one_has_no_commit(
    tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert "\ncommit: not in a git tree\n" in provenance.source(["mpt"], tmp_path_factory.mktemp("plain"))
    provenance._state.cache_clear()
    (tree / ".gitignore").write_text("venv/\n")
    (tree / "venv").mkdir()
    assert "\ncommit: not in a git tree\n" in provenance.source(["mpt"], tree / "venv")


def test_without_git_the_source_says_so(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "\ncommit: not in a git tree\n" in provenance.source(["mpt"], tree)
