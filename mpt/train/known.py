"""Faults of models that mixed precision brings out, by torch's words for them, each with what to do."""

from __future__ import annotations

import re

_CAST = (
    "autocast casts what torch's own layers take, not what other code mixes: cast one side (`.to(x.dtype)`), keep the "
    "module in float32 by precision.layers, and give your own autograd functions torch.amp.custom_fwd and custom_bwd"
)
_MASK = "a number in the code is too large for it: mask with float('-inf') or torch.finfo(x.dtype).min, not with -1e9"
_KERNEL = "there is no such kernel for half: keep the module in float32 by precision.layers, or call it on `.float()`"
_IN_PLACE = "its gradient needs what an op in place overwrote: use the other form (`x = x + y`, nn.ReLU(inplace=False))"
_KEEPS = "the module keeps a tensor of an earlier pass with its graph: keep `.detach()` of it"

KNOWN: tuple[tuple[str, str], ...] = (
    (r"value cannot be converted to type .*(Half|BFloat16) without overflow", _MASK),
    (r"modified by an inplace operation", _IN_PLACE),
    (r"backward through the graph a second time", _KEEPS),
    (r"not (implemented|supported) for '?(Half|BFloat16|ComplexHalf)|Unsupported dtype (Half|BFloat16)", _KERNEL),
    (r"doesn't support tensors of type: ?(Half|BFloat16)", _KERNEL),
    (r"same dtype|dtypes match|scalar type \w+ but (found|got)|dtype to be equal", _CAST),
    (r"Input type .* and (weight|bias) type .* should be the same", _CAST),
)
"""Patterns of messages, the first that fits counts. Sources: what torch 2.11 to 2.14 raise."""


def known(message: str) -> str:
    """What to do about such a fault; empty where nothing is known."""
    return next((what for pattern, what in KNOWN if re.search(pattern, message)), "")
