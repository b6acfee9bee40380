"""FLOPs of products: torch's own counter for what it knows, hand-worked numbers for what it counts as 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from mpt.precision.flops import flops


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.total += flops(func, args) or 0
        return func(*args, **(kwargs or {}))


def both(run: Any) -> tuple[int, int]:
    """Ours and torch's."""
    with Counted() as ours:
        run()
    with FlopCounterMode(display=False) as theirs:
        run()
    return ours.total, theirs.get_total_flops()


CONVOLUTIONS = {
    "plain": nn.Conv2d(4, 6, 3),
    "strided and padded": nn.Conv2d(4, 6, 3, stride=2, padding=1),
    "dilated": nn.Conv2d(4, 6, 3, dilation=2),
    "grouped": nn.Conv2d(4, 8, 3, groups=2),
    "transposed": nn.ConvTranspose2d(4, 6, 3, stride=2),
}


@pytest.mark.parametrize("conv", CONVOLUTIONS.values(), ids=list(CONVOLUTIONS))
@pytest.mark.parametrize("wants_input", [True, False])
def test_convolutions_agree_with_torchs_counter(conv: nn.Module, wants_input: bool) -> None:
    x = torch.randn(2, 4, 9, 11, requires_grad=wants_input)
    ours, theirs = both(lambda: conv(x))
    assert ours == theirs > 0
    # a backward has as many products of the same size as there are gradients; torch's counter has more where grouped
    with Counted() as counted:
        conv(x).sum().backward()
    assert counted.total == ours * (3 if wants_input else 2)


def test_products_of_matrices_agree_with_torchs_counter() -> None:
    a, b, c = torch.randn(3, 4, 5, requires_grad=True), torch.randn(3, 5, 6), torch.randn(4, 5)
    linear = nn.Linear(5, 7)

    def run() -> None:
        (a @ b).sum().backward()
        linear(a).sum().backward()
        torch.addmm(torch.randn(4, 6), c, b[0])
        torch.baddbmm(torch.randn(3, 4, 6), a.detach(), b)

    ours, theirs = both(run)
    assert ours == theirs > 0


def test_products_with_vectors_are_two_operations_for_each_element() -> None:
    m, v = torch.randn(4, 5), torch.randn(5)
    with Counted() as counted:
        torch.mv(m, v)
        torch.dot(v, v)
        torch.addmv(torch.randn(4), m, v)
        torch.addr(torch.randn(4, 5), torch.randn(4), v)
    assert counted.total == 2 * (20 + 5 + 20 + 20)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_counts_scores_and_mixture_whole_and_twice_that_backward(causal: bool) -> None:
    # batch 2, heads 3, length 16, width 8
    q, k, v = (torch.randn(2, 3, 16, 8, requires_grad=True) for _ in range(3))
    with Counted() as counted:
        out: Tensor = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        forward = counted.total
        out.sum().backward()
    assert forward == 2 * (2 * 3 * 16 * 16 * 8) * 2
    assert counted.total == 3 * forward


def test_a_recurrent_layer_can_not_be_counted() -> None:
    found = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found.append(flops(func, args))
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Names():  # type: ignore[no-untyped-call]
        nn.LSTM(4, 4)(torch.randn(3, 2, 4))
    assert None in found
