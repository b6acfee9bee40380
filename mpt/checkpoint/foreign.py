"""Weights in files of other programs: a state dict as torch saves it, or safetensors."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpt.errors import CheckpointError, Problem, first_line

NESTED = ("state_dict", "model_state_dict", "model_state", "model", "module", "params", "weights")
"""Keys under which training scripts put weights beside the rest: Lightning, timm, DeepSpeed, torch's examples."""
WRAPPERS = ("module.", "_orig_mod.", "model.", "net.")
"""What DataParallel, DDP, torch.compile and Lightning's modules put before a name."""

_PIECES = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What compilers, sharding and recomputation put into the middle of names."""
_WANT = "give a run folder, a checkpoint of one, or a file with a state dict (.pt, .safetensors)"
_UNREADABLE = (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, LookupError, TypeError)


def read_weights(path: Path, model: nn.Module) -> tuple[dict[str, Tensor], list[str]]:
    """The file's tensors under the model's names, and sentences on what was done for it.

    Raises: CheckpointError for a file that holds no weights.
    """
    want = {name: t for name, t in model.state_dict().items() if isinstance(t, Tensor)}
    held = _safetensors(path) if path.suffix == ".safetensors" else _torch(path)
    tensors, key = _weights(held, path)
    told = [f"weights lie under `{key}` in {path}; the rest of the file is left"] if key else []
    for change in (_without_prefix, _without_pieces, _without_prefix):
        tensors, removed = change(tensors, want)
        told += [f"`{removed}` is no part of the names of weights: removed from them"] if removed else []
    wrapped, added = _with_prefix(tensors, want)
    told += [f"`{added}` is part of this model's names: put before those of the file"] if added else []
    return wrapped | dict(_implied(wrapped, want)), told


def _implied(tensors: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Tensors that other programs leave out: the second name of a tied one, and batch norm's count of batches."""
    names = {t.data_ptr(): name for name, t in want.items() if name in tensors}
    for name, tensor in want.items():
        if name in tensors:
            continue
        if name.endswith("num_batches_tracked"):
            yield name, tensor
        elif (twin := names.get(tensor.data_ptr())) is not None and tensor.shape == want[twin].shape:
            yield name, tensors[twin]


def _torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        if "Unsupported global" in str(error) or "Unsupported class" in str(error):
            hint = "save its weights alone where it was made: torch.save(model.state_dict(), FILE), or as safetensors"
            what = "holds more than tensors and plain containers, and loading it could run code"
            raise CheckpointError(Problem(str(path), what, hint)) from error
        what = "is damaged, or no file that torch.save wrote"
        raise CheckpointError(Problem(str(path), what, _WANT)) from error


def _safetensors(path: Path) -> Any:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise CheckpointError(Problem(str(path), "safetensors is not installed", "pip install safetensors")) from error
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(Problem(str(path), f"can't be read: {first_line(error)}", _WANT)) from error


def _weights(held: Any, path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors by name, and the key that they lay under (empty: at the top)."""
    if _by_name(held):
        return dict(held), ""
    if isinstance(held, Mapping):
        for key in NESTED:
            if _by_name(held.get(key)):
                return {k: v for k, v in held[key].items() if isinstance(v, Tensor)}, key
    holds = ", ".join(map(str, list(held)[:5])) if isinstance(held, Mapping) else f"a {type(held).__name__}"
    raise CheckpointError(Problem(str(path), f"holds no weights by name, but {holds or 'nothing'}", _WANT))


def _by_name(held: Any) -> bool:
    """Whether it is a state dict; torch lets modules save anything under `…_extra_state`."""
    if not isinstance(held, Mapping) or not held:
        return False
    return all(isinstance(k, str) and (isinstance(v, Tensor) or k.endswith("_extra_state")) for k, v in held.items())


def _without_prefix(tensors: dict[str, Tensor], want: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Prefixes of wrappers are gone from all names where they have them and the model's have not."""
    removed = ""
    while prefix := next((p for p in WRAPPERS if _all_begin(tensors, p) and not _all_begin(want, p)), ""):
        tensors, removed = {n.removeprefix(prefix): t for n, t in tensors.items()}, removed + prefix
    return tensors, removed


def _with_prefix(tensors: dict[str, Tensor], want: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """The names of a wrapped model, where the file's are those of what is inside it."""
    added = next((p for p in WRAPPERS if _all_begin(want, p) and not _all_begin(tensors, p)), "")
    fits = added and {added + name for name in tensors} & want.keys()
    return ({added + name: t for name, t in tensors.items()}, added) if fits else (tensors, "")


def _without_pieces(tensors: dict[str, Tensor], want: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Pieces that wrappers put into the middle of names are gone."""
    found = [p for p in _PIECES if any(p in name for name in tensors) and not any(p in name for name in want)]
    for piece in found:
        tensors = {name.replace(piece, ""): t for name, t in tensors.items()}
    return tensors, ", ".join(found)


def _all_begin(names: Mapping[str, Tensor], prefix: str) -> bool:
    return bool(names) and all(name.startswith(prefix) for name in names)
