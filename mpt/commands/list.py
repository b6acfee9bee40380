"""`mpt list`: what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mpt.config.catalog import choices, recipes
from mpt.errors import ConfigError, Problem
from mpt.registry import did_you_mean

if TYPE_CHECKING:
    from rich.table import Table

SUMMARY = "models, data, precisions, scalings, optimizers, schedules, tasks, formats, recipes, gpus, keys"
ORDER = 7

GROUPS = {
    "models": "model",
    "data": "data",
    "precisions": "precision",
    "scalings": "scaling",
    "optimizers": "optimizer",
    "schedules": "schedule",
    "tasks": "task",
}
"""Kinds that are groups of conf/: the word that selects one."""

USAGE = """mpt list KIND [--json] [--config-dir DIR]

KIND: models, data, precisions, scalings, optimizers, schedules, tasks, formats, recipes, gpus, keys.
`mpt list keys scaling` shows the keys whose names hold `scaling`, with defaults and meanings."""


def run(args: list[str]) -> int:
    """Prints one kind."""
    from mpt.commands import _flags

    flags = _flags.read("mpt list", args, json=True)
    if flags.help or not flags.words:
        print(USAGE)
        return 0
    kind, *rest = flags.words
    if kind not in KINDS or (rest and kind != "keys"):
        wrong = kind if kind not in KINDS else rest[0]
        raise ConfigError(Problem("mpt list", f"got `{wrong}`, want one kind", did_you_mean(wrong, list(KINDS))))
    document = _keys(rest) if rest else KINDS[kind](flags.config_dir)
    if flags.json:
        from mpt.commands._console import print_json

        print_json({"schema": "mpt.list/1", "kind": kind, **document})
    else:
        _print(kind, document)
    return 0


def _group(group: str) -> Callable[[str | None], dict[str, Any]]:
    """A function from the user's folder to the entries of a group of conf/."""

    def entries(config_dir: str | None) -> dict[str, Any]:
        found = choices(group, config_dir)
        return {"entries": [{"name": n, "select": f"{group}={n}", "description": d} for n, d in found.items()]}

    return entries


def _models(config_dir: str | None) -> dict[str, Any]:
    import torchvision.models

    names = torchvision.models.list_models(module=torchvision.models)
    return {**_group("model")(config_dir), "torchvision": names}


def _recipes(config_dir: str | None) -> dict[str, Any]:
    found = recipes()
    return {"entries": [{"name": n, "select": f"recipe={n}", "description": d} for n, d in found.items()]}


def _formats(config_dir: str | None) -> dict[str, Any]:
    from mpt.formats.table import FORMATS

    rows = [
        {
            "name": f.name,
            "bits": f.bits,
            "exponent_bits": f.exponent_bits,
            "mantissa_bits": f.mantissa_bits,
            "max": f.max,
            "min_normal": f.min_normal,
            "min_subnormal": f.min_normal * 2.0**-f.mantissa_bits,
            "source": f.source,
        }
        for f in FORMATS.values()
    ]
    return {"entries": rows}


def _gpus(config_dir: str | None) -> dict[str, Any]:
    """Devices that need not be there; what this machine has is told by `mpt doctor`."""
    from mpt.config.gpus import GPUS

    rows = []
    for gpu in dict.fromkeys(GPUS.values()):
        name, *aliases = (key for key, named in GPUS.items() if named is gpu)
        capability = ".".join(map(str, gpu.capability))
        row = {**asdict(gpu), "driver_name": gpu.name, "name": name, "select": f"device={name}", "aliases": aliases}
        rows.append({**row, "capability": capability, "description": f"{gpu.name}, compute capability {capability}"})
    return {"entries": rows}


def _keys(parts: list[str]) -> dict[str, Any]:
    """Keys that hold one of `parts`; all without any. Raises: ConfigError where there is none."""
    from mpt.config.reference import reference

    found = reference()
    rows = [asdict(key) for key in found if not parts or any(part in key.key for part in parts)]
    if not rows:
        names = [name for key in found for name in (key.key, key.key.rpartition(".")[2])]
        raise ConfigError(Problem("mpt list keys", f"none holds `{parts[0]}`", did_you_mean(parts[0], names)))
    return {"entries": rows}


KINDS: dict[str, Callable[[str | None], dict[str, Any]]] = {
    **{kind: _group(group) for kind, group in GROUPS.items()},
    "models": _models,
    "formats": _formats,
    "recipes": _recipes,
    "gpus": _gpus,
    "keys": lambda config_dir: _keys([]),
}


def _few(choices: Sequence[str]) -> str:
    return ", ".join(choices[:4]) + (f" and {len(choices) - 4} more" if len(choices) > 4 else "")


_PEAKS = ("float32", "tfloat32", "float16", "bfloat16", "float8", "float4")


def _print(kind: str, document: dict[str, Any]) -> None:
    from mpt.commands._console import console

    out, entries = console(), document["entries"]
    out.print(_TABLES.get(kind, _choices)(entries) if entries else f"no {kind} yet")
    if kind == "gpus":
        out.print("`mpt plan device=…` tells what would run there; `mpt doctor` shows this machine's own devices")
    if "torchvision" in document:
        out.print("\nmodel=torchvision model.arch=…", style="bold")
        out.print(", ".join(document["torchvision"]), soft_wrap=out.file.isatty())


def _choices(entries: Sequence[dict[str, Any]]) -> Table:
    return _table(
        ("select with", "what it is"),
        [(_selects(row), row["description"]) for row in entries],
    )


def _selects(row: dict[str, Any]) -> str:
    return " or ".join((row["select"], *row.get("aliases", ())))


def _format_table(entries: Sequence[dict[str, Any]]) -> Table:
    bits, sizes = ("bits", "exponent_bits", "mantissa_bits"), ("max", "min_normal", "min_subnormal")
    return _table(
        ("format", "bits", "exponent", "mantissa", "largest", "smallest normal", "smallest subnormal"),
        [(row["name"], *(str(row[k]) for k in bits), *(f"{row[k]:.4g}" for k in sizes)) for row in entries],
    )


def _gpu_table(entries: Sequence[dict[str, Any]]) -> Table:
    def size(value: float | None) -> str:
        return "–" if value is None else f"{value:g}"

    keys = ("memory_gb", "bandwidth_tb_s", *_PEAKS)
    return _table(
        ("select with", "name", "capability", "GB", "TB/s", *_PEAKS),
        [(_selects(row), row["driver_name"], row["capability"], *(size(row[key]) for key in keys)) for row in entries],
        title="dense peaks in TFLOP/s",
    )


def _key_table(entries: Sequence[dict[str, Any]]) -> Table:
    from rich.markup import escape

    shown = _table(("key", "default", "meaning"), ())
    for row in entries:
        only = f"[dim]({_few(row['choices'])})[/dim]" if row["choices"] else ""
        told = (escape(row["meaning"]), escape(_differing(row["differs"])), only)
        shown.add_row(escape(row["key"]), escape(row["default"]), " ".join(filter(None, told)))
    return shown


def _differing(differs: Mapping[str, str]) -> str:
    """`Default: 128 with cifar10; 32 with text, shakespeare.`"""
    by_value: dict[str, list[str]] = {}
    for choice, value in differs.items():
        by_value.setdefault(value, []).append(choice)
    told = "; ".join(f"{value} with {_few(choices)}" for value, choices in by_value.items())
    return f"Default: {told}." if told else ""


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> Table:
    from rich.markup import escape

    from mpt.commands._console import table

    shown = table(*headers, title=title)
    for row in rows:
        shown.add_row(*map(escape, row))
    return shown


_TABLES = {"formats": _format_table, "gpus": _gpu_table, "keys": _key_table}
"""How a kind is shown that has more to tell than a name and a sentence."""
