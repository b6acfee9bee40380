"""The rules of loss scaling as arithmetic on the host: each the twin of a strategy that works on the device."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SMALLEST, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""Limits where none is asked for: float32's normal numbers, which a scale is one of."""

FLOAT16_TOP = 15
"""floor(log2) of float16's largest number."""


class Rule(Protocol):
    """A loss scale after each attempt. `exhausted`: the strategy would have ended the run."""

    scale: float
    exhausted: bool

    def update(self, found: bool, largest: float = 0.0, inside: Sequence[float] | Array = ()) -> None:
        """One decision: `found`: the step overflowed; `largest`: magnitude of the unscaled gradients; `inside`: for
        each layer the largest scaled number of its backward."""


def float32(value: float) -> float:
    """The nearest float32."""
    if abs(value) > LARGEST:
        return math.copysign(math.inf, value)
    return float(struct.unpack("f", struct.pack("f", value))[0])


class Fixed:
    """`none` and `static`: the scale never changes."""

    exhausted = False

    def __init__(self, scale: float) -> None:
        self.scale = float32(scale)

    def update(self, found: bool, largest: float = 0.0, inside: Sequence[float] | Array = ()) -> None:
        """Nothing changes."""


class Dynamic:
    """Grows after a run of finite steps, backs off at overflow: `dynamic` and those with other constants."""

    exhausted = False

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.scale = float32(constants["init_scale"])
        self._growth, self._backoff = constants["growth_factor"], constants["backoff_factor"]
        self._interval, self._hysteresis = constants["growth_interval"], constants["hysteresis"]
        self._min, self._max = _limits(constants)
        self._finite, self._left = 0, self._hysteresis

    def update(self, found: bool, largest: float = 0.0, inside: Sequence[float] | Array = ()) -> None:
        if found:
            self._finite = 0
            self._left = max(self._left - 1, 0)
            if self._left == 0 or self._hysteresis == 1:
                self._to(self.scale * self._backoff)
            return
        self._finite += 1
        if self._finite == self._interval:
            self._finite, self._left = 0, self._hysteresis
            self._to(self.scale * self._growth)

    def _to(self, scale: float) -> None:
        wanted = float32(scale)
        if math.isfinite(wanted):
            self.scale = min(max(wanted, self._min), self._max)


class DeepSpeed:
    """As `dynamic`; the first growth after an overflow takes one step more, and the floor may end the run."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.scale = float32(constants["init_scale"])
        self.exhausted = False
        self._growth, self._backoff = float32(constants["growth_factor"]), float32(constants["backoff_factor"])
        self._interval, self._hysteresis = constants["growth_interval"], constants["hysteresis"]
        self._consecutive, self._raises = constants["consecutive_hysteresis"], constants["raise_at_floor"]
        self._min, self._max = _limits(constants)
        self._finite, self._left = -1, self._hysteresis

    def update(self, found: bool, largest: float = 0.0, inside: Sequence[float] | Array = ()) -> None:
        if found:
            self._finite = -1
            self._overflow()
            return
        self._finite += 1
        grows = self._finite == self._interval
        if grows:
            self._finite = 0
            grown = min(float32(self.scale * self._growth), self._max)
            self.scale = grown if math.isfinite(grown) else self.scale
        if grows or self._consecutive:
            self._left = self._hysteresis

    def _overflow(self) -> None:
        if self._left > 1:
            self._left -= 1
            return
        self.exhausted |= self._raises and self.scale <= self._min
        self.scale = max(float32(self.scale * self._backoff), self._min)


class LogMax:
    """Follows mean and deviation of log2 of the largest gradient."""

    exhausted = False

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.scale = float32(constants["init_scale"])
        self._top, self._deviations = constants["log_max"], constants["overflow_std_dev"]
        self._decay = (constants["beta1"], constants["beta2"], constants["beta2"])
        self._min, self._max = _limits(constants)
        self._sums, self._weights = [0.0] * 3, [0.0] * 3

    def update(self, found: bool, largest: float = 0.0, inside: Sequence[float] | Array = ()) -> None:
        if not found and not largest > 0:
            return
        log = self._top if found else math.log2(largest)
        for i, (decay, now) in enumerate(zip(self._decay, (log, log, log * log), strict=True)):
            self._sums[i] = decay * self._sums[i] + (1 - decay) * now
            self._weights[i] = decay * self._weights[i] + (1 - decay)
        mean, slow, square = (s / w for s, w in zip(self._sums, self._weights, strict=True))
        cutoff = mean + self._deviations * math.sqrt(max(square - slow * slow, 0.0))
        self.scale = float32(min(max(2.0 ** min(max(self._top - cutoff, -200.0), 200.0), self._min), self._max))


class PerLayer(Dynamic):
    """A dynamic scale for all and a power of two for each layer, `exponents`."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        super().__init__(constants)
        self._wanted, self._limit = FLOAT16_TOP - constants["headroom_bits"], constants["max_exponent"]
        self.exponents = np.zeros(0, dtype=np.int64)

    def update(self, found: bool, largest: float = 0.0, inside: Sequence[float] | Array = ()) -> None:
        super().update(found)
        seen = np.asarray(inside, dtype=np.float64)
        was = self.exponents if len(self.exponents) else np.zeros(len(seen), dtype=np.int64)
        finite = np.isfinite(seen)
        wanted = np.minimum(was + self._wanted - (np.frexp(np.where(finite, seen, 1.0))[1] - 1), was + 1)
        after = np.where((seen > 0) & (not found), wanted, was)
        self.exponents = np.clip(np.where(finite, after, was - 1), -self._limit, self._limit)


RULES: dict[str, Callable[[Mapping[str, Any]], Rule]] = {
    "none": lambda constants: Fixed(1.0),
    "static": lambda constants: Fixed(constants["init_scale"]),
    "dynamic": Dynamic,
    "deepspeed": DeepSpeed,
    "logmax": LogMax,
    "per_layer": PerLayer,
}
"""By the name of a strategy's file in mpt/scaling/; a contract test holds each to its twin on the device."""


def rule_of(constants: Mapping[str, Any]) -> Rule:
    """The rule of a scaling configuration: its `rule`, else its `name`, and its numbers. Raises: KeyError."""
    return RULES[str(constants.get("rule") or constants["name"])](constants)


def _limits(constants: Mapping[str, Any]) -> tuple[float, float]:
    low, high = constants.get("min_scale"), constants.get("max_scale")
    return float32(SMALLEST if low is None else low), float32(LARGEST if high is None else high)
