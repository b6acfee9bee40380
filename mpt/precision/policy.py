"""A precision policy put into a model: masters, low-bit layers, and the contexts that forward and backward run in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from mpt.config.update import SPLIT, in_windows, rounds_stochastically
from mpt.errors import PrecisionError, Problem
from mpt.formats.rounding import storage_dtype
from mpt.formats.stored import Storage
from mpt.precision.borders import Borders, paused
from mpt.precision.capability import Mechanism
from mpt.precision.contexts import NOTHING, Again, nested
from mpt.precision.emulate import Emulation
from mpt.precision.kernels import install_kernels
from mpt.precision.lost import LostUpdates, NothingLost, UpdateMeter
from mpt.precision.low.attending import attending
from mpt.precision.low.attention import install_attention
from mpt.precision.low.eligible import lowered
from mpt.precision.low.layers import LowLayers
from mpt.precision.low.native import native_linear
from mpt.precision.low.recipes import Recipe
from mpt.precision.low.settings import low_bit
from mpt.precision.low.ways import ways
from mpt.precision.masters import MasterCopies, Masters, SameWeights, SplitMasters
from mpt.precision.ops import check_keep
from mpt.precision.rules import changes_of_format
from mpt.precision.storing import in_float32, store, trained
from mpt.precision.switches import eagerly, tfloat32_switched

if TYPE_CHECKING:
    from mpt.config.schema import PrecisionConfig


class Policy:
    """What the loop needs of a policy.

    `forward()` and `backward()` are entered around each, `gather()` after the last backward of an update and
    `publish()` after the optimizer. `weights` are the working parameters that take gradients, each once, `names`
    theirs, and `masters` what the optimizer updates, in the same order, stored as `storage` says.
    """

    def __init__(
        self,
        model: nn.Module,
        mechanism: Mechanism,
        masters: Masters,
        lost: UpdateMeter,
        low: LowLayers | None = None,
        *,
        eager: bool = False,
    ) -> None:
        self.mechanism = mechanism
        self.names, self.weights = trained(model)
        self.lost_updates = lost
        self.storage: Storage | None = None
        self._model = model
        self._copies = masters
        self.low = low
        self._emulation = Emulation(mechanism.compute) if mechanism.emulated else None
        self._borders = Borders(mechanism, self._emulation)
        emulation = self._emulation or (Again(eagerly) if eager else None)
        self._forward = nested(_autocast(mechanism), emulation)
        self._backward: AbstractContextManager[Any] = emulation or NOTHING
        self._full: AbstractContextManager[Any] | None = None

    @property
    def masters(self) -> list[Tensor]:
        return self._copies.tensors

    @property
    def held(self) -> Masters:
        """The finest values of the weights, for an average that follows them."""
        return self._copies

    @property
    def emulation(self) -> Emulation | None:
        """The mode that emulates, for the audit to watch."""
        return self._emulation

    def enforce(self, changes: Mapping[str, str]) -> None:
        """Wrap the modules that compute in another format than what is around them."""
        self._borders.enforce(self._model, changes)

    def forward(self) -> AbstractContextManager[Any]:
        """The context of one forward pass; the same object each time."""
        return self._full or self._forward

    def backward(self) -> AbstractContextManager[Any]:
        """The context of one backward pass; the same object each time."""
        return self._full or self._backward

    def in_float32(self, on: bool) -> None:
        """From now on forward and backward compute in plain float32, or as the policy says again. For policies whose
        weights are float32."""
        self._borders.active = not on
        self._full = Again(partial(tfloat32_switched, False)) if on else None

    def gather(self) -> None:
        self._copies.gather()
        if self.low is not None and self._full is None:
            self.low.turn()

    def publish(self) -> None:
        self._copies.publish()

    @contextmanager
    def evaluate(self, precision: str = "same") -> Iterator[None]:
        """No gradients, and the policy's own numerics (`same`) or plain float32 with the full weights (`fp32`)."""
        if precision not in ("same", "fp32"):
            raise PrecisionError(Problem("trainer.eval_precision", f"got `{precision}`", "want same or fp32"))
        with torch.no_grad(), self.forward() if precision == "same" else self._plain_float32():
            yield

    def load_weights(self, values: Mapping[str, Tensor]) -> None:
        """The model takes a state dict of any format; masters take its values before they are rounded.

        Raises: RuntimeError (torch's) if names or shapes differ.
        """
        self._model.load_state_dict(values)
        self._copies.adopt(values)

    def state_dict(self) -> dict[str, Any]:
        return self._copies.state_dict() | (self.low.state_dict() if self.low else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._copies.load_state_dict(state)
        self.load_scales(state)

    def load_scales(self, state: Mapping[str, Any]) -> bool:
        """Delayed scales go on where they were; False where the state has none of these layers."""
        return self.low is None or self.low.load_state_dict(state)

    @contextmanager
    def _plain_float32(self) -> Iterator[None]:
        """No cast, no TF32, and every half weight is float32 inside: its master where there is one."""
        master_of = {id(w): m for w, m in zip(self.weights, self._copies.full(), strict=True)}
        half = [p for p in self._model.parameters() if p.dtype in (torch.float16, torch.bfloat16)]
        kept = [p.data for p in half]
        for p in half:
            master = master_of.get(id(p), p)
            p.data = (master if master.dtype == torch.float32 else p).detach().float()
        try:
            with paused(self._borders), tfloat32_switched(False):
                yield
        finally:
            for p, data in zip(half, kept, strict=True):
                p.data = data


def install(model: nn.Module, cfg: PrecisionConfig, mechanism: Mechanism) -> Policy:
    """Store the model's weights as `cfg` says and give the policy that runs it.

    Norms, modules that a rule keeps, and buffers stay float32. Tied weights stay tied. The model is on its device,
    in float32: masters are made of these values before they are rounded.
    Raises: PrecisionError for a rule that matches nothing, or an unknown kind of op in `keep`.
    """
    check_keep(cfg.keep)
    changes = changes_of_format(model, cfg)
    in_float32(model)
    full = store(model, cfg, {name for name, now in changes.items() if now == "float32"})
    names, weights = trained(model)
    copied = cfg.master is not None and full
    masters = _masters(cfg, names, weights, _of(names, full)) if copied else SameWeights(weights)
    lost: UpdateMeter = LostUpdates() if full and not copied else NothingLost()
    low, attends = _low_layers(model, cfg, mechanism), attending(model, cfg)
    install_attention(model, attends, storage_dtype(cfg.compute))
    eager = bool(attends) or (low is not None and low.emulated)
    policy = Policy(model, mechanism, masters, lost, low, eager=eager)
    policy.storage = _storage(cfg, masters)
    if mechanism.half:
        install_kernels(mechanism.device, cfg.keep)
    policy.enforce(changes)
    return policy


def _masters(cfg: PrecisionConfig, names: list[str], weights: list[Parameter], full: dict[str, Tensor]) -> Masters:
    return (SplitMasters if cfg.master == SPLIT else MasterCopies)(names, weights, full)


def _storage(cfg: PrecisionConfig, masters: Masters) -> Storage | None:
    """How the optimizer finds what it updates, None where that is how its kernel computes."""
    if not in_windows(cfg):
        return None
    lows = masters.lows if isinstance(masters, SplitMasters) else [None] * len(masters.tensors)
    return Storage(lows, rounds_stochastically(cfg))


def _low_layers(model: nn.Module, cfg: PrecisionConfig, mechanism: Mechanism) -> LowLayers | None:
    """Before borders are put around them, so that these lie outside."""
    low, found = low_bit(cfg), lowered(model, cfg)
    if low is None or not found.gemms:
        return None
    compute, modules = storage_dtype(cfg.compute), dict(model.named_modules())
    native = {}
    for name, way in ways(model, found.gemms, cfg, mechanism).items():
        module = modules[name]
        if isinstance(way, Recipe) and isinstance(module, nn.Linear):
            native[name] = native_linear(module, found.gemms[name], way, compute)
    return LowLayers(model, found.gemms, compute, low.history, native)


def _of(names: list[str], full: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: full[n] for n in names if n in full}


def _autocast(mechanism: Mechanism) -> torch.autocast | None:
    if not mechanism.half:
        return None
    return torch.autocast(mechanism.device, dtype=storage_dtype(mechanism.compute))
