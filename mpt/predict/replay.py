"""A traced step's ops on real tensors, one after another as in the step, each timed."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from mpt.predict.operands import Place, TensorSpec
from mpt.predict.trace import Op, Trace
from mpt.telemetry.device import wait
from mpt.usercode import FAULTS

_SMALL = 2.0**-10


class Replay:
    """Numbers flow from op to op, and storages come and go, as in the step: caches hold what they hold there.

    An op that can't be called again is not timed; what it would have made is made of zeros. Integers are not made up:
    they may say where to read, or be a kernel's own notes, and an op that needs such is not called either.
    """

    def __init__(self, trace: Trace, device: torch.device) -> None:
        self._trace, self._device = trace, device
        self._own: dict[int, TensorSpec] = {}
        self._last = {place.storage: at for at, flow in enumerate(trace.flow) for place in (*flow.given, *flow.made)}
        self._ends: defaultdict[int, list[int]] = defaultdict(list)
        for storage, at in self._last.items():
            self._ends[at].append(storage)
        self._outside: dict[int, Tensor] = {}
        self._draw = torch.Generator(device=device).manual_seed(0)
        for op, flow in zip(trace.ops, trace.flow, strict=True):
            for place in flow.given:
                if place.storage < 0 and place.storage not in self._outside:
                    self._outside[place.storage] = self._filled(place, op)

    def seconds(self, until_s: float) -> dict[int, float]:
        """Seconds of a call by signature: of each op the median of the rounds that end before that time, or of one.

        The first round is not counted. Units: of time.perf_counter.
        """
        self._round()
        start = time.perf_counter()
        rounds = [self._round()]
        each_s = time.perf_counter() - start
        while time.perf_counter() + each_s < until_s:
            rounds.append(self._round())
        found: defaultdict[int, list[float]] = defaultdict(list)
        for at, op in enumerate(self._trace.ops):
            spent = [seconds for one in rounds if (seconds := one[at]) is not None]
            if spent:
                found[op.signature].append(statistics.median(spent))
        return {signature: statistics.fmean(spent) for signature, spent in found.items()}

    def _round(self) -> list[float | None]:
        """Seconds of each op; None for what makes a view only, or failed."""
        held = dict(self._outside)
        spent: list[float | None] = []
        with torch.enable_grad():  # else kernels leave out what only their backward reads
            for at, op in enumerate(self._trace.ops):
                seconds = self._run(at, op, held) if op.kernel or self._makes(at, held) else None
                spent.append(seconds if op.kernel else None)
                for storage in self._ends[at]:
                    held.pop(storage, None)
        return spent

    def _makes(self, at: int, held: dict[int, Tensor]) -> bool:
        """Whether a storage comes to be, though nothing is written to it."""
        return any(place.storage not in held for place in self._trace.flow[at].made)

    def _run(self, at: int, op: Op, held: dict[int, Tensor]) -> float | None:
        call, flow = self._trace.calls[op.signature], self._trace.flow[at]
        seconds, results = None, []
        try:
            places = iter(flow.given)
            leaves = [self._operand(held, next(places)) if isinstance(x, TensorSpec) else x for x in call.leaves]
            args, kwargs = tree_unflatten(leaves, call.spec)
            start = time.perf_counter()
            out = call.func(*args, **kwargs)
            wait(self._device)
            seconds = time.perf_counter() - start
            results = [t for t in tree_flatten(out)[0] if isinstance(t, Tensor)]
        except FAULTS:
            pass
        self._keep(flow.made, results, held)
        return seconds

    def _operand(self, held: dict[int, Tensor], place: Place) -> Tensor:
        """Raises: LookupError where nothing stands for it."""
        if self._own.get(place.storage) == place.spec:
            return held[place.storage]
        return _view(held, place)

    def _keep(self, made: Sequence[Place], results: list[Tensor], held: dict[int, Tensor]) -> None:
        """A result of another shape than traced is a kernel's own, e.g. an LSTM's workspace, and goes on as it is."""
        for i, place in enumerate(made):
            if place.storage in held:
                continue
            self._own.pop(place.storage, None)
            if len(results) == len(made) and results[i].untyped_storage().nbytes() >= place.nbytes:
                held[place.storage] = results[i]
                if results[i].shape != place.spec.shape:
                    self._own[place.storage] = place.spec
            elif place.spec.dtype.is_floating_point or place.spec.dtype is torch.bool:
                held[place.storage] = self._empty(place)

    def _empty(self, place: Place) -> Tensor:
        return torch.zeros(place.nbytes, dtype=torch.uint8, device=self._device)

    def _filled(self, place: Place, op: Op) -> Tensor:
        """What was there before the step: weights that keep the size of what flows through, moments and rates that are
        small, counts and classes of 0 and 1."""
        held = self._empty(place)
        x = _view({place.storage: held}, place)
        if not x.dtype.is_floating_point:
            x.fill_(x.dim() > 0 and x.dtype != torch.bool)
        elif op.phase == "update" or x.dim() == 0:
            x.fill_(_SMALL)
        elif x.dim() == 1:
            x.fill_(1)
        else:
            x.normal_(0, math.sqrt(x.shape[0] / x.numel()), generator=self._draw)
        return held


def _view(held: dict[int, Tensor], place: Place) -> Tensor:
    """The operand, in the storage that stands for its own."""
    spec, there = place.spec, held[place.storage]
    if there.shape == spec.shape and there.dtype is not spec.dtype:
        return there  # kernels keep more digits than a trace knows of: statistics of a batch norm in bfloat16
    return torch.empty(0, dtype=spec.dtype, device=there.device).set_(
        there.untyped_storage(), place.offset, spec.shape, spec.stride
    )
