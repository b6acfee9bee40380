"""Contexts that are entered again and again: around each forward and each backward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

NOTHING: AbstractContextManager[Any] = nullcontext()


class Again:
    """A context that is made anew by `make` each time it is entered."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make = make
        self._entered: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        self._entered.append(self._make())
        self._entered[-1].__enter__()

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)


class _Both:
    def __init__(self, outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> None:
        self._outer, self._inner = outer, inner

    def __enter__(self) -> None:
        self._outer.__enter__()
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)
        self._outer.__exit__(*error)


def nested(
    outer: AbstractContextManager[Any] | None, inner: AbstractContextManager[Any] | None
) -> AbstractContextManager[Any]:
    """Both where there are two, the one that there is, or a context that does nothing."""
    if outer is not None and inner is not None:
        return _Both(outer, inner)
    return outer or inner or NOTHING
