"""The audit: one forward and backward observed, and compared with what was planned."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from torch import nn

from mpt.formats.attention import Attention
from mpt.formats.operand import SAME, Gemms, Product
from mpt.precision.assignment import computing
from mpt.precision.capability import Mechanism
from mpt.precision.emulate import Emulation
from mpt.precision.low.attending import attending
from mpt.precision.low.eligible import lowered
from mpt.precision.observe import Observer, Seen
from mpt.precision.owners import PHASES, Phase
from mpt.precision.roles import own_parameters
from mpt.precision.rules import formats_inside
from mpt.precision.switches import eagerly
from mpt.types import Audit, AuditRow, ModuleRow

if TYPE_CHECKING:
    from mpt.config.schema import PrecisionConfig


class Auditor:
    """A context manager around one forward and backward that sees what every module's GEMMs and norms multiply.

    It changes no number and leaves no hook behind. A compiled model runs eagerly inside. After it,
    `activation_bytes` is what was alive at the end of forward and not before, `peak_bytes` the most that was.
    """

    def __init__(
        self, model: nn.Module, rows: tuple[ModuleRow, ...], cfg: PrecisionConfig, mechanism: Mechanism
    ) -> None:
        self._model = model
        self._rows = {row.name: row for row in rows}
        self._inside = formats_inside(model, cfg)
        self._low = lowered(model, cfg).gemms
        self._attending = attending(model, cfg)
        self._mechanism = mechanism
        self._observer = Observer(model)
        self._stack = ExitStack()

    def __enter__(self) -> Auditor:
        self._stack.enter_context(eagerly())
        self._stack.enter_context(self._observer)
        Emulation.watchers.append(self._observer)
        self._stack.callback(Emulation.watchers.remove, self._observer)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    @property
    def activation_bytes(self) -> int:
        return self._observer.activation_bytes

    @property
    def peak_bytes(self) -> int:
        return self._observer.live.peak

    @property
    def flops(self) -> dict[str, int]:
        """Operations of all products, by the format of their operands."""
        return dict(self._observer.flops)

    @property
    def uncounted(self) -> set[str]:
        """Ops that multiply and are not in `flops`."""
        return self._observer.uncounted

    def result(self) -> Audit:
        """Planned against observed, a row for each planned module and for others that were seen multiplying."""
        seen = self._observer.seen
        rows = [self._judge(name, module, seen[name]) for name, module in computing(self._model, self._attending)]
        listed = {row.name for row in rows}
        others = [name for name, s in seen.items() if s.multiplied() and name not in listed]
        rows += [self._judge(name, self._model.get_submodule(name), seen[name]) for name in others]
        loss = self._observer.loss_format
        agrees = all(row.matches for row in rows) and loss in ("float32", "-")
        notes = () if loss in ("float32", "-") else (f"the loss was {loss}, not float32",)
        misfits = self._observer.misfits.told
        return Audit("match" if agrees else "differs", tuple(rows), loss, (*notes, *misfits), misfits)

    def _judge(self, name: str, module: nn.Module, seen: Seen) -> AuditRow:
        row = self._rows.get(name)
        planned = self._inside[name]
        gemms = self._low.get(name)
        attention = self._attending.get(name)
        if attention is not None:
            wrong, planned = _wrong_attention(attention, planned, seen), attention.label
        elif gemms is not None:
            wrong, planned = _wrong_low(gemms, planned, seen), gemms.label
        else:
            wrong = _wrong_gemms(planned, seen)
        notes = [*wrong, *_wrong_norms(row, seen), *_wrong_parameters(row, module)]
        if row is not None and not seen.multiplied():
            planned = row.compute
        matches = not notes
        if matches:
            notes += _remarks(seen, row)
        return AuditRow(name, planned, seen.formats("forward"), seen.formats("backward"), matches, "; ".join(notes))


def _wrong_norms(row: ModuleRow | None, seen: Seen) -> list[str]:
    wrong = []
    if row is not None and row.kind == "norm" and row.compute == "float32":
        odd = sorted((seen.norms["forward"] | seen.norms["backward"]) - {"float32"})
        wrong += [f"normalised in {f}, planned float32" for f in odd]
    wrong += [f"statistics in {f}, not float32" for f in sorted(seen.statistics - {"float32"})]
    return wrong


def _wrong_gemms(planned: str, seen: Seen) -> list[str]:
    return [
        f"{phase} multiplied {', '.join(odd)}, planned {planned}"
        for phase in PHASES
        if (odd := sorted(_multiplied(planned, seen, phase) - {planned}))
    ]


def _wrong_low(gemms: Gemms, compute: str, seen: Seen) -> list[str]:
    """Each product of a low-bit layer multiplies its own two formats; an operand that stays high, the compute one."""
    forward = _formats((gemms.forward,), gemms, compute)
    backward = _formats((gemms.grad_input, gemms.grad_weight), gemms, compute)
    wrong = []
    for phase, wanted in (("forward", forward), ("backward", backward)):
        got = seen.gemms[phase] | seen.plain_vectors[phase]  # type: ignore[index]
        if got - wanted:
            wrong.append(f"{phase} multiplied {', '.join(sorted(got - wanted))}, planned {', '.join(sorted(wanted))}")
    return wrong


def _wrong_attention(attention: Attention, compute: str, seen: Seen) -> list[str]:
    """Forward multiplies the named operands, backward the same with gradients in the compute format."""
    labels = {op.label if op.low else compute for op in attention.operands()}
    wrong = [] if seen.multiplied() or not seen.ran else ["multiplied nothing itself: attention is elsewhere"]
    for phase, wanted in (("forward", labels), ("backward", labels | {compute})):
        odd = sorted(seen.gemms[phase] - wanted)  # type: ignore[index]
        if odd:
            wrong.append(f"{phase} multiplied {', '.join(odd)}, planned {', '.join(sorted(wanted))}")
    return wrong


def _formats(products: tuple[Product, ...], gemms: Gemms, compute: str) -> set[str]:
    found = set()
    for product in products:
        same = gemms.forward.left if product is gemms.grad_weight else gemms.forward.right
        for op in (product.left, product.right):
            held = same if op.format == SAME else op
            found.add(held.label if held.low else compute)
    return found


def _multiplied(planned: str, seen: Seen, phase: Phase) -> set[str]:
    return seen.gemms[phase] | (set() if planned == "tfloat32" else seen.plain_vectors[phase])


def _wrong_parameters(row: ModuleRow | None, module: nn.Module) -> list[str]:
    if row is None or row.param == "-":
        return []
    stored = {str(p.dtype).removeprefix("torch.") for p in own_parameters(module)}
    if stored == set(row.param.split("/")):
        return []
    return [f"parameters are {'/'.join(sorted(stored))}, planned {row.param}"]


def _remarks(seen: Seen, row: ModuleRow | None) -> list[str]:
    remarks = []
    if seen.emulated:
        low = row is not None and "/" in row.compute
        remarks.append("emulated: rounded operands" if low else "emulated: multiplied in float32, rounded back")
    if row is not None and not seen.ran:
        remarks.append("took no part in this pass")
    return remarks
