"""What ops really did: a mode below autocast, and the module that each op belongs to, in forward and in backward."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from mpt.dispatch import Mode
from mpt.precision.emulate import GEMMS, VECTORS
from mpt.precision.flops import flops
from mpt.precision.kept import Kept
from mpt.precision.live import LiveBytes
from mpt.precision.low.native import native_label
from mpt.precision.misfits import Misfits
from mpt.precision.nested import tensors
from mpt.precision.owners import Labels, Owners, Phase
from mpt.precision.switches import tfloat32_allowed
from mpt.recompute import recomputed

_aten = torch.ops.aten
_OTHER_GEMMS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
            *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_attention_math_for_mps"),
            *("_flash_attention_forward", "_efficient_attention_forward", "_transformer_encoder_layer_fwd"),
            "_native_multi_head_attention",
        ),
        (0, 1, 2),
    ),
    **dict.fromkeys(
        (
            *("_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_efficient_attention_backward"),
            *("_scaled_dot_product_cudnn_attention_backward", "_flash_attention_backward"),
            "_efficient_attention_backward",
        ),
        (0, 1, 2, 3),
    ),
    "_scaled_mm": (0, 1),
    "_scaled_mm_v2": (0, 1),
    **dict.fromkeys(("_cudnn_rnn", "_cudnn_rnn_backward", "miopen_rnn", "miopen_rnn_backward"), (0, 1, 4)),
}
"""Ops of other devices that multiply, by name, and which of their arguments are multiplied."""

_NORMS = (
    *("native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"),
    *("_fused_rms_norm", "_fused_rms_norm_backward"),
)
_BATCH_NORMS = (
    *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cudnn_batch_norm"),
    *("_batch_norm_with_update", "_batch_norm_no_update", "miopen_batch_norm"),
)


class Seen:
    """What was seen of one module: formats multiplied, normalised, and of all results, by phase.

    Float32 products with a vector are apart: TF32 hardware multiplies them so too.
    """

    def __init__(self) -> None:
        self.gemms: dict[Phase, set[str]] = {"forward": set(), "backward": set()}
        self.plain_vectors: dict[Phase, set[str]] = {"forward": set(), "backward": set()}
        self.norms: dict[Phase, set[str]] = {"forward": set(), "backward": set()}
        self.results: dict[Phase, set[str]] = {"forward": set(), "backward": set()}
        self.statistics: set[str] = set()
        self.emulated = False
        self.ran = False

    def multiplied(self) -> bool:
        return any(self.gemms.values())

    def formats(self, phase: Phase) -> tuple[str, ...]:
        """Operands of its GEMMs where it has any, else of its norm, else the formats of its results."""
        return tuple(sorted(self.gemms[phase] or self.norms[phase] or self.results[phase]))


class Observer(Mode):
    """Sees every op between `__enter__` and `__exit__`; `seen` is by module name.

    An op in backward belongs to the module in whose forward autograd numbered the node that runs it. Float32 products
    inside an op that the policy keeps in float32 (a determinant, a dot product) are that op's, not the module's.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.seen: defaultdict[str, Seen] = defaultdict(Seen)
        self.live = LiveBytes()
        self.misfits = Misfits()
        self.activation_bytes = 0
        self.loss_format = "-"
        self.flops: Counter[str] = Counter()
        self.uncounted: set[str] = set()
        self.emulating = False
        self._model = model
        self._owners = Owners()
        self._kept = Kept()
        self._in_backward = False
        self._labels = Labels()

    def __enter__(self) -> Any:
        self._owners.follow(self._model, self._enter)
        self._kept.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._kept.__exit__(*error)  # type: ignore[no-untyped-call]
        self._owners.leave()

    def _enter(self, name: str) -> None:
        self.seen[name].ran = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        node = torch._C._current_autograd_node()
        if node is not None and not self._in_backward:
            self._in_backward = True
            self.activation_bytes = self.live.now
        out = func(*args, **kwargs)
        self.live.watch(args, kwargs, out)
        if not self.emulating:
            self._count(func, args, "")
        name, phase = self._owners.of(node)
        if phase == "forward" and not self.emulating:
            self.misfits.watch(func, args, kwargs, out, name)
        if name is not None and not self.emulating:
            if not (self._kept.owns(node) and _multiplies_float32(func, args)):
                self._record(self.seen[name], phase, func, args, out)
        elif name is None and phase == "forward":
            self._maybe_loss(out)
        return out

    def saw(self, func: Any, args: tuple[Any, ...], compute: str) -> None:
        """An emulated op, told of by the emulation with the operands that the model gave."""
        name, phase = self._owners.of(torch._C._current_autograd_node())
        seen = self.seen[name or ""]
        dtypes = {_format(t) for t in multiplied(func, args)}
        seen.gemms[phase] |= {compute} if compute == "tfloat32" else dtypes
        seen.emulated = True
        self.misfits.product = func.overloadpacket.__name__
        self._count(func, args, compute)

    def holds(self, x: Tensor, label: str) -> None:
        """A tensor whose numbers are of that format, whatever its dtype."""
        self._labels.put(x, label)

    def _record(self, seen: Seen, phase: Phase, func: Any, args: tuple[Any, ...], out: Any) -> None:
        op = func.overloadpacket.__name__
        if func in VECTORS and args[0].dtype == torch.float32:
            seen.plain_vectors[phase].add("float32")
        elif func in GEMMS or op in _OTHER_GEMMS:
            operands = multiplied(func, args)
            labels = {label for t in operands if (label := self._labels.of(t))}
            seen.emulated |= bool(labels)
            seen.gemms[phase] |= labels | {_multiplied_as(t, op) for t in operands if not self._labels.of(t)}
        elif op in _NORMS:
            seen.norms[phase].add(_format(args[0]))
        elif op in _BATCH_NORMS:
            seen.norms[phase].add(_format(args[0]))
            seen.statistics |= {_format(t) for t in tensors((args[3:5], out[1:3])) if t.numel()}
        seen.results[phase] |= {_format(t) for t in tensors(out) if t.is_floating_point()}

    def _count(self, func: Any, args: tuple[Any, ...], compute: str) -> None:
        """Operations of a product go to the format of its operands, the wider where they differ; once, where it is
        computed again: they are the model's."""
        found = 0 if recomputed() else flops(func, args)
        if found:
            operands = multiplied(func, args)
            labels = [
                self._labels.of(t) or compute or _multiplied_as(t, func.overloadpacket.__name__) for t in operands
            ]
            self.flops[max(labels, key=width)] += found
        elif found is None:
            self.uncounted.add(func.overloadpacket.__name__)

    def _maybe_loss(self, out: Any) -> None:
        """The loss is the last floating scalar computed outside all modules before backward."""
        if isinstance(out, Tensor) and out.dim() == 0 and out.is_floating_point():
            self.loss_format = _format(out)


def width(label: str) -> int:
    """Bits of a dtype's name; those of low-bit operands, whose labels are no dtypes, are fewer than all."""
    return {"float64": 64, "float32": 32, "tfloat32": 19, "float16": 16, "bfloat16": 16}.get(label, 8)


def multiplied(func: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """The operands that an op multiplies, of whichever overload."""
    packet = func.overloadpacket
    at = GEMMS.get(func) or _OTHER_GEMMS.get(packet.__name__) or GEMMS[packet.default]
    if func is _aten.convolution_backward.default:
        # For the gradient of one operand the other is multiplied; what is not asked for takes no part.
        wants_input, wants_weight, _ = args[-1]
        at = (0, *((1,) if wants_weight else ()), *((2,) if wants_input else ()))
    return [t for t in tensors([args[i] for i in at]) if t.is_floating_point()]


def _multiplies_float32(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether it is a GEMM whose operands are all float32."""
    is_gemm = func in GEMMS or func.overloadpacket.__name__ in _OTHER_GEMMS
    return is_gemm and all(t.dtype == torch.float32 for t in multiplied(func, args))


def _format(t: Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def _multiplied_as(t: Tensor, op: str) -> str:
    """The format of an operand, where CUDA multiplies float32 as TF32 if it is allowed to."""
    if t.dtype == torch.float32 and t.device.type == "cuda" and tfloat32_allowed("conv" in op or "rnn" in op):
        return "tfloat32"
    return native_label(t) or _format(t)
