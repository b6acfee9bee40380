"""Imports point downwards only, as docs/architecture.md says."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mpt

PACKAGE = Path(mpt.__file__).parent
LAYERS = (
    {"errors", "registry", "types", "units", "rng", "recompute", "usercode", "dispatch"},
    {"formats", "config", "stats"},
    {"precision", "scaling", "models", "data", "tasks", "optim", "schedules", "checkpoint"},
    {"plan", "record", "telemetry"},
    {"build"},
    {"train", "report", "loggers", "predict", "bench"},
    {"commands", "cli", "__main__"},
)
SAME_LAYER = {
    *{("config", "formats"), ("stats", "formats"), ("plan", "record.cpu")},
    *{("train", "loggers"), ("predict", "train"), ("predict", "report"), ("train", "predict")},
    *{("bench", "train"), ("bench", "predict"), ("bench", "report")},
}
"""Siblings that may be used: tables of formats; the processor's facts, read in one place; the step that a prediction
traces and a bench times, and the sections that both tell it in. A run's summary predicts its peak, imported there."""
TORCH_FREE_TABLES = {("config", "precision.ops"), ("config", "tasks._safety"), ("config", "record.folder")}
"""Names that configuration is checked against, kept beside what they name."""


def layer(name: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if name in names)


def imports() -> Iterator[tuple[str, str]]:
    """(importing package, imported module) for every import of mpt within mpt."""
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "mpt":
                yield from ((here, alias.name) for alias in node.names if not alias.name.startswith("__"))
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mpt."):
                yield here, str(node.module).removeprefix("mpt.")


def test_every_package_has_a_layer() -> None:
    found = {p.stem for p in PACKAGE.iterdir() if (p.is_dir() and p.name[0] not in "_.") or p.suffix == ".py"}
    assert found - set().union(*LAYERS) == {"__init__"}


def test_no_import_points_upwards_or_sideways() -> None:
    wrong = set()
    for here, module in imports():
        there = module.split(".")[0]
        allowed = {(here, there), (here, module)} & (SAME_LAYER | TORCH_FREE_TABLES)
        if here == "__init__" or here == there or allowed:
            continue
        if layer(there) > layer(here) or (layer(there) == layer(here) and here not in LAYERS[0] | LAYERS[6]):
            wrong.add((here, module))
    assert not wrong


def test_reports_stand_on_what_a_run_left_and_need_nothing_that_made_it() -> None:
    below = {"errors", "registry", "units", "stats", "formats", "record", "report"}
    other = {module for here, module in imports() if here == "report" and module.split(".")[0] not in below}
    assert other <= {"config.fingerprint", "config.paths"}


def test_reports_and_configuration_import_no_torch() -> None:
    modules = "mpt.report.command, mpt.record.reader, mpt.config.compose, mpt.config.check, mpt.precision.capability"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=False).returncode == 0
