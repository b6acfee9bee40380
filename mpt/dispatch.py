"""Modes that see each op from below autograd, whoever calls it."""

from __future__ import annotations

from typing import Self

from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, each op goes through `__torch_dispatch__`."""

    def __init_subclass__(cls) -> None:
        """Not torch's, which imports its compiler (1.4 s) to keep it out of `__torch_dispatch__`, and wraps that."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
