"""The user's own callables: found in the folder or a file, and explained when they fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mpt.errors import ConfigError
from mpt.usercode import call, load_callable

SOURCE = """
import math
value = 3

def make(num_classes, *, width=2):
    return num_classes, width

def anything(**kwargs):
    return kwargs

def fails():
    return math.sqrt(-1)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A module of a name that no other test has."""
    path = tmp_path / f"user_{tmp_path.name}.py"
    path.write_text(SOURCE)
    return path


def refusal(function: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as refused:
        function()
    return str(refused.value)


def test_a_file_and_a_module_in_the_current_folder_are_found(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert load_callable(f"{file.name}:make", "model.path") is load_callable(f"{file.stem}:make", "model.path")


def test_installed_modules_are_found() -> None:
    assert load_callable("os.path:join", "model.path")("a", "b") == str(Path("a") / "b")


def test_only_what_the_signature_takes_is_offered(file: Path) -> None:
    make, anything = (load_callable(f"{file}:{name}", "model.path") for name in ("make", "anything"))
    assert call(make, "p", "model.path", {"width": 5}, num_classes=7, data=1) == (7, 5)
    assert call(make, "p", "model.path", {"num_classes": 8}, num_classes=7) == (8, 2)
    assert call(anything, "p", "model.path", {}, num_classes=7, data=1) == {"num_classes": 7}


def test_each_way_of_not_being_there_is_told(file: Path, tmp_path: Path) -> None:
    assert "want `pkg.module:callable`" in refusal(lambda: load_callable("resnet", "model.path"))
    assert "no module `nowhere`" in refusal(lambda: load_callable("nowhere.at_all:f", "model.path"))
    assert f"no file {tmp_path / 'x.py'}" in refusal(lambda: load_callable(f"{tmp_path}/x.py:f", "model.path"))
    assert "did you mean `make`" in refusal(lambda: load_callable(f"{file}:mkae", "model.path"))
    assert "`value` in" in refusal(lambda: load_callable(f"{file}:value", "model.path"))


def test_a_file_named_like_another_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("def f(): pass")
    assert "has the name of another module" in refusal(lambda: load_callable(f"{tmp_path}/json.py:f", "data.path"))


def test_a_fault_in_the_users_code_is_told_with_its_line(file: Path) -> None:
    said = refusal(lambda: call(load_callable(f"{file}:fails", "model.path"), "p", "model.path", {}))
    assert "ValueError" in said
    assert f"{file}, line 12" in said
    said = refusal(lambda: call(load_callable(f"{file}:make", "model.path"), "p", "model.path", {"widht": 1}))
    assert "unexpected keyword argument" in said
    assert f"defined in {file}, line 5; arguments come from model.kwargs" in said


def test_a_module_that_fails_to_import_is_told_with_its_line(tmp_path: Path) -> None:
    broken = tmp_path / f"broken_{tmp_path.name}.py"
    broken.write_text("x = 1\nimport not_installed_anywhere\n")
    said = refusal(lambda: load_callable(f"{broken}:f", "model.path"))
    assert "not_installed_anywhere" in said
    assert f"{broken}, line 2" in said


def test_a_fault_inside_torch_is_told_with_the_users_line(tmp_path: Path) -> None:
    file = tmp_path / f"inside_{tmp_path.name}.py"
    file.write_text("from torch import nn\n\ndef make():\n    return nn.Conv2d(3, 8, 3, groups=2)\n")
    said = refusal(lambda: call(load_callable(f"{file}:make", "model.path"), "p", "model.path", {}))
    assert "in_channels must be divisible by groups" in said
    assert f"raised in {file}, line 4" in said


def test_the_line_of_a_syntax_error_is_told(tmp_path: Path) -> None:
    file = tmp_path / f"syntax_{tmp_path.name}.py"
    file.write_text("x = 1\ndef make(:\n")
    assert f"in {file}, line 2" in refusal(lambda: load_callable(f"{file}:make", "model.path"))


def test_a_fault_of_a_function_without_source_is_told_all_the_same() -> None:
    said = refusal(lambda: call(load_callable("math:sqrt", "model.path"), "math:sqrt", "model.path", {"x": 1}))
    assert "sqrt" in said
    assert "hint: arguments come from model.kwargs" in said
