"""The only place that constructs things: RunConfig → Plan and objects."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from mpt import recompute, registry
from mpt.config.fingerprint import fingerprint
from mpt.config.schema import RunConfig
from mpt.config.update import in_windows
from mpt.data._context import DataContext, DataSource
from mpt.errors import ConfigError, MptError, Problem
from mpt.optim import build_optimizer, is_fused
from mpt.optim._base import Optimizer
from mpt.optim._layout import is_dense
from mpt.plan.facts import facts_of, probe
from mpt.plan.notes import notes
from mpt.plan.plan import Plan, length
from mpt.precision.assignment import assign, settled
from mpt.precision.capability import Mechanism, resolve
from mpt.precision.policy import Policy, install
from mpt.rng import seed_all
from mpt.scaling._base import Scaler
from mpt.schedules import lr_at
from mpt.tasks._base import Task
from mpt.types import DataSpec, DeviceFacts, ModuleRow


@dataclass
class Parts:
    """What a step is made of; `lr` is the schedule."""

    cfg: RunConfig
    device: torch.device
    task: Task
    model: nn.Module
    policy: Policy
    scaler: Scaler
    optimizer: Optimizer
    lr: Callable[[int], float]


@dataclass
class Run(Parts):
    """Everything a loop needs, made from one configuration."""

    plan: Plan
    data: DataSource


def make_plan(cfg: RunConfig) -> Plan:
    """What `cfg` would run, with nothing allocated on the device: the model is built on `meta`."""
    facts = _facts(cfg, facts_of)
    data = _data(cfg, torch.device("cpu"))
    task = _task(cfg, data.spec)
    try:
        with torch.device("meta"):
            model = _model(cfg, data.spec)
    except (RuntimeError, MptError):  # code that computes with its weights while it builds; a real fault comes again
        model = _model(cfg, data.spec)
    plan = _plan(cfg, facts, model, data, task, assign(model, cfg.precision, resolve(cfg.precision, facts)))
    lr_at(cfg.schedule, cfg.optimizer.lr, plan.length.steps)  # refuses what the run would
    data.close()
    return plan


def build(cfg: RunConfig) -> Run:
    """All objects of a run on its device; the first to allocate there."""
    facts = _facts(cfg)
    mechanism = resolve(cfg.precision, facts)
    device = torch.device(facts.type, facts.index) if facts.type == "cuda" else torch.device(facts.type)
    data = _data(cfg, device)
    task = _task(cfg, data.spec)
    seed_all(cfg.seed)
    model = _model(cfg, data.spec).to(device)
    if channels_last(cfg):
        model = model.to(memory_format=torch.channels_last)
    plan = _plan(cfg, facts, model, data, task, assign(model, cfg.precision, mechanism))
    parts = assemble(cfg, model, task, mechanism, device, plan.length.steps)
    seed_all(cfg.seed)
    return Run(**vars(parts), plan=plan, data=data)


def source_of(cfg: RunConfig) -> DataSource:
    """The data, on the CPU."""
    return _data(cfg, torch.device("cpu"))


def model_of(cfg: RunConfig, plan: Plan) -> nn.Module:
    """The plan's model on the CPU (or on nothing, under FakeTensorMode), before any policy."""
    return _model(cfg, plan.data)


def imagined(cfg: RunConfig, plan: Plan, model: nn.Module) -> Parts:
    """The parts of that plan's step around a model of fake tensors on the CPU, under the policy of the plan's device.

    Ops are those of the CPU, whatever the plan's device: formats, shapes and what is kept for the backward are its own.
    """
    if channels_last(cfg):
        for tensor in (t for t in (*model.parameters(), *model.buffers()) if t.dim() == 4):
            tensor.data = tensor.data.to(memory_format=torch.channels_last)  # fake tensors can't be swapped by .to()
    mechanism = replace(plan.mechanism, device="cpu")
    return assemble(cfg, model, _task(cfg, plan.data), mechanism, torch.device("cpu"), plan.length.steps)


def assemble(
    cfg: RunConfig, model: nn.Module, task: Task, mechanism: Mechanism, device: torch.device, steps: int
) -> Parts:
    """Scaler, policy, optimizer and schedule around a model that is on its device."""
    scaler = _scaler(cfg, device)
    scaler.attach(model)  # before the policy puts its borders around what is there
    policy = install(model, cfg.precision, mechanism)
    recompute.install(model, recompute.chosen(model, cfg.trainer.checkpoint_activations))
    if not policy.weights:
        raise ConfigError(Problem(f"model={cfg.model.choice}", "has no weight that can be trained: all are frozen"))
    optimizer = build_optimizer(cfg.optimizer, policy.masters, cfg.precision.moment, policy.storage)
    return Parts(cfg, device, task, model, policy, scaler, optimizer, lr_at(cfg.schedule, cfg.optimizer.lr, steps))


def channels_last(cfg: RunConfig) -> bool:
    """Whether images are laid out channel by channel within a pixel; `auto`: for convolutional nets."""
    if cfg.trainer.channels_last == "auto":
        if cfg.distributed.name == "fsdp":
            return False  # it cuts contiguous weights only
        return bool(registry.load("models", cfg.model.name).CONVOLUTIONAL)
    return cfg.trainer.channels_last == "true"


def _facts(cfg: RunConfig, look: Callable[[str], DeviceFacts] = probe) -> DeviceFacts:
    for plugin in cfg.plugins:
        importlib.import_module(plugin)
    return look(cfg.device)


def _data(cfg: RunConfig, device: torch.device) -> DataSource:
    wanted = registry.load("models", cfg.model.name).input_spec(cfg.model.options)
    context = DataContext(
        seed=cfg.seed, device=device, world=cfg.distributed.nproc or 1, channels_last=channels_last(cfg)
    )
    source: DataSource = registry.load("data", cfg.data.name).open_data(cfg.data, wanted, context)
    return source


def _task(cfg: RunConfig, spec: DataSpec) -> Task:
    task: Task = registry.load("tasks", cfg.task.name).build(cfg.task.options, spec)
    return task


def _model(cfg: RunConfig, spec: DataSpec) -> nn.Module:
    """As it is built; a weight that is a part of a larger tensor, as pruning leaves it, has memory of its own: kernels
    of optimizers take its numbers as they lie in memory, torch's too."""
    model: nn.Module = registry.load("models", cfg.model.name).build(cfg.model.options, spec)
    for weight in model.parameters():
        if not is_dense(weight):
            weight.data = weight.data.contiguous()
    return model


def _scaler(cfg: RunConfig, device: torch.device) -> Scaler:
    scaler: Scaler = registry.load("scaling", cfg.scaling.rule or cfg.scaling.name).build(cfg.scaling, device)
    return scaler


def _plan(
    cfg: RunConfig, facts: DeviceFacts, model: nn.Module, data: DataSource, task: Task, rows: tuple[ModuleRow, ...]
) -> Plan:
    mechanism = settled(resolve(cfg.precision, facts), rows)
    params, processes = sum(p.numel() for p in model.parameters()), cfg.distributed.nproc or 1
    fused = is_fused(cfg.optimizer, facts.type)
    plan = Plan(
        name=cfg.name or f"{cfg.model.choice}-{cfg.precision.name}",
        model=cfg.model.choice,
        params=params,
        device=facts,
        precision=cfg.precision.name,
        mechanism=mechanism,
        rows=rows,
        data=data.spec,
        task=task.name,
        length=length(cfg, data.batches_per_epoch, params),
        batch_size=min(cfg.data.batch_size, data.spec.n_train // processes),
        scaling=cfg.scaling.name,
        optimizer=_told_optimizer(cfg, fused),
        schedule=cfg.schedule.name,
        seed=cfg.seed,
        fingerprint=fingerprint(cfg),
        processes=processes,
        data_bytes=sum(t.nbytes for t in data.resident()),
        recomputed=recompute.chosen(model, cfg.trainer.checkpoint_activations),
    )
    return replace(plan, notes=notes(cfg, plan, reads_device=not fused))


def _told_optimizer(cfg: RunConfig, fused: bool) -> str:
    if in_windows(cfg.precision):
        return f"{cfg.optimizer.name} in windows of one fused kernel, moments {cfg.precision.moment}"
    return f"{cfg.optimizer.name}{' in one fused kernel' if fused else ''}"
