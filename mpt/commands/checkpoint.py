"""`mpt checkpoint`: what is in one, what another precision would do to its weights, and weights for other programs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpt.commands import _flags
from mpt.commands._lowered import in_layers
from mpt.errors import ConfigError, Problem
from mpt.registry import did_you_mean
from mpt.units import counted

if TYPE_CHECKING:
    from mpt.checkpoint.lint import Finding, Target

SUMMARY = "`checkpoint show|lint|export`: contents, what a precision would lose, safetensors"
ORDER = 5
USAGE = """mpt checkpoint show   RUN_DIR|CHECKPOINT [--json]
mpt checkpoint lint   RUN_DIR|CHECKPOINT --precision NAME[,NAME] [--averaged] [--json]
mpt checkpoint export RUN_DIR|CHECKPOINT OUT.safetensors [--averaged]

A run folder stands for its newest valid checkpoint. lint takes policies (fp16, mxfp8) and formats (float16, e4m3), and
names the tensors in which numbers would overflow or become zero; low-bit operands are those of the layers that the
policy takes in the run's own model. export writes weights and buffers, masters in place of
half weights. --averaged takes the average (trainer.ema_decay). No code from a file is run."""
WORDS = {"show": 1, "lint": 1, "export": 2}


def run(args: list[str]) -> int:
    """Does what the verb says."""
    known, words = _flags.parse("mpt checkpoint", args, _add_flags)
    if known.help:
        print(USAGE)
        return 0
    verb, *rest = words or [""]
    if verb not in VERBS:
        what = f"got `{verb}`" if verb else "wants a verb and a checkpoint"
        raise ConfigError(Problem("mpt checkpoint", what, did_you_mean(verb, list(VERBS))))
    if len(rest) != WORDS[verb]:
        usage = next(line for line in USAGE.splitlines() if verb in line.split())
        raise ConfigError(
            Problem(f"mpt checkpoint {verb}", f"got {counted(len(rest), 'word')}, want {WORDS[verb]}", usage)
        )
    VERBS[verb](known, rest)
    return 0


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--precision")
    parser.add_argument("--averaged", action="store_true")
    parser.add_argument("--json", action="store_true")


def _loaded(word: str) -> tuple[Path, dict[str, Any]]:
    from mpt.checkpoint import load
    from mpt.checkpoint.contents import checked
    from mpt.train.resume import stored

    where = stored(Path(word))
    return where, checked(load(where), str(where))


def show(known: argparse.Namespace, words: list[str]) -> None:
    """Where it stands in its run, who wrote it, and how many bytes each part has."""
    from mpt.checkpoint.marker import read_marker
    from mpt.checkpoint.plain import size_bytes
    from mpt.commands._console import print_json
    from mpt.units import bytes_text

    where, state = _loaded(words[0])
    marker, parts = read_marker(where), {name: size_bytes(part) for name, part in state.items()}
    if known.json:
        print_json({**asdict(marker), "path": str(where), "parts_bytes": parts, "versions": state["versions"]})
        return
    wrote = ", ".join(f"{k} {v}" for k, v in (state["versions"] or {}).items()) or "an older version"
    print(f"{where}: step {marker.step}, update {marker.update}, {marker.schema}, written by {wrote}")
    for name, size in sorted(parts.items(), key=lambda part: -part[1]):
        if size:
            print(f"  {name:<10} {bytes_text(size)}")


def lint(known: argparse.Namespace, words: list[str]) -> None:
    """Tensors that would lose numbers in each precision asked for."""
    from mpt.checkpoint.lint import lint as findings
    from mpt.checkpoint.weights import weights_of
    from mpt.commands._console import print_json

    if not known.precision:
        raise ConfigError(Problem("--precision", "is not given", "e.g. --precision fp16,mxfp8"))
    asked = {name: targets(name) for name in known.precision.split(",")}
    where, state = _loaded(words[0])
    asked = {
        name: [in_layers(target, name, Path(words[0]), where) for target in wanted] for name, wanted in asked.items()
    }
    weights = weights_of(state, averaged=known.averaged, where=str(where))
    found = {name: list(findings(weights, wanted)) for name, wanted in asked.items()}
    if known.json:
        tensors = {name: [asdict(f) for f in rows if f.bad] for name, rows in found.items()}
        print_json({"schema": "mpt.checkpoint-lint/1", "path": str(where), "looked_at": len(weights), "bad": tensors})
        return
    for name, rows in found.items():
        for line in _told(name, asked[name], rows):
            print(line)


def targets(name: str) -> list[Target]:
    """What a policy (or a format) does to weights: stored, multiplied, quantised. Raises: MptError for neither."""
    from mpt.checkpoint.lint import Target
    from mpt.config.catalog import choices
    from mpt.config.compose import compose
    from mpt.formats.table import format_of
    from mpt.precision.low.settings import low_bit

    if name not in choices("precision", None):
        return [Target("as stored", format_of(name))]
    policy = compose([f"precision={name}"]).precision
    found = [Target("as stored", format_of(policy.param))]
    if policy.compute != policy.param:
        found.append(Target("as multiplied", format_of(policy.compute)))
    low = low_bit(policy)
    operand = low.gemms.forward.right if low else None
    return [*found, Target("as an operand", operand)] if operand is not None and operand.low else found


def _told(name: str, wanted: list[Target], rows: list[Finding]) -> Iterator[str]:
    bad = sorted((row for row in rows if row.bad), key=lambda row: (-row.nonfinite, -row.overflow, -row.underflow))
    labels = ", ".join(target.label for target in wanted)
    yield f"{name}: {labels}: {len(bad)} of {len(rows)} would lose numbers" if bad else f"{name}: {labels}: all fit"
    for row in bad:
        parts = [f"{row.nonfinite:,} are not finite"] if row.nonfinite else []
        parts += [f"{row.overflow:.3%} overflow (largest {row.largest:.3g})"] if row.overflow else []
        parts += [f"{row.underflow:.3%} become zero (smallest {row.smallest:.3g})"] if row.underflow else []
        yield f"  {row.tensor}, {row.target}: {', '.join(parts)}"


def export(known: argparse.Namespace, words: list[str]) -> None:
    """Weights in a file that other programs read."""
    from mpt.checkpoint.export import to_safetensors
    from mpt.checkpoint.marker import read_marker
    from mpt.checkpoint.weights import weights_of

    where, state = _loaded(words[0])
    weights = weights_of(state, averaged=known.averaged, where=str(where))
    marker = read_marker(where)
    classes = "\n".join(map(str, state["classes"]))
    about = {"step": str(marker.step), "update": str(marker.update), "classes": classes}
    to_safetensors(weights, Path(words[1]), about | {"weights": "averaged" if known.averaged else "current"})
    print(f"{words[1]}: {len(weights)} tensors of {where}")


VERBS: dict[str, Callable[[argparse.Namespace, list[str]], None]] = {"show": show, "lint": lint, "export": export}
