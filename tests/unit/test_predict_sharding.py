"""Predictions of several processes against torch's own DDP and FSDP2, run as the first of n by a fake process group."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from mpt.build import Run, build, make_plan
from mpt.config.compose import compose
from mpt.models.torchvision import build as torchvision
from mpt.predict.communication import communication
from mpt.predict.fake import trace
from mpt.predict.memory import memory
from mpt.predict.prediction import predict
from mpt.predict.roofline import Rates, Time, roofline
from mpt.predict.sharding import Sharding, buckets, in_shards
from mpt.predict.trace import Trace
from mpt.recompute import blocks
from mpt.types import DataSpec, DeviceFacts, Unmeasured

GPT = (
    *("model=gpt", "model.layers=3", "model.width=60", "model.context=32", "data=shakespeare"),
    *("data.batch_size=2", "data.limit=32", "trainer.clip_norm=null", "device=cpu"),
)


def of(*words: str) -> Trace:
    cfg = compose([*GPT, *words])
    return trace(cfg, make_plan(cfg))


@contextmanager
def processes(n: int, backend: str = "fake") -> Iterator[None]:
    """This one is the first of n; fake collectives do nothing."""
    store = FakeStore() if backend == "fake" else dist.HashStore()
    dist.init_process_group(backend, store=store, rank=0, world_size=n)
    try:
        yield
    finally:
        dist.destroy_process_group()


def local(x: Tensor) -> Tensor:
    inner = getattr(x, "_local_tensor", x)
    assert isinstance(inner, Tensor)
    return inner


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of all storages that were operands and still live, at most; bytes that collectives were given and gave."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self.moved: Counter[str] = Counter()
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._add(list(known))

    def _add(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            storage = local(tensor).untyped_storage()
            self._storages[id(storage)] = weakref.ref(storage)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._add([t for t in tree_flatten((args, kwargs, out))[0] if isinstance(t, Tensor)])
        living = {s._cdata: s.nbytes() for ref in self._storages.values() if (s := ref()) is not None}
        self.peak_bytes = max(self.peak_bytes, sum(living.values()))
        name = func.overloadpacket.__name__
        if name in ("_allgather_base_", "_reduce_scatter_base_"):
            self.moved[name] += max(args[0].nbytes, args[1].nbytes)  # the whole: of n parts n - 1 are others'
        return out


def sharded(run: Run, n: int, half: bool) -> nn.Module:
    mixed = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
    mesh = init_device_mesh("cpu", (n,))
    for name in blocks(run.model):
        fully_shard(run.model.get_submodule(name), mesh=mesh, mp_policy=mixed)
    fully_shard(run.model, mesh=mesh, mp_policy=mixed)
    return run.model


def stepped(run: Run, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Watch:
    """Two steps, the second one watched but for its update."""
    batch = next(run.data.train(start=0))
    for _ in range(2):
        held = [v for state in optimizer.state.values() for v in state.values()] if optimizer else []
        model.zero_grad()
        with Watch(*model.parameters(), *held) as watch:
            run.task.loss_sum(model(batch.inputs), batch).backward()
        if optimizer:
            optimizer.step()
    return watch


@pytest.mark.parametrize(("n", "again"), [(8, "false"), (7, "false"), (8, "true")])
def test_fsdps_categories_are_those_of_torchs_own_and_its_peak_is_within_two_percent(n: int, again: str) -> None:
    words = ("precision=fp32", f"trainer.checkpoint_activations={again}")
    traced = of(*words, "checkpoint.background=false")
    made = in_shards(traced, n)
    run = build(compose([*GPT, *words]))
    with processes(n):
        model = sharded(run, n, half=False)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        watch = stepped(run, model, optimizer)
        parameters = list(model.parameters())
        held = {local(p).untyped_storage()._cdata: local(p).untyped_storage().nbytes() for p in parameters}
        moments = [local(v) for s in optimizer.state.values() for v in s.values() if v.dim()]
        gradients = sum(local(p.grad).nbytes for p in parameters if p.grad is not None)
    assert made.lasting["parameters"] == sum(held.values())
    assert made.lasting["optimizer"] == sum(m.nbytes for m in moments) + 4  # and one counter
    assert sum(s.nbytes for s in made.storages if s.gradient and s.held) == gradients
    counters = 4 * len(parameters)
    predicted = memory(made).peak_bytes - made.lasting["data"] - 4 + counters
    assert predicted == pytest.approx(watch.peak_bytes, rel=0.02)


@pytest.mark.parametrize("again", ["false", "true"])
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_fsdp_sends_what_torchs_own_sends(half: bool, again: str) -> None:
    words = ("precision=bf16" if half else "precision=fp32", f"trainer.checkpoint_activations={again}")
    n, share = 4, 3 / 4
    sent = communication(of(*words), Sharding("fsdp", n), {}, 1, None).sent_bytes
    run = build(compose([*GPT, *words]))
    with processes(n):
        moved = stepped(run, sharded(run, n, half)).moved
    assert sent["gradients"] == moved["_reduce_scatter_base_"] * share
    # torch's policy casts all weights of a module; what ours computes with in float32 is sent so, the root's once
    float32 = {k: p for k, p in run.model.named_parameters() if half and ("norm" in k or "positions" in k)}
    more = sum(2 * padded(p.shape, n) * (1 + name.startswith("blocks")) for name, p in float32.items())
    assert sent["weights"] == (moved["_allgather_base_"] + more) * share


def padded(shape: tuple[int, ...], n: int) -> int:
    return -(-shape[0] // n) * n * math.prod(shape[1:])


def test_ddps_buckets_are_torchs() -> None:
    words = ("precision=fp32", "model.width=256", "model.layers=2")
    traced = of(*words)
    run = build(compose([*GPT, *words]))
    with processes(1, "gloo"):  # buckets are those of any number; fake collectives leave DDP without a result
        model = DistributedDataParallel(run.model)
        for _ in range(2):  # they are made anew in the order of the first step's gradients, and told of later
            stepped(run, model)
        told = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    found = [sum(bucket) for bucket in buckets(traced)]
    assert found == [int(size) for size in str(told).split(",")]
    assert Sharding("ddp", 2)(traced).lasting["reducing"] == sum(found)


def test_one_process_alone_is_as_it_was() -> None:
    traced = of()
    assert Sharding("fsdp", 1)(traced) is traced
    assert Sharding("none", 1)(traced) is traced


def test_every_storage_that_sharding_makes_is_dropped_but_the_gradients() -> None:
    traced = of("precision=bf16", "trainer.accumulate=2")
    made = in_shards(traced, 4)
    alive = {event for event in made.events if event >= 0} - {~event for event in made.events if event < 0}
    assert {made.storages[i].held for i in alive} <= {"", "gradients"}
    ordered = [event for event in made.events if event in alive or ~event in alive]
    assert len(ordered) == len(set(ordered))
    kept = [i for i in alive if made.storages[i].held]
    whole = sum(padded(p.shape, 4) for p in traced.parameters)  # a quarter of them, of four bytes
    assert sum(made.storages[i].nbytes for i in kept) == whole
    assert all(made.events.index(i) < made.events.index(~i) for i in set(range(len(made.storages))) - alive)


def test_blocks_are_what_repeats() -> None:
    spec = DataSpec("x", "images", (3, 32, 32), 10, 8, 8, (), "")
    with torch.device("meta"):
        resnet = torchvision({"arch": "resnet18"}, spec)
        convnext = torchvision({"arch": "convnext_tiny"}, spec)
    assert blocks(resnet) == tuple(f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1))
    assert [name for name in blocks(convnext) if name.startswith("features.1")] == [f"features.1.{i}" for i in range(3)]
    assert blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))) == ()


def test_an_update_of_parts_takes_a_part_of_what_a_whole_one_was_measured_to_take() -> None:
    traced = of("precision=fp32", "optimizer=adamw")
    rates = Rates({"float32": 1e12}, 1e12, launch_s=1e-6)
    measured = {op.signature: 1e-3 if "fused" in op.name else 1e-6 for op in traced.ops if op.kernel}
    whole, part = (roofline(made, rates, 1, measured) for made in (traced, in_shards(traced, 8)))
    assert isinstance(whole, Time)
    assert isinstance(part, Time)
    assert {name: part.phases[name] for name in ("forward", "backward")} == pytest.approx(
        {name: whole.phases[name] for name in ("forward", "backward")}
    )
    assert whole.phases["update"] - part.phases["update"] == pytest.approx(7 / 8 * 1e-3)


def test_a_step_that_fits_in_parts_alone_is_not_called_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured of a plan's ops on the present device is a step of one process alone."""
    seen: list[Trace] = []

    def noted(made: Trace, facts: DeviceFacts) -> bool:
        seen.append(made)
        return False

    monkeypatch.setattr("mpt.predict.calibrate._has_room", noted)
    cfg = compose([*GPT, "distributed=fsdp", "distributed.nproc=8"])
    predict(cfg, make_plan(cfg))
    (measured,) = seen
    assert measured.lasting["parameters"] == sum(4 * math.prod(p.shape) for p in measured.parameters)


def test_what_computing_hides_is_not_counted_but_the_ends_always_are() -> None:
    traced = of()
    seen = [s.nbytes for s in traced.storages if s.gradient]
    alone = communication(traced, Sharding("ddp", 4), {"backward": 1e9}, 1, 1.0)
    assert alone.seconds == pytest.approx(1.5 * sum(seen) / 1e9)
    assert alone.exposed_s == pytest.approx(1.5 * sum(buckets(traced)[-1]) / 1e9)
    assert communication(traced, Sharding("ddp", 4), {}, 3, 1.0).exposed_s == alone.seconds  # once for three parts
    shards = communication(traced, Sharding("fsdp", 4), {}, 3, 1.0)
    assert shards.exposed_s == pytest.approx(shards.seconds)
    assert isinstance(communication(traced, Sharding("fsdp", 4), {}, 1, None).exposed_s, Unmeasured)
