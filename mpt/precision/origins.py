"""Which op made inf or NaN of finite numbers, in a forward and a backward pass, and in which line of whose code."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpt.dispatch import Mode
from mpt.precision.emulate import Emulation
from mpt.precision.nested import tensors
from mpt.precision.owners import ByStorage, Owners, Phase, place
from mpt.precision.spoilt import Extent, advice, deliberate, divides_by_zero, extent, has_nan, spoilt
from mpt.usercode import calling_line

_CASTS = (torch.ops.aten._to_copy, torch.ops.aten.to)

_NODES = {"tocopy": "cast", "to": "cast"}
"""Names of autograd's nodes that nobody would know."""


@dataclass(frozen=True)
class Origin:
    """An op whose operands were finite (`of` finite), a divisor among them 0 (`of` zero), or had inf and no NaN (`of`
    inf), and whose result was not.

    `line` is the innermost one that is neither torch's nor mpt's; in backward that of the op whose gradient it is.
    """

    op: str
    module: str
    line: str
    phase: Phase
    made: str
    of: str
    input: Extent | None
    output: Extent | None

    def told(self) -> str:
        """One sentence, and what to do about it."""
        what = f"the gradient of `{self.op}`" if self.phase == "backward" else f"`{self.op}`"
        head = f"{what} in {place(self.module, self.line)} made {self.made} of {self._operands()}"
        format_name = self.output["format"] if self.output else ""
        return f"{head}: {advice(self.op, self.made, self.of, format_name, self.module)}"

    def _operands(self) -> str:
        if self.of == "zero":
            return "a division by 0"
        if self.of == "inf":
            return "inf"
        numbers = f"finite {self.input['format']} numbers" if self.input else "finite numbers"
        ends = [abs(v) for v in (self.input["min"], self.input["max"]) if v is not None] if self.input else []
        return f"{numbers} up to {max(ends):.3g}" if ends else numbers

    def document(self) -> dict[str, Any]:
        """Plain containers, the sentence among them."""
        return {**asdict(self), "told": self.told()}


class Origins(Mode):
    """While entered, non-finite numbers are followed from the op that made them; reads the device at each op.

    `of` a tensor is the op to which its inf or NaN go back, None where it has none or it was given them: by the batch,
    by a constant that the code wrote.
    """

    emulating = False

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: list[Origin] = []
        self._model = model
        self._owners = Owners()
        self._emulated = ""
        self._traces: ByStorage[Origin | None] = ByStorage()
        self._numbers: list[int] = []
        self._lines: list[str] = []

    def __enter__(self) -> Any:
        self._owners.follow(self._model, lambda _: None)
        Emulation.watchers.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        Emulation.watchers.remove(self)
        self._owners.leave()

    def of(self, t: Tensor) -> Origin | None:
        return self._traces.get(t)

    def first_of(self, found: list[Tensor]) -> Origin | None:
        """The earliest op to which inf or NaN in any of these tensors go back."""
        back = {id(origin) for t in found if (origin := self.of(t)) is not None}
        return next((origin for origin in self.found if id(origin) in back), None)

    def saw(self, func: Any, args: tuple[Any, ...], compute: str) -> None:
        """The cast that follows rounds the result of this op, told of by the emulation."""
        self._emulated = func.overloadpacket.__name__

    def holds(self, x: Tensor, label: str) -> None:
        pass

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._owners.of(torch._C._current_autograd_node())[1] == "forward":
            self._numbers.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
            self._lines.append(calling_line())
        before = [(t, has_nan(t)) for t in tensors((args, kwargs)) if spoilt(t)]  # the op may work in place
        out = func(*args, **kwargs)
        bad = [t for t in tensors(out) if spoilt(t)]
        if bad:
            self._follow(func, args, kwargs, before, bad)
        if not self.emulating and func.overloadpacket not in _CASTS:
            self._emulated = ""
        return out

    def _follow(self, func: Any, args: Any, kwargs: Any, before: list[tuple[Tensor, bool]], bad: list[Tensor]) -> None:
        """What is non-finite goes back to where its operands' was, to this op, or to nothing: somebody wrote it."""
        origin = next((o for t, _ in before if (o := self.of(t)) is not None), None)
        turns = bool(before) and not any(nan for _, nan in before) and any(has_nan(t) for t in bad)
        if origin is None and (turns or not (before or deliberate(func, args, kwargs))):
            of = "inf" if before else "zero" if divides_by_zero(func, args) else "finite"
            origin = self._origin(func, args, bad, of)
        for t in bad:
            self._traces.put(t, origin)

    def _origin(self, func: Any, args: Any, bad: list[Tensor], of: str) -> Origin:
        node = torch._C._current_autograd_node()
        module, phase = self._owners.of(node)
        op, line = func.overloadpacket.__name__.strip("_"), self._lines[-1] if self._lines else ""
        if func.overloadpacket in _CASTS:
            op = self._emulated or "cast"
        if phase == "backward" and node is not None:
            at = bisect_right(self._numbers, node._sequence_nr())
            line = self._lines[at] if at < len(self._lines) else ""
            op = _NODES.get(name := node.name().rpartition("Backward")[0].lower(), name) or op
        made = "nan" if any(has_nan(t) for t in bad) else "inf"
        given = extent([t for t in tensors(args) if t.is_floating_point()])
        found = Origin(op, "the loss" if module is None else module, line, phase, made, of, given, extent(bad))
        self.found.append(found)
        return found
