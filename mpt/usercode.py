"""The user's own callables, by `pkg.module:name` or `file.py:name`; `model.path` and `data.path` are such doors."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from mpt.errors import ConfigError, MptError, Problem
from mpt.registry import did_you_mean

# What code that is not ours may raise and we can explain; the rest (MemoryError, KeyboardInterrupt) passes.
FAULTS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, OSError, RuntimeError,
    SyntaxError, TypeError, ValueError,
)  # fmt: skip


def load_callable(path: str, key: str) -> Callable[..., Any]:
    """What `path` names; a package may lie in the current folder.

    Raises: ConfigError naming the config key `key`.
    """
    where, colon, name = path.partition(":")
    if not (where and colon and name):
        raise ConfigError(Problem(key, f"got `{path}`, want `pkg.module:callable` or `file.py:callable`"))
    module = _file(where, key) if where.endswith(".py") else _module(where, key)
    public = [n for n in vars(module) if not n.startswith("_")]
    if name not in vars(module):
        raise ConfigError(Problem(key, f"`{where}` has no `{name}`", did_you_mean(name, public)))
    found = vars(module)[name]
    if not callable(found):
        raise ConfigError(Problem(key, f"`{name}` in `{where}` is a {type(found).__name__}, not a callable"))
    result: Callable[..., Any] = found
    return result


def call(function: Callable[..., Any], path: str, key: str, kwargs: Mapping[str, Any], **offers: object) -> Any:
    """The function's result; of `offers` it gets those that its signature names and `kwargs` does not.

    Raises: ConfigError with the line that failed.
    """
    accepted = set(_parameters(function))
    offered = {name: value for name, value in offers.items() if name in accepted}
    with explained(f"{key}=`{path}`", key.replace("path", "kwargs"), function):
        named = {str(name): value for name, value in kwargs.items()}  # in YAML `nan` is a number
        return function(**{**offered, **named})


@contextmanager
def explained(where: str, kwargs_key: str, function: Callable[..., Any] | None = None) -> Iterator[None]:
    """Faults of the user's code become a ConfigError that says what and in which line; our own errors pass."""
    try:
        yield
    except MptError:
        raise
    except FAULTS as error:
        hint = f"{_place(error, function)}arguments come from {kwargs_key}"
        raise ConfigError(Problem(where, f"{type(error).__name__}: {error}", hint)) from error


def _place(error: BaseException, function: Callable[..., Any] | None) -> str:
    """The user's own line that led to the error; of a call that never got there, where the function is defined."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"in {error.filename}, line {error.lineno}; "
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if not _foreign(frame)]
    if frames:
        return f"raised in {frames[-1][0].f_code.co_filename}, line {frames[-1][1]}; "
    try:
        code = inspect.unwrap(function) if function else None
        return f"defined in {inspect.getfile(code)}, line {inspect.getsourcelines(code)[1]}; " if code else ""
    except (TypeError, OSError):  # written in C, or without its source
        return ""


def calling_line() -> str:
    """`file.py:line` of the innermost caller whose code is neither mpt's nor torch's; empty where there is none.

    Outside of the training step, which calls the model, no caller is looked for: a user's script may be there.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("mpt.train"):
        if not _foreign(frame):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _foreign(frame: FrameType) -> bool:
    """Whether the code is no user's: mpt's, torch's, or what imports modules."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in ("mpt", "torch", "importlib", "contextlib") or frame.f_code.co_filename.startswith("<frozen")


def _parameters(function: Callable[..., Any]) -> Iterator[str]:
    """The names that the function takes; `num_classes` too where it takes any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # written in C, without a signature
        return
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            yield "num_classes"
        elif parameter.kind is not parameter.POSITIONAL_ONLY:
            yield parameter.name


def _module(name: str, key: str) -> ModuleType:
    _add_to_path(Path.cwd())
    with explained(f"{key}=`{name}`", key.replace("path", "kwargs")):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and name.split(".")[0] == error.name.split(".")[0]:
                hint = "give an installed module, one in this folder, or a file (`file.py:callable`)"
                raise ConfigError(Problem(key, f"no module `{error.name}`", hint)) from error
            raise


def _file(given: str, key: str) -> ModuleType:
    """The file as a module of its own name, so that worker processes find it again."""
    file = Path(given).expanduser().resolve()
    if not file.is_file():
        raise ConfigError(Problem(key, f"no file {file}", "paths are relative to the current folder"))
    _add_to_path(file.parent)
    module = _module(file.stem, key)
    if Path(module.__file__ or "").resolve() != file:
        what = f"`{file.name}` has the name of another module ({module.__file__ or 'built in'})"
        raise ConfigError(Problem(key, what, "rename the file"))
    return module


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        # Last, so that nothing in the user's folder hides an installed package.
        sys.path.append(str(folder))
