"""Any of torchvision's classifiers, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

from mpt.config.options import merged
from mpt.errors import ModelError, Problem
from mpt.models._options import require_kind
from mpt.registry import did_you_mean
from mpt.types import DataSpec, InputSpec

if TYPE_CHECKING:
    from torch import nn

CONVOLUTIONAL = True
DEFAULTS: dict[str, Any] = {"arch": None, "weights": None}

# Five halvings leave one pixel of 32; the others are the least that their stems and poolings take.
MIN_SIZE = 32
MIN_SIZES = {"alexnet": 63, "inception_v3": 75, "vit_h_14": 28}
# Its windows divide one size only, which is built in.
FIXED_SIZES = {"maxvit_t": 224}
# Classes of the weights that torchvision offers.
IMAGENET_CLASSES = 1000


def input_spec(options: Mapping[str, Any]) -> InputSpec:
    """Colour images, scaled up where they are too small for the architecture."""
    arch = str(merged("model", options, DEFAULTS)["arch"])
    fixed = FIXED_SIZES.get(arch)
    return InputSpec("images", channels=3, size=fixed, min_size=fixed or MIN_SIZES.get(arch, MIN_SIZE))


def build(options: Mapping[str, Any], data: DataSpec) -> nn.Module:
    """The architecture for the data's classes, without auxiliary heads; `weights` are loaded only if asked for.

    Raises: ModelError for an unknown architecture, or a size of images that it does not take.
    """
    from torchvision import models

    o = merged("model", options, DEFAULTS)
    arch, weights = str(o["arch"]), o["weights"]
    known = models.list_models(module=models)
    if arch not in known:
        raise ModelError(Problem("model.arch", f"torchvision has no classifier `{arch}`", _near(arch, known)))
    require_kind(arch, data, "images")
    classes = data.num_classes if weights is None else IMAGENET_CLASSES
    try:
        model: nn.Module = models.get_model(
            arch, weights=weights, num_classes=classes, **_arguments(arch, weights, data)
        )
    except NotImplementedError:  # the meta device can't run code that computes while it builds; the caller can help
        raise
    except (ValueError, KeyError, RuntimeError, URLError) as error:
        what = f"torchvision can't build `{arch}` for images of {data.shape}: {error}"
        raise ModelError(Problem("model.arch, model.weights", what)) from error
    return model if weights is None else with_head(model, data.num_classes)


def _near(arch: str, known: list[str]) -> str:
    hint = did_you_mean(arch, known)
    return hint if hint.startswith("did") else "one of " + ", ".join(known)


def _arguments(arch: str, weights: str | None, data: DataSpec) -> dict[str, Any]:
    """What some architectures want to be told."""
    if arch.startswith("vit_"):
        return {"image_size": _divisible(arch, data)}
    if arch in ("googlenet", "inception_v3"):
        # Their auxiliary classifiers return a second output, which no task here takes.
        return {"aux_logits": False, **({"init_weights": True} if weights is None else {})}
    return {}


def _divisible(arch: str, data: DataSpec) -> int:
    patch, (_, height, width) = int(arch.rsplit("_", 1)[1]), data.shape
    if height != width or height % patch:
        nearest = max(patch, round(height / patch) * patch)
        what = f"`{arch}` cuts square images into patches of {patch}, but gets {height}x{width}"
        raise ModelError(Problem("data.image_size", what, f"use data.image_size={nearest}"))
    return height


def with_head(model: nn.Module, classes: int) -> nn.Module:
    """The model with its classifier replaced by an untrained one; unchanged where the number of classes fits."""
    from torch import nn

    if classes == IMAGENET_CLASSES:
        return model
    name, head = [(n, m) for n, m in model.named_modules() if _width(m) == IMAGENET_CLASSES][-1]
    if isinstance(head, nn.Conv2d):
        new: nn.Module = nn.Conv2d(head.in_channels, classes, kernel_size=1)
    else:
        assert isinstance(head, nn.Linear)
        new = nn.Linear(head.in_features, classes)
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, new)
    return model


def _width(module: nn.Module) -> int | None:
    from torch import nn

    if isinstance(module, nn.Linear):
        return module.out_features
    return module.out_channels if isinstance(module, nn.Conv2d) else None
