"""GPUs by name: what they are called, how much they have, and what they reach at most. Plans need none of them here.

Peaks are dense, never the sparse headline, with float32 sums. Sources: NVIDIA's and AMD's data sheets and white papers
of each product; compute capabilities: NVIDIA, "CUDA GPU Compute Capability", and for AMD what torch tells (gfx942,
gfx950).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Gpu:
    """One product. `name` is as its driver tells it; `names` matches every such name, and nothing else.

    Units: GB (10^9 bytes); watts of the whole board at most; TB/s; TFLOP/s, None where it has no such products.
    """

    key: str
    forms: tuple[str, ...]
    name: str
    names: str
    capability: tuple[int, int]
    memory_gb: float
    power_w: float
    bandwidth_tb_s: float
    float32: float
    tfloat32: float | None
    float16: float
    bfloat16: float | None
    float8: float | None = None
    float4: float | None = None

    def peak_tflops(self, form: str) -> float | None:
        """The dense peak of products of that format; None where it has none, or none is known.

        `form` is a compute format or a label of low-bit operands (`float8_e4m3fn`, `mxfp8 (float8_e5m2)`, `nvfp4`).
        """
        if form in ("float32", "tfloat32", "float16", "bfloat16"):
            peak: float | None = getattr(self, form)
            return peak
        bits = next((bits for bits, pattern in _LOW if re.search(pattern, form)), None)
        return {8: self.float8, 6: self.float8, 4: self.float4}.get(bits or 0)


_LOW = ((4, r"fp4|e2m1"), (6, r"fp6|e3m2|e2m3"), (8, r"fp8|e4m3|e5m2"))
"""Bits of an element by how its format is spelled. Products of 6 bits run at the rate of 8 bits."""

_NV = "(?:NVIDIA )?"

TABLE = (
    Gpu("v100", ("sxm", "sxm2"), "Tesla V100-SXM2-32GB", r"Tesla V100-SXM2-\d+GB(?:-LS)?",
        (7, 0), 32, 300, 0.90, 15.7, None, 125, None),
    Gpu("t4", (), "Tesla T4", "(?:Tesla )?T4", (7, 5), 16, 70, 0.32, 8.1, None, 65, None),
    Gpu("a10", (), "NVIDIA A10", "A10", (8, 6), 24, 150, 0.60, 31.2, 62.5, 125, 125),
    Gpu("l4", (), "NVIDIA L4", "L4", (8, 9), 24, 72, 0.30, 30.3, 60, 121, 121, 242),
    Gpu("rtx3090", (), "NVIDIA GeForce RTX 3090", "GeForce RTX 3090", (8, 6), 24, 350, 0.936, 35.6, 35.6, 71, 71),
    Gpu("rtx4090", (), "NVIDIA GeForce RTX 4090", "GeForce RTX 4090",
        (8, 9), 24, 450, 1.008, 82.6, 82.6, 165.2, 165.2, 330.3),
    Gpu("rtx5090", (), "NVIDIA GeForce RTX 5090", "GeForce RTX 5090",
        (12, 0), 32, 575, 1.792, 105, 105, 209.5, 209.5, 419, 1676),
    Gpu("a100", ("sxm", "sxm4", "80gb"), "NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB",
        (8, 0), 80, 400, 2.0, 19.5, 156, 312, 312),
    Gpu("a100-40gb", (), "NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", (8, 0), 40, 400, 1.6, 19.5, 156, 312, 312),
    Gpu("h100-pcie", (), "NVIDIA H100 PCIe", "H100 PCIe", (9, 0), 80, 350, 2.0, 51, 378, 756, 756, 1513),
    Gpu("h100", ("sxm", "sxm5"), "NVIDIA H100 80GB HBM3", "H100(?: SXM5)? 80GB(?: HBM3)?",
        (9, 0), 80, 700, 3.35, 67, 494.5, 989, 989, 1979),
    Gpu("h100-nvl", (), "NVIDIA H100 NVL", "H100 NVL", (9, 0), 94, 400, 3.9, 60, 418, 835, 835, 1671),
    Gpu("h200", ("sxm",), "NVIDIA H200", "H200", (9, 0), 141, 700, 4.8, 67, 494.5, 989, 989, 1979),
    Gpu("h200-nvl", (), "NVIDIA H200 NVL", "H200 NVL", (9, 0), 141, 600, 4.8, 60, 418, 836, 836, 1671),
    Gpu("b200", ("sxm",), "NVIDIA B200", "B200", (10, 0), 180, 1000, 8.0, 80, 1125, 2250, 2250, 4500, 9000),
    Gpu("b300", ("sxm",), "NVIDIA B300 SXM6 AC", "B300(?: SXM6 AC)?",
        (10, 3), 270, 1400, 8.0, 80, None, 2250, 2250, 4500, 14000),
    Gpu("gb200", (), "NVIDIA GB200", "GB200", (10, 0), 186, 1200, 8.0, 80, 1250, 2500, 2500, 5000, 10000),
    Gpu("mi300x", (), "AMD Instinct MI300X", "AMD Instinct MI300X(?: OAM| VF)?",
        (9, 4), 192, 750, 5.3, 163.4, 653.7, 1307, 1307, 2614),
    Gpu("mi355x", (), "AMD Instinct MI355X", "AMD Instinct MI355X(?: OAM| VF)?",
        (9, 5), 288, 1400, 8.0, 157, None, 2500, 2500, 5000, 10100),
)  # fmt: skip

GPUS: dict[str, Gpu] = {name: gpu for gpu in TABLE for name in (gpu.key, *(f"{gpu.key}-{form}" for form in gpu.forms))}
"""By each name that device= takes."""


@cache
def gpu_of(driver_name: str) -> Gpu | None:
    """The row of a GPU by the name that its driver tells (torch.cuda.get_device_name, nvidia-smi); None for others.

    A part of one (MIG) and products of a similar name (A10G, RTX 4090 D, H20, GH200) are others.
    """
    return next((gpu for gpu in TABLE if re.fullmatch(_NV + gpu.names, driver_name.strip())), None)
