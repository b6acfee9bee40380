"""Modes that see each op from below autograd, whoever calls it."""

from __future__ import annotations

from typing import Self

from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, ops go through `__torch_dispatch__`, as it stands there: a compiler has nothing to do with it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch would import its compiler (1.4 s) to keep it out of `__torch_dispatch__`, and wrap each call."""
        return False
