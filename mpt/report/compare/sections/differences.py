"""What differs between the configurations, and where they ran."""

from __future__ import annotations

import json
from typing import Any

from mpt.report.compare.comparison import Comparison
from mpt.report.compare.configs import Config
from mpt.report.section import Section, Table, clean, get

_SHOWN = 40


def section(made: Comparison) -> Section:
    keys = list(made.configs[0].key)
    rows = [(clean(key), *(_text(config.key[key]) for config in made.configs)) for key in keys[:_SHOWN]]
    if any(name.startswith("cuda") for config in made.configs for name in config.device()):
        rows.append(("TF32 of matmul, convolution", *(_tf32(config) for config in made.configs)))
    columns = ("key", *(clean(config.label) for config in made.configs))
    facts = [
        ("compared axis", ", ".join(map(clean, made.plan.axis)) or "none: the configurations are the same"),
        ("devices", ", ".join(sorted({name for config in made.configs for name in config.device()}))),
        ("torch", ", ".join(sorted({clean(get(r.data.env, "versions", "torch") or "unknown") for r in made.runs}))),
    ]
    notes = (("", f"{len(keys) - _SHOWN} more keys differ: see compare.json"),) if len(keys) > _SHOWN else ()
    tables = (Table(columns, tuple(rows)),) if rows else ()
    data = {"keys": {key: {config.label: config.key[key] for config in made.configs} for key in keys}}
    return Section("differences", "What differs", tuple(facts), tables, notes, data)


def _tf32(config: Config) -> str:
    """What the flags were in the runs, side by side even where they are the same."""
    names = ("cuda.matmul.fp32_precision", "cudnn.conv.fp32_precision")
    seen = {tuple(str(get(run.data.env, "flags", name)) for name in names) for run in config.runs}
    return "; ".join(", ".join(map(clean, values)) for values in sorted(seen))


def _text(value: Any) -> str:
    return clean(value if isinstance(value, str) else json.dumps(value, default=str))
