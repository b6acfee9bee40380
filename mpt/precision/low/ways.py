"""How each low-bit layer multiplies: by torchao's kernels where the device has them for it, else emulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import nn

from mpt.errors import PrecisionError, Problem
from mpt.formats.operand import Gemms
from mpt.precision.low.recipes import INSTALL, Recipe, recipe_of

if TYPE_CHECKING:
    from mpt.config.schema import PrecisionConfig
    from mpt.precision.capability import Mechanism


def way_of(module: nn.Module, gemms: Gemms, mechanism: Mechanism) -> Recipe | str:
    """The recipe of torchao that multiplies for the layer, or why it is emulated."""
    recipe = recipe_of(gemms)
    if not mechanism.native and (isinstance(module, nn.Linear) or INSTALL not in mechanism.low_reason):
        return mechanism.low_reason
    if not isinstance(module, nn.Linear):  # torchao would not help it, installed or not
        return "torchao has no convolutions"
    if isinstance(recipe, str):
        return recipe
    if recipe.name not in mechanism.native:
        return f"no kernels of {recipe.name} here"
    for what, size in (("inputs", module.in_features), ("outputs", module.out_features)):
        if size % recipe.multiple:
            return f"{size} {what} are no multiple of {recipe.multiple}, which torchao's {recipe.name} wants"
    return recipe


def ways(
    model: nn.Module, gemms: Mapping[str, Gemms], cfg: PrecisionConfig, mechanism: Mechanism
) -> dict[str, Recipe | str]:
    """By layer. Raises: PrecisionError where `precision.backend=native` and a layer would be emulated."""
    modules = dict(model.named_modules())
    found = {name: way_of(modules[name], products, mechanism) for name, products in gemms.items()}
    emulated = {name: why for name, why in found.items() if isinstance(why, str)}
    if cfg.backend == "native" and emulated:
        name, why = next(iter(emulated.items()))
        what = f"got `native`, but {len(emulated)} of {len(found)} low-bit layers would be emulated; `{name}`: {why}"
        hint = "precision.backend=auto emulates those alone"
        if not isinstance(modules[name], nn.Linear):
            hint += "; precision.low_layers=[linear] leaves convolutions in the compute format"
        raise PrecisionError(Problem("precision.backend", what, hint))
    return found
