"""Losses by name, and which must not meet half precision; no torch, so that the config checks can read it."""

from __future__ import annotations

LOSSES = ("cross_entropy", "bce_with_logits", "mse", "nll", "bce")

# The model applies the sigmoid itself: in half precision it rounds to exactly 0 or 1 and the logarithm is infinite.
# Source: torch.amp's list of functions that raise under autocast.
UNSAFE_IN_HALF = frozenset({"bce"})
