"""One configuration on the present device: its step, what it holds, and what it multiplies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from mpt.bench.expert import expert
from mpt.bench.search import largest, steps_with
from mpt.bench.spread import per_step_ms
from mpt.build import Run, build
from mpt.config.schema import RunConfig
from mpt.plan.compiled import is_compiled
from mpt.plan.mfu import Work
from mpt.precision.switches import flags
from mpt.predict.prediction import by_batch, keeping
from mpt.predict.telling import told_trace
from mpt.predict.tracker import Untraceable
from mpt.telemetry.device import wait
from mpt.telemetry.memory import Memory, MemoryMeter
from mpt.train.compiler import require_compiler
from mpt.train.engine import Engine, make_engine
from mpt.train.host import on_host
from mpt.train.outcome import lasting
from mpt.train.preflight import preflight
from mpt.train.products import cpu_products
from mpt.types import Batch, Unmeasured

EXPERT_STEPS = 64


class Cell:
    """A run without a record. `label` is what sets it apart."""

    def __init__(self, label: str, cfg: RunConfig) -> None:
        trainer = replace(cfg.trainer, max_steps=cfg.trainer.max_steps or 100_000)
        self.label, self.cfg = label, replace(cfg, trainer=trainer)
        self.first_step_s = 0.0
        self.run: Run = build(self.cfg)
        require_compiler(cfg, self.run.plan)
        self.engine: Engine = make_engine(self.run)
        self._batches = self.run.data.train(start=0)

    @property
    def samples(self) -> int:
        """In one step."""
        return self.run.plan.batch_size * self.run.plan.length.accumulate

    @property
    def emulated(self) -> bool:
        return self.run.plan.mechanism.backend == "emulated"

    def observe(self) -> tuple[Memory, Work]:
        """What a step holds at most, and its FLOPs; nothing else may use the device meanwhile."""
        with self._switched():
            memory = MemoryMeter(self.run.device, compiled=is_compiled(self.cfg, self.run.plan))
            memory.start()
            first = next(self._batches)
            seen = preflight(self.run, self.engine.buffers, memory, Batch(first.inputs.clone(), first.targets.clone()))
            for _ in range(3):
                start_s = time.perf_counter()
                memory.step(self._window(), self.engine.stepper)
                wait(self.run.device)
                self.first_step_s = self.first_step_s or time.perf_counter() - start_s
            micro = self.run.plan.length.accumulate
            work = Work({form: n * micro for form, n in seen.work.flops.items()}, seen.work.uncounted)
            return memory.memory(lasting(self.run, self.engine)), work

    def step_ms(self, steps: int) -> float:
        """Milliseconds a step, of the next `steps`."""
        return self._timed(self._run, steps)

    def expert_ms(self) -> Callable[[int], float] | Unmeasured:
        """The same of a hand-written loop over the same batches, where there is one for this configuration."""
        p, cfg = self.cfg.precision, self.cfg
        plain = p.param == "float32" and p.compute in ("float32", "bfloat16") and not self.run.plan.mechanism.low
        if not plain or cfg.optimizer.name != "adamw" or cfg.trainer.accumulate > 1:
            return Unmeasured("it is written for fp32 and bf16 with AdamW, one micro-batch a step")
        return partial(self._timed, expert(self.run, EXPERT_STEPS, half=p.compute == "bfloat16").run)

    def largest_batch(self) -> tuple[int, str]:
        """Samples in the largest micro-batch, and how that was found; 0, and why it is not known.

        On CUDA by trying. Elsewhere a process that asks for too much is killed: there it is predicted.
        """
        plan = self.run.plan
        if self.run.device.type == "cuda":
            batch = next(self._batches)
            with self._switched():
                start = plan.batch_size
                return largest(lambda size: steps_with(self.run, self.engine, batch, size), start), "by trying"
        try:
            line = by_batch(self.cfg, plan, told_trace(self.cfg, plan))
        except Untraceable as error:
            return 0, "; ".join(f"{p.where}: {p.what}" for p in error.problems)
        if line is None:
            return 0, "steps of different batches differ"
        if plan.device.memory_bytes is None:
            return 0, f"the memory of {plan.device.name} is not known"
        return line.largest(plan.device.memory_bytes), f"predicted for {plan.device.memory_bytes / 1e9:.3g} GB"

    def fitted(self) -> tuple[RunConfig, int, str]:
        """The configuration with the largest micro-batch that fits and as many samples an update, as near as can be."""
        found, how = self.largest_batch()
        data, trainer = self.cfg.data, self.cfg.trainer
        if not found:
            return self.cfg, found, how
        size, accumulate = keeping(data.batch_size, trainer.accumulate, found)
        fitted = replace(self.cfg, data=replace(data, batch_size=size), trainer=replace(trainer, accumulate=accumulate))
        return fitted, found, how

    def close(self) -> None:
        self.run.data.close()

    def _run(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.stepper(self._window())

    def _timed(self, run: Callable[[int], object], steps: int) -> float:
        with self._switched():
            return per_step_ms(run, steps, partial(wait, self.run.device))

    def _window(self) -> list[Batch]:
        return [next(self._batches) for _ in range(self.run.plan.length.accumulate)]

    @contextmanager
    def _switched(self) -> Iterator[None]:
        """Under the policy's switches and threads, as in a run."""
        cfg, plan = self.cfg, self.run.plan
        with ExitStack() as stack:
            stack.enter_context(flags(cfg.precision, plan.device, cfg.trainer.deterministic))
            stack.enter_context(on_host(cfg, plan))
            stack.enter_context(cpu_products(cfg, plan))
            yield
