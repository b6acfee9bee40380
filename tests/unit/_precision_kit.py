"""Policies, facts and small nets that the tests of precision share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpt.config.schema import LayerRule, PrecisionConfig
from mpt.precision import Mechanism, Policy, flags, install, resolve
from mpt.precision.ops import KINDS
from mpt.types import DeviceFacts

CPU = DeviceFacts("cpu", "a CPU", torch.__version__)

ROLES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "tf32": {"compute": "tfloat32"},
    "bf16": {"compute": "bfloat16"},
    "fp16": {"compute": "float16"},
    "bf16_true": {"compute": "bfloat16", "param": "bfloat16", "moment": "bfloat16"},
    "fp16_true": {"compute": "float16", "param": "float16", "moment": "float16"},
    "fp16_master": {"compute": "float16", "param": "float16", "master": "float32"},
}
POLICIES = list(ROLES)
HALF = [name for name, roles in ROLES.items() if roles.get("compute") in ("bfloat16", "float16")]


def policy_config(name: str, **changes: Any) -> PrecisionConfig:
    defaults: dict[str, Any] = dict(
        backend="auto", param="float32", compute="float32", master=None, moment="float32", scaling="none",
        keep=list(KINDS), layers=[],
    )  # fmt: skip
    return PrecisionConfig(name=name, **{**defaults, **ROLES[name], **changes})


def rules(*pairs: tuple[str, str]) -> list[LayerRule]:
    return [LayerRule(match, format_name) for match, format_name in pairs]


class Cnn(nn.Module):
    """Convolution, batch norm, group norm and a linear head, on 3×8×8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3)
        self.gn = nn.GroupNorm(2, 8)
        self.head = nn.Linear(8 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        return self.head(torch.relu(self.gn(self.conv2(x))).flatten(1))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = (t.view(b, n, 2, d // 2).transpose(1, 2) for t in self.qkv(x).split(d, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Gpt(nn.Module):
    """Two blocks with attention and a head tied to the embedding, on 20 tokens."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.blocks = nn.ModuleList([Block(width), Block(width)])
        self.head = nn.Linear(width, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x)

    def run(self, block: nn.Module, x: Tensor) -> Tensor:
        return block(x)


def images(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 3, 8, 8, generator=generator), torch.randint(0, 10, (4,), generator=generator)


def tokens(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 20, (2, 6), generator=generator) for _ in range(2))  # type: ignore[return-value]


def built(make: Callable[[], nn.Module], cfg: PrecisionConfig, seed: int = 0) -> tuple[nn.Module, Policy, Mechanism]:
    """A seeded model with the policy installed on the CPU."""
    torch.manual_seed(seed)
    model = make()
    mechanism = resolve(cfg, CPU)
    return model, install(model, cfg, mechanism), mechanism


def switched(cfg: PrecisionConfig) -> AbstractContextManager[None]:
    return flags(cfg, CPU)


def pass_through(model: nn.Module, policy: Policy, batch: tuple[Tensor, Tensor]) -> Tensor:
    """One forward and backward as the loop makes them; the loss."""
    inputs, targets = batch
    with policy.forward():
        logits = model(inputs)
    loss = F.cross_entropy(logits.float().flatten(0, -2), targets.flatten())
    with policy.backward():
        loss.backward()
    return loss.detach()
