"""One self-contained HTML page: text, pictures and the plotting library in one file that asks for nothing."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

import mpt
from mpt.report.figure import Drawn, Figure
from mpt.report.section import Section

PLOTLY = "4.1.1"
"""plotly.js' partial bundle `cartesian`, as published; its licence lies beside it."""


@dataclass(frozen=True)
class Part:
    """A section with its pictures; `code` is text shown as it is, folded under `code_title`."""

    section: Section
    figures: tuple[Figure, ...] = ()
    code_title: str = ""
    code: str = ""


@dataclass(frozen=True)
class Page:
    """All that is shown; `drawn` are the runs that can be switched."""

    title: str
    parts: tuple[Part, ...]
    drawn: tuple[Drawn, ...]


def to_html(page: Page, live_ms: int | None = None) -> str:
    """The page; with `live_ms` it asks its own server for news that often. Text from runs is escaped throughout."""
    from markupsafe import Markup

    figures = figures_of(page)
    charts = bool(figures) or live_ms is not None  # a live page may get its first figure later
    scripts = {"plotly": _plotly()} if charts else {}
    scripts["js"] = _asset("page.js")
    return str(
        _environment().get_template("page.html.j2").render(
            title=page.title,
            parts=page.parts,
            groups=_groups(page.drawn),
            labels=[drawn.label for drawn in page.drawn],
            seeds=["?" if drawn.run.seed is None else drawn.run.seed for drawn in page.drawn],
            live=live_ms,
            version=mpt.__version__,
            plotly_version=PLOTLY if charts else None,
            made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            css=Markup(_asset("page.css")),
            figures_json=Markup(_embedded(figures)),
            script_hashes=Markup(" ".join(f"'{_hash(text)}'" for text in scripts.values())),
            **{name: Markup(text) for name, text in scripts.items()},
        )
    )  # fmt: skip


def sections_html(page: Page) -> dict[str, str]:
    """The text of each section, for a live page's news."""
    template = _environment().get_template("section.html.j2")
    return {part.section.key: template.render(part=part) for part in page.parts}


def figures_of(page: Page) -> list[dict[str, Any]]:
    """All pictures as plain containers."""
    return [asdict(figure) for part in page.parts for figure in part.figures]


def _groups(drawn: Sequence[Drawn]) -> list[dict[str, Any]]:
    """Configurations with the runs that they switch; none where there is only one run."""
    if len(drawn) < 2:
        return []
    groups: dict[int, dict[str, Any]] = {}
    for item in drawn:
        groups.setdefault(item.group, {"label": item.config, "runs": []})["runs"].append(item.index)
    return [groups[key] for key in sorted(groups)]


def _embedded(value: Any) -> str:
    """Strict JSON that can't end its script element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    return (files("mpt.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    packed = (files("mpt.report") / "assets" / f"plotly-cartesian-{PLOTLY}.min.js.gz").read_bytes()
    return gzip.decompress(packed).decode().replace("\r\n", "\n")  # a browser hashes scripts with plain line ends


@cache
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
