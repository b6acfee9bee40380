"""Any classifier of timm, by name; an extra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mpt.config.options import merged
from mpt.errors import ModelError, Problem
from mpt.models._options import require_kind
from mpt.registry import did_you_mean
from mpt.types import DataSpec, InputSpec

if TYPE_CHECKING:
    from torch import nn

CONVOLUTIONAL = True
DEFAULTS: dict[str, Any] = {"arch": None}
# Five halvings, as in most of them.
MIN_SIZE = 32


def input_spec(options: Mapping[str, Any]) -> InputSpec:
    """Images of the size that timm's entry fixes, else of 32 pixels or more.

    Raises: ModelError when timm is missing or has no such architecture.
    """
    fixed, size = _fixed_size(_arch(options))
    return InputSpec("images", size=size if fixed else None, min_size=MIN_SIZE)


def build(options: Mapping[str, Any], data: DataSpec) -> nn.Module:
    """The architecture with untrained weights, for the data's channels and classes."""
    import timm

    arch = _arch(options)
    require_kind(f"timm {arch}", data, "images")
    try:
        model: nn.Module = timm.create_model(arch, in_chans=data.shape[0], num_classes=data.num_classes)
    except NotImplementedError:  # the meta device can't run code that computes while it builds; the caller can help
        raise
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise ModelError(Problem("model.arch", f"timm can't build `{arch}`: {error}")) from error
    return model


def _arch(options: Mapping[str, Any]) -> str:
    try:
        import timm
    except ModuleNotFoundError as error:
        raise ModelError(Problem("model=timm", "timm is not installed", "pip install timm")) from error
    arch = merged("model", options, DEFAULTS)["arch"]
    if not timm.is_model(str(arch)):
        known = timm.list_models()
        raise ModelError(Problem("model.arch", f"timm has no `{arch}`", _near(str(arch), known)))
    return str(arch)


def _near(arch: str, known: list[str]) -> str:
    hint = did_you_mean(arch, known)
    return hint if hint.startswith("did") else f"timm.list_models() names all {len(known)}"


def _fixed_size(arch: str) -> tuple[bool, int]:
    import timm

    found = timm.get_pretrained_cfg(arch, allow_unregistered=False)
    if found is None:
        return False, MIN_SIZE
    return bool(found.fixed_input_size), int(found.input_size[-1])
