"""Activation checkpointing: chosen modules keep no more than their inputs, and run once more in the backward pass.

Results are those of a run without it, bit by bit: what is computed again sees the random states, the buffers and the
autocast of the first time, and leaves no trace in them. `recomputed()` tells whoever watches that a forward pass is no
new one.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from mpt.errors import ModelError, Problem
from mpt.registry import did_you_mean

KEY = "trainer.checkpoint_activations"
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_NO_BLOCKS = "got `true`, but this model has no repeated blocks (modules of one class, with layers inside, in a row)"
_running: list[str] = []
"""Names of the modules that are being computed again, the innermost last. One thread at a time goes backward."""


def recomputed() -> str | None:
    """The module that is being computed again now; None outside of any recomputation."""
    return _running[-1] if _running else None


def chosen(model: nn.Module, asked: bool | Sequence[str]) -> tuple[str, ...]:
    """Names of the modules to compute again, of nested ones the outermost. Works on meta tensors.

    `True`: the model's repeated blocks; else those that a glob matches, whose `*` goes across dots.
    Raises: ModelError where a model has no such blocks, or a glob matches no module.
    """
    if isinstance(asked, bool):
        found = blocks(model) if asked else ()
        if asked and not found:
            hint = f"name modules by globs instead, e.g. {KEY}=[{_example(model)}]; `mpt plan` lists them"
            raise ModelError(Problem(KEY, _NO_BLOCKS, hint))
        return found
    names = list(_called("", model))
    wrong = [glob for glob in asked if not any(fnmatchcase(name, glob) for name in names)]
    if wrong:
        hints = [did_you_mean(glob.strip("*."), names) for glob in wrong]
        raise ModelError(
            *(Problem(KEY, f"`{glob}` matches no module", hint) for glob, hint in zip(wrong, hints, strict=True))
        )
    return _each_once(model, _outermost(name for name in names if any(fnmatchcase(name, glob) for glob in asked)))


def install(model: nn.Module, names: Sequence[str]) -> None:
    """Those modules are computed again from here on, where gradients are wanted.

    The new forward is an attribute of the instance: names of parameters and of the state dict stay as they are.
    """
    for name in names:
        module = model.get_submodule(name)
        module.forward = _again(name, module, module.forward)


def blocks(model: nn.Module) -> tuple[str, ...]:
    """Names of a model's repeated blocks: modules with layers inside that stand in a container, of classes that do so
    more than once. Works on meta tensors."""
    candidates = dict(_candidates("", model))
    counts = Counter(type(module) for module in candidates.values())
    return _each_once(model, (name for name, module in candidates.items() if counts[type(module)] > 1))


def _candidates(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for child_name, child in module.named_children():
        name = f"{prefix}{child_name}"
        if isinstance(module, _CONTAINERS) and _is_whole(child) and not _is_stage(child):
            yield name, child
        else:
            yield from _candidates(f"{name}.", child)


def _is_whole(module: nn.Module) -> bool:
    """Whether it may be a block: it has layers inside, and is more than a list of them."""
    return _has_layers(module) and not isinstance(module, _CONTAINERS)


def _has_layers(module: nn.Module) -> bool:
    """Whether modules with weights lie inside: one that has none inside keeps little beyond its input."""
    return any(True for child in module.children() for _ in child.parameters())


def _is_stage(module: nn.Module) -> bool:
    """Whether it runs a row of blocks itself, as timm's stages do: these are the blocks then."""
    rows = (m for m in module.modules() if isinstance(m, nn.Sequential))
    return any(count > 1 for row in rows for count in Counter(type(c) for c in row if _is_whole(c)).values())


def _outermost(names: Iterable[str]) -> Iterator[str]:
    """Without those that lie inside of others, which come before them."""
    found: list[str] = []
    for name in names:
        if not any(name.startswith(f"{outer}.") for outer in found):
            found.append(name)
            yield name


def _each_once(model: nn.Module, names: Iterable[str]) -> tuple[str, ...]:
    """A module that stands at several places has its first name."""
    first: dict[int, str] = {}
    for name in names:
        first.setdefault(id(model.get_submodule(name)), name)
    return tuple(first.values())


def _called(prefix: str, module: nn.Module) -> Iterator[str]:
    """Names of the modules inside that may be called: no ModuleList is, nor what lies in a MultiheadAttention."""
    if type(module).forward is nn.MultiheadAttention.forward:
        return
    for name, child in module.named_children():
        if type(child).forward is not nn.Module.forward:
            yield f"{prefix}{name}"
        yield from _called(f"{prefix}{name}.", child)


def _example(model: nn.Module) -> str:
    """A module that may well be named: one with layers, else one with weights."""
    modules = [(name, model.get_submodule(name)) for name in _called("", model)]
    weighted = [name for name, module in modules if any(True for _ in module.parameters())]
    return next((name for name, module in modules if _has_layers(module)), (*weighted, "NAME")[0])


def _again(name: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    slots = [(m, key) for m in module.modules() for key, b in m._buffers.items() if b is not None and b.numel()]

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        if torch.compiler.is_compiling():  # the compiler plans the recomputation itself, random states and buffers too
            function = functools.partial(forward, **kwargs) if kwargs else forward
            return checkpoint(function, *args, use_reentrant=False)
        given, spec = tree_flatten((args, kwargs))
        versions = _versions(given)
        contexts = nullcontext(), _AsBefore(name, slots)
        out = checkpoint(_of_leaves(name, forward, spec), *given, use_reentrant=False, context_fn=lambda: contexts)
        if _versions(given) != versions:
            what = f"`{name}` changes its input in place, so that it can't be computed again from it"
            raise ModelError(Problem(KEY, what, "name the other modules by globs, or change that module"))
        return out

    return run


def _of_leaves(name: str, forward: Callable[..., Any], spec: TreeSpec) -> Callable[..., Any]:
    """`forward`, given its arguments one by one: torch looks at no others for devices whose random states to keep.

    Raises: ModelError where it puts something else into a list or dict, which are rebuilt for each pass.
    """

    def run(*leaves: Any) -> Any:
        args, kwargs = tree_unflatten(leaves, spec)
        out = forward(*args, **kwargs)
        after = tree_flatten((args, kwargs))[0]
        if len(after) != len(leaves) or any(x is not y for x, y in zip(leaves, after, strict=True)):
            what = (
                f"`{name}` puts something else into a list or dict that it is given, so that it can't be computed again"
            )
            raise ModelError(Problem(KEY, what, "name the other modules by globs, or change that module"))
        return out

    return run


def _versions(given: Sequence[Any]) -> list[int]:
    """How often each tensor was changed in place, as autograd counts."""
    return [x._version for x in given if isinstance(x, Tensor)]


class _AsBefore:
    """Entered around a recomputation: buffers and random states of Python and numpy are those of when it was made.

    After it they are what they were when it was entered. torch keeps its own random states and autocast.
    """

    def __init__(self, name: str, slots: Sequence[tuple[nn.Module, str]]) -> None:
        self._name, self._slots = name, slots
        self._then = random.getstate(), np.random.get_state()
        self._buffers = _copies([module._buffers[key] for module, key in slots])

    def __enter__(self) -> None:
        _running.append(self._name)
        self._now = random.getstate(), np.random.get_state(), [module._buffers[key] for module, key in self._slots]
        self._put(*self._then, _copies(self._buffers))

    def __exit__(self, *error: object) -> None:
        self._put(*self._now)
        del self._now
        _running.pop()

    def _put(self, python: Any, numpy: Any, buffers: Sequence[Tensor | None]) -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        for (module, key), buffer in zip(self._slots, buffers, strict=True):
            module._buffers[key] = buffer


@torch.no_grad()
def _copies(buffers: Sequence[Tensor | None]) -> list[Tensor | None]:
    """A copy of each, those of one dtype by one op; one that stands there twice has one copy."""
    groups: dict[torch.dtype, dict[int, Tensor]] = {}
    for b in buffers:
        if b is not None:
            groups.setdefault(b.dtype, {})[id(b)] = b
    copies: dict[int, Tensor] = {}
    for group in groups.values():
        flat = torch.cat([b.reshape(-1) for b in group.values()])
        parts = torch.split(flat, [b.numel() for b in group.values()])
        copies |= {key: part.view(b.shape).data for (key, b), part in zip(group.items(), parts, strict=True)}
    return [None if b is None else copies[id(b)] for b in buffers]
