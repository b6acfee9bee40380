"""A decoder-only transformer in the form of GPT-2: pre-norm, learned positions, tied head.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
B batch, L length, D width, H heads, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from mpt.config.options import merged
from mpt.errors import ModelError, Problem
from mpt.models._options import require_fraction, require_kind, require_positive
from mpt.types import DataSpec, InputSpec

CONVOLUTIONAL = False
DEFAULTS = {"layers": 4, "heads": 4, "width": 128, "context": 64, "dropout": 0.0, "bias": True}
# GPT-2's standard deviation of initial weights.
INIT_STD = 0.02


def input_spec(options: Mapping[str, Any]) -> InputSpec:
    """Windows of `context` tokens."""
    o = merged("model", options, DEFAULTS)
    require_positive(o, "context")
    return InputSpec("tokens", context=o["context"])


def build(options: Mapping[str, Any], data: DataSpec) -> nn.Module:
    """A transformer over the data's vocabulary with `context` learned positions.

    Raises: ConfigError for unknown options; ModelError for contradicting ones, or data that are not tokens.
    """
    o = merged("model", options, DEFAULTS)
    require_positive(o, "layers", "heads", "width", "context")
    require_fraction(o, "dropout")
    require_kind("gpt", data, "tokens")
    if o["width"] % o["heads"]:
        what = f"got {o['width']}, which {o['heads']} heads do not divide"
        raise ModelError(Problem("model.width", what, "make model.width a multiple of model.heads"))
    if data.shape[0] > o["context"]:
        what = f"got {o['context']}, but the data's windows have {data.shape[0]} tokens"
        raise ModelError(Problem("model.context", what, f"use model.context={data.shape[0]}"))
    return GPT(data.num_classes, o["context"], o["layers"], o["heads"], o["width"], o["dropout"], o["bias"])


class Attention(nn.Module):
    """Causal self-attention with one matmul for queries, keys and values."""

    def __init__(self, heads: int, width: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x_BLD: Tensor) -> Tensor:
        batch, length, width = x_BLD.shape
        qkv = self.qkv(x_BLD).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


class Block(nn.Module):
    """Attention, then a two-layer perceptron four times as wide, each added to its input."""

    def __init__(self, heads: int, width: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, bias=bias)
        self.attention = Attention(heads, width, dropout, bias)
        self.norm2 = nn.LayerNorm(width, bias=bias)
        self.up = nn.Linear(width, 4 * width, bias=bias)
        self.act = nn.GELU(approximate="tanh")
        self.down = nn.Linear(4 * width, width, bias=bias)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = x_BLD + self.drop(self.attention(self.norm1(x_BLD)))
        x_BLD = x_BLD + self.drop(self.down(self.act(self.up(self.norm2(x_BLD)))))
        return x_BLD


class GPT(nn.Module):
    """Token ids B,L to logits B,L,V; the head's weight is the embedding's."""

    def __init__(
        self, vocabulary: int, positions: int, layers: int, heads: int, width: int, dropout: float, bias: bool
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        self.blocks = nn.ModuleList(Block(heads, width, dropout, bias) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=bias)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self._init(layers)

    def _init(self, layers: int) -> None:
        """Normal weights, zero biases; layers that write to the residual stream start smaller, by their number."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                residual = name.endswith(("attention.out", "down"))
                nn.init.normal_(module.weight, std=INIT_STD / math.sqrt(2 * layers) if residual else INIT_STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, ids_BL: Tensor) -> Tensor:
        length = ids_BL.shape[1]
        # A slice of the table is what an embedding of 0 … L-1 looks up, without making those ids each step.
        x_BLD = self.drop(self.tokens(ids_BL) + self.positions.weight[:length])
        for block in self.blocks:
            x_BLD = block(x_BLD)
        logits: Tensor = self.head(self.norm(x_BLD))
        return logits
