"""Evaluates a stored checkpoint as the run itself did."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from mpt import registry
from mpt.build import Run, build
from mpt.checkpoint import load
from mpt.checkpoint.contents import checked, taking
from mpt.config import saved
from mpt.errors import DataError, ExitCode, Problem
from mpt.plan.facts import probe
from mpt.precision.switches import flags
from mpt.train.begin import on_device
from mpt.train.engine import make_engine
from mpt.train.evaluate import evaluate as metrics_of
from mpt.train.host import on_host
from mpt.train.products import cpu_products
from mpt.train.resume import stored
from mpt.train.state import load_weights


def evaluate(run_dir: str, overrides: list[str], checkpoint: str | None) -> int:
    """Prints the metrics of a run's newest valid checkpoint, or of `checkpoint`, under the run's configuration.

    Raises: MptError where there is no such run or checkpoint, or its classes are not those of the data.
    """
    cfg = saved.load(Path(run_dir) / "config.yaml", overrides)
    problems = registry.load("data", cfg.data.name).check(cfg.data)
    if problems:
        raise DataError(*problems)
    where = stored(Path(checkpoint or run_dir))
    state = checked(load(where), str(where))
    facts = probe(cfg.device)
    with on_device(facts), flags(cfg.precision, facts, cfg.trainer.deterministic):
        run = build(cfg)
        _same_classes(run, state["classes"], where)
        with on_host(cfg, run.plan), cpu_products(cfg, run.plan):
            engine = make_engine(run)
            load_weights(run, engine, state, str(where))
            with taking("policy", str(where)):
                run.policy.load_scales(state["policy"])
            if engine.ema and state["ema"]:
                with taking("ema", str(where)):
                    engine.ema.load_state_dict(state["ema"])
            with engine.ema.in_place_of_weights() if engine.ema else nullcontext():
                metrics = metrics_of(run.model, run.policy, run.task, run.data, cfg.trainer.eval_precision)
        run.data.close()
    told = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
    weights = "averaged weights" if engine.ema and state["ema"] else "weights"
    print(f"{told}  ({run.plan.data.n_eval} samples, {weights} of {where.name}, precision {_precision(run)})")
    return ExitCode.FINISHED


def _precision(run: Run) -> str:
    asked = run.cfg.trainer.eval_precision
    m = run.plan.mechanism
    return f"{run.cfg.precision.name}: {m.effective} {m.backend}" if asked == "same" else asked


def _same_classes(run: Run, trained: list[str], where: Path) -> None:
    """Raises: DataError when the data's classes are not, in order, those that the model was trained on."""
    now = list(run.plan.data.classes)
    if now != trained:
        differ = [f"{i}: {a} is now {b}" for i, (a, b) in enumerate(zip(trained, now, strict=False)) if a != b][:3]
        what = f"{len(now)} classes, the checkpoint {where.name} knows {len(trained)}" + "".join(
            f"; {d}" for d in differ
        )
        raise DataError(Problem("data", what, "evaluate on data with the training classes, in the same order"))
