"""Attention over short contexts on a CPU by products of whole matrices: a kernel in place of torch's.

torch's kernel goes through each head in tiles. That pays for long contexts; for short ones most of its time goes into
starting small products. This one multiplies several heads at once. It takes and gives what torch's does, and computes
in the same formats: scores, sums and softmax in float32, probabilities rounded to the operands' format before they are
multiplied, scores computed again in the backward pass. So plans, audits and predictions can't tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mpt.precision.switches import float32_goes_to_onednn
from mpt.types import DeviceFacts

MAX_KEYS = 256
"""Longest context for which it is taken: on two Zen 5 cores forward and backward of 64-wide heads took 0.3 to 0.4 of
torch's time at 64 and 128 keys, 0.5 at 197 and 0.6 to 0.7 at 256 where oneDNN multiplies; with MKL 0.4 to 0.9 in
bfloat16, and as long as torch in float32."""
_SCORES = 2**19
"""At a time: 2 MiB in float32, which stay in a core's cache, and are no more memory than a tile of any product."""
_FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD = f"{_FORWARD}_backward"
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

_Theirs = Callable[..., Any]
_Formats = tuple[torch.dtype, ...]


def suits(facts: DeviceFacts) -> bool:
    """Whether it has been measured to be faster on such a device, and this torch lets its own kernel be called."""
    return facts.type == "cpu" and "AMD" in facts.name and getattr(torch.library, "get_kernel", None) is not None


@contextmanager
def short_attention(wanted: bool) -> Iterator[str | None]:
    """In place of torch's kernel inside, if wanted; gives the sentence on it."""
    if not wanted:
        yield None
        return
    formats = (torch.bfloat16, *([torch.float32] if float32_goes_to_onednn() else []))
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        for name, make in ((_FORWARD, _forward), (_BACKWARD, _backward)):
            op = getattr(torch.ops.aten, name).default
            kernel = make(torch.library.get_kernel(op, "CPU").call_boxed, formats)
            library.impl(op, kernel, "CPU", allow_override=True)  # type: ignore[no-untyped-call]
        yield f"attention over at most {MAX_KEYS} keys multiplies several heads at once"
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def _forward(theirs: _Theirs, formats: _Formats) -> _Theirs:
    def kernel(
        query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, **more: Any
    ) -> Any:
        if query.dtype not in formats or not _takes(query, key, value, dropout_p, more):
            return theirs(_CPU, query, key, value, dropout_p, is_causal, **more)
        return attend(query, key, value, is_causal, _scale(query, more))

    return kernel


def _backward(theirs: _Theirs, formats: _Formats) -> _Theirs:
    def kernel(
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        dropout_p: float,
        is_causal: bool,
        **more: Any,
    ) -> Any:
        if query.dtype not in formats or not _takes(query, key, value, dropout_p, more):
            return theirs(_CPU, grad, query, key, value, out, logsumexp, dropout_p, is_causal, **more)
        return gradients(grad, query, key, value, out, is_causal, _scale(query, more))

    return kernel


def _takes(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, more: dict[str, Any]) -> bool:
    plain = more.get("attn_mask") is None and not dropout_p
    alike = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    return plain and alike and 0 < key.shape[-2] <= MAX_KEYS and query.numel() > 0


def _scale(query: Tensor, more: dict[str, Any]) -> float:
    given = more.get("scale")
    return 1 / math.sqrt(query.shape[-1]) if given is None else float(given)


def attend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """softmax(scale · query keyᵀ) value, and the logarithm of each row's sum of exponentials in float32.

    Shapes: query (B, H, L, D), key (B, H, S, D), value (B, H, S, E) to (B, H, L, E) and (B, H, L); results lie in
    memory as (B, L, H, …), which is what comes next.
    """
    b, h, length, _ = query.shape
    q, k, v = (_heads(x) for x in (query, key, value))
    hidden = _hidden(length, k.shape[1]) if is_causal else None
    out, sums = v.new_empty(b * h, length, v.shape[2]), v.new_empty(b * h, length, dtype=torch.float32)
    for part in _parts(b * h, length * k.shape[1]):
        scores = _scores(q[part], k[part], hidden, scale)
        weights = scores.softmax(-1)
        # A row's largest weight is exp(its score - sum).
        torch.sub(scores.amax(-1), weights.amax(-1).log_(), out=sums[part])
        torch.bmm(weights.to(v.dtype), v[part], out=out[part])
    return _back(out, b, h), sums.view(b, h, length).transpose(1, 2).contiguous().transpose(1, 2)


def gradients(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Those of query, key and value, by that of `attend`'s first result. Shapes: as there; `grad` as `out`."""
    b, h, length, _ = query.shape
    q, k, v, g = (_heads(x) for x in (query, key, value, grad))
    hidden = _hidden(length, k.shape[1]) if is_causal else None
    mean = (g.float() * _heads(out).float()).sum(-1, keepdim=True)
    found = [torch.empty_like(x) for x in (q, k, v)]
    for part in _parts(b * h, length * k.shape[1]):
        weights = _scores(q[part], k[part], hidden, scale).softmax(-1)
        torch.bmm(weights.to(g.dtype).transpose(1, 2), g[part], out=found[2][part])
        slope = torch.bmm(g[part].float(), v[part].float().transpose(1, 2))
        slope = slope.sub_(mean[part]).mul_(weights).mul_(scale).to(q.dtype)
        torch.bmm(slope, k[part], out=found[0][part])
        torch.bmm(slope.transpose(1, 2), q[part], out=found[1][part])
    return _back(found[0], b, h), _back(found[1], b, h), _back(found[2], b, h)


def _scores(q: Tensor, k: Tensor, hidden: Tensor | None, scale: float) -> Tensor:
    """In float32 throughout. Shapes: (N, L, D) and (N, S, D) to (N, L, S)."""
    scores = torch.bmm(q.float() * scale, k.float().transpose(1, 2))
    return scores if hidden is None else scores.add_(hidden)


def _hidden(length: int, keys: int) -> Tensor:
    """−∞ for the keys behind each query's own, 0 for the rest."""
    return torch.full((length, keys), -math.inf).triu_(1)


def _heads(x: Tensor) -> Tensor:
    return x.reshape(-1, *x.shape[-2:])


def _back(x: Tensor, b: int, h: int) -> Tensor:
    """Heads of (B·H, L, E) as (B, H, L, E) that lies in memory as (B, L, H, E)."""
    return x.view(b, h, *x.shape[1:]).transpose(1, 2).contiguous().transpose(1, 2)


def _parts(heads: int, scores: int) -> Iterator[slice]:
    size = max(1, _SCORES // scores)
    return (slice(start, start + size) for start in range(0, heads, size))
