"""GPUs that a plan can be made for although they are not there: names and compute capabilities."""

from __future__ import annotations

from typing import NamedTuple


class Gpu(NamedTuple):
    """Name as its driver tells it, and compute capability."""

    name: str
    capability: tuple[int, int]


_KNOWN: dict[str, Gpu] = {
    "v100": Gpu("Tesla V100-SXM2-32GB", (7, 0)),
    "t4": Gpu("Tesla T4", (7, 5)),
    "a100": Gpu("NVIDIA A100-SXM4-80GB", (8, 0)),
    "a10": Gpu("NVIDIA A10", (8, 6)),
    "rtx3090": Gpu("NVIDIA GeForce RTX 3090", (8, 6)),
    "l4": Gpu("NVIDIA L4", (8, 9)),
    "rtx4090": Gpu("NVIDIA GeForce RTX 4090", (8, 9)),
    "h100": Gpu("NVIDIA H100 80GB HBM3", (9, 0)),
    "h200": Gpu("NVIDIA H200", (9, 0)),
    "b200": Gpu("NVIDIA B200", (10, 0)),
    "rtx5090": Gpu("NVIDIA GeForce RTX 5090", (12, 0)),
}
_FORMS: dict[str, tuple[str, ...]] = {
    **{"v100": ("sxm", "sxm2"), "a100": ("sxm", "sxm4"), "h100": ("sxm", "sxm5"), "h200": ("sxm",), "b200": ("sxm",)},
}
"""Forms that are sold under the same name and capability, by GPU."""

GPUS: dict[str, Gpu] = {
    name: gpu for key, gpu in _KNOWN.items() for name in (key, *(f"{key}-{form}" for form in _FORMS.get(key, ())))
}
"""By each name that device= takes. Source: NVIDIA, "CUDA GPU Compute Capability"."""
