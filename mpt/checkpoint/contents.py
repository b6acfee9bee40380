"""What a run's checkpoint holds, by part, so that a file that is whole but not a run's is refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from torch import Tensor

from mpt.errors import CheckpointError, Problem

PARTS: dict[str, Any] = {
    **dict.fromkeys(
        ("model", "policy", "optimizer", "scaler", "buffers", "ema", "history", "progress"), dict[str, Any]
    ),
    "rng": dict[str, Tensor],
    **dict.fromkeys(("clock", "energy"), dict[str, float]),
    "offset": dict[str, int],
    **dict.fromkeys(("essence", "data_fingerprint"), str),
    "classes": list[str],
    "trained": list[str] | None,
    "place": dict[str, float] | None,
    "versions": dict[str, str] | None,
}
"""The type of each part; None where an older schema did not have it."""

_FOREIGN = (LookupError, TypeError, AttributeError, ValueError, RuntimeError, AssertionError, ArithmeticError)
"""What taking a part raises when something in it is of another kind."""
_HINT = "give another checkpoint of the run, or a run folder: its newest valid one is taken"


def checked(state: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The state, whose parts are all there, each of its type, and whose model is tensors by name.

    Raises: CheckpointError with each part that is not.
    """
    wrong = [f"lacks `{name}`" for name in PARTS if name not in state]
    wrong += [
        f"`{name}` is {state[name]!r:.40}, want {hint.__name__ if hint is str else hint}"
        for name, hint in PARTS.items()
        if name in state and not _fits(hint, state[name])
    ]
    wrong = wrong or list(_no_weights(state))
    if wrong:
        raise CheckpointError(Problem(where, f"is no checkpoint of a run: {'; '.join(wrong[:5])}", _HINT))
    return dict(state)


def _no_weights(state: Mapping[str, Any]) -> Iterator[str]:
    for part, tensors in (("model", state["model"]), ("policy.masters", state["policy"].get("masters", {}))):
        if not isinstance(tensors, dict):
            yield f"`{part}` is a {type(tensors).__name__}, want a dict"
            continue
        for name, value in tensors.items():
            extra = part == "model" and str(name).endswith("_extra_state")  # torch lets modules save anything there
            if not isinstance(name, str) or not (extra or isinstance(value, Tensor)):
                yield f"`{part}` holds a {type(value).__name__} under {name!r}, want tensors by name"
            elif isinstance(value, Tensor) and value.is_complex():
                yield f"`{part}.{name}` is complex"


@contextmanager
def taking(part: str, where: str) -> Iterator[None]:
    """Whatever goes wrong inside is told of that part of the checkpoint. Raises: CheckpointError."""
    try:
        yield
    except _FOREIGN as error:
        text = next(iter(str(error).splitlines()), "")
        what = f"`{part}` is not what a run saves ({type(error).__name__}: {text})"
        raise CheckpointError(Problem(where, what, _HINT)) from error


def typed(kind: type, saved: Mapping[str, Any]) -> None:
    """Raises: TypeError naming the first of `saved` that is not of its type in the dataclass `kind`."""
    hints = get_type_hints(kind)
    for name in (f.name for f in fields(kind) if f.name in saved):
        if not _fits(hints[name], saved[name]):
            raise TypeError(f"{name} is {saved[name]!r:.60}")


def _fits(hint: Any, value: Any) -> bool:
    """Whether the value is of that type, containers with their members; a whole number is a float too, a bool none."""
    if hint is Any:
        return True
    if isinstance(hint, UnionType):
        return any(_fits(part, value) for part in get_args(hint))
    kind, members = get_origin(hint) or hint, get_args(hint)
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if not isinstance(value, (int, float) if kind is float else kind):
        return False
    if isinstance(value, dict):
        return all(_fits(members[0], k) and _fits(members[1], v) for k, v in value.items())
    return not isinstance(value, list) or all(_fits(members[0], v) for v in value)
