"""What a step finds and leaves: weights, masters, moments and what lies beside them, in bytes and as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from mpt.build import Parts
from mpt.config.guard import returning
from mpt.config.schema import RunConfig
from mpt.plan.plan import Plan
from mpt.precision.roles import own_parameters
from mpt.predict.memory import SAVED
from mpt.predict.trace import Kept
from mpt.telemetry.storages import distinct_bytes
from mpt.train.engine import Engine
from mpt.types import Batch


def lasting_bytes(cfg: RunConfig, plan: Plan, parts: Parts, engine: Engine, batch: Batch) -> dict[str, int]:
    """By category; a tensor in two of them counts in the first."""
    groups: dict[str, Iterable[Tensor]] = {
        "parameters": parts.model.parameters(),
        "buffers": parts.model.buffers(),
        **_beside(parts, engine),
    }
    found = {**distinct_bytes(groups), **distinct_bytes({"batch": list(batch)}), "data": plan.data_bytes}
    if plan.device.type == "cpu" and _saves_beside_steps(cfg, plan):
        found["snapshot"] = sum(found[name] for name in SAVED)
    return found


def _beside(parts: Parts, engine: Engine) -> dict[str, list[Tensor]]:
    """Tensors that go with the weights."""
    policy, ema = parts.policy, engine.ema
    weights = {id(w) for w in policy.weights}
    return {
        "masters": [m for m in policy.held.stored() if id(m) not in weights],
        "optimizer": list(parts.optimizer.state_tensors()),
        "ema": list(ema.average) if ema else [],
    }


def kept_tensors(parts: Parts, engine: Engine) -> dict[str, tuple[Kept, ...]]:
    """Masters, optimizer and average, by category."""
    return {
        name: tuple(Kept(tuple(t.shape), t.element_size()) for t in tensors)
        for name, tensors in _beside(parts, engine).items()
    }


def _saves_beside_steps(cfg: RunConfig, plan: Plan) -> bool:
    """Whether a checkpoint is written in the background while steps go on, which takes a copy of what it holds: one
    to return to before the first step, one that is due, or that of the first evaluation, which is the best so far."""
    evaluations = plan.length.first_step_of_epoch(1) if cfg.trainer.eval_every is None else cfg.trainer.eval_every
    due = {0} if cfg.checkpoint.every == 0 else {evaluations, cfg.checkpoint.every or 0}
    early = any(0 < update < plan.length.steps for update in due)
    return cfg.checkpoint.background and (early or bool(returning(cfg.guard)))


def module_bytes(parts: Parts, lasting: dict[str, int]) -> dict[str, int]:
    """Of weights, gradients, masters and moments of each module; a tied weight is its first module's."""
    return dict(_of_modules(parts, lasting))


def _of_modules(parts: Parts, lasting: dict[str, int]) -> Iterator[tuple[str, int]]:
    kept = lasting["masters"] + lasting["optimizer"]
    elements = sum(w.numel() for w in parts.policy.weights)
    seen: set[int] = set()
    for name, module in parts.model.named_modules():
        own = [p for p in own_parameters(module) if id(p) not in seen]
        seen |= {id(p) for p in own}
        trained = [p for p in own if p.requires_grad]
        total = sum(p.nbytes for p in own) + sum(p.nbytes for p in trained)
        total += round(kept * sum(p.numel() for p in trained) / elements)
        if total:
            yield name, total


def parameters_of(model: nn.Module) -> tuple[Kept, ...]:
    """The weights of a model in the order of `model.parameters()`, each once."""
    seen: set[int] = set()
    found = []
    for name, module in model.named_modules():
        for p in module.parameters(recurse=False):
            if id(p) not in seen:
                seen.add(id(p))
                found.append(Kept(tuple(p.shape), p.element_size(), name, p.requires_grad))
    return tuple(found)
