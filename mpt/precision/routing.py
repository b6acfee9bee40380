"""Float32 products of large nets on AMD CPUs through oneDNN, where a probe proves that they stay float32.

torch sends them to MKL, whose kernels take a slow path on AMD; oneDNN's are about twice as fast. The switch that
routes them there allows oneDNN to multiply in bfloat16, which it does on CPUs with AMX: so nothing is routed unless
products that only float32 gets right come out right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mpt.precision.probe import proof
from mpt.precision.switches import float32_through_onednn
from mpt.types import DeviceFacts

MIN_PRODUCTS = 2**21
"""Multiplications in a linear layer from which oneDNN gains: on a Zen 5 core its forward and backward took 1.06 of
MKL's time at 2^20, 0.81 at 2^21, 0.66 at 2^22, and up to twice as long for tiny ones."""


def suits(facts: DeviceFacts, products: float) -> bool:
    """Whether `products` multiplications in a typical linear layer gain by oneDNN on that device."""
    return facts.type == "cpu" and "AMD" in facts.name and products >= MIN_PRODUCTS


@contextmanager
def routed(wanted: bool) -> Iterator[str | None]:
    """Float32 matrix products go through oneDNN inside if `wanted` and exact; gives the sentence on the outcome.

    None where nothing was wanted.
    """
    if not wanted:
        yield None
        return
    with float32_through_onednn():
        found = proof("cpu")
        if found["format"] == "float32":
            yield f"float32 products go through oneDNN: relative error {found['relative_error']:.1e}, as float32 has"
            return
    yield f"float32 products stay with torch's kernels: oneDNN's are {found['format']} on this CPU"
