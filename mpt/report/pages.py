"""From runs to pages: one run, or several compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mpt.record.reader import RunData
from mpt.report.compare.brief import Brief
from mpt.report.compare.comparison import Comparison
from mpt.report.compare.figures import figures as comparison_figures
from mpt.report.compare.sections import sections as comparison_sections
from mpt.report.figure import Drawn, Figure
from mpt.report.figures import figures
from mpt.report.page import Page, Part
from mpt.report.section import Section, clean
from mpt.report.sections import sections

_BARS = re.compile("[▁▂▃▄▅▆▇█×]{3,}")
_CURVES = Section("curves", "Course of training")
_MEMORY = Section("memory", "Memory")


def run_page(run: RunData, brief: Brief | None, texts: Sequence[Section] | None = None) -> Page:
    """The page of one run; `brief` None where it took no step: then there is nothing to draw."""
    drawn = [] if brief is None else [Drawn(0, 0, clean(run.name), clean(run.name), brief)]
    first, *others = sections(run) if texts is None else texts
    parts = _with_figures([first, _CURVES, *others], figures(drawn) if drawn else [])
    parts = [_with_config(part, run) if part.section.key == "configuration" else part for part in parts]
    return Page(first.title, tuple(parts), tuple(drawn))


def comparison_page(made: Comparison, more: Sequence[Section] = ()) -> Page:
    """The page of a comparison."""
    drawn: list[Drawn] = []
    for group, config in enumerate(made.configs):
        for run in config.runs:
            name = clean(config.label)
            label = name if len(config.runs) == 1 else f"{name}, seed {run.seed}"
            drawn.append(Drawn(len(drawn), group, name, label, run))
    first, *others = comparison_sections(made)
    pictures = [*comparison_figures(made), *figures(drawn)]
    speed, *rest = others
    parts = _with_figures([first, *more, _CURVES, speed, _MEMORY, *rest], pictures)
    return Page(first.title, tuple(parts), tuple(drawn))


def _with_figures(texts: Sequence[Section], pictures: Sequence[Figure]) -> list[Part]:
    """Each section with its pictures; sections that are neither text nor picture are left out."""
    keys = {section.key for section in texts}
    parts = [Part(_undrawn(section), tuple(f for f in pictures if f.section == section.key)) for section in texts]
    assert all(f.section in keys or f.key == "scale" for f in pictures), "every picture has a section to stand in"
    return [p for p in parts if p.figures or p.section.facts or p.section.tables or p.section.notes]


def _undrawn(section: Section) -> Section:
    """Without the curves made of characters, which the page draws."""
    facts = ((name, _BARS.sub("", value).strip()) for name, value in section.facts)
    return replace(section, facts=tuple((name, value) for name, value in facts if value not in ("", "(log2)")))


def _with_config(part: Part, run: RunData) -> Part:
    """The configuration section, with config.yaml as it was written."""
    try:
        text = (run.path / "config.yaml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return part
    text = "\n".join(clean(line) if line.strip() else "" for line in text.splitlines())
    return Part(part.section, part.figures, "config.yaml", text)


def default_folder(given: Sequence[str]) -> Path:
    """Where compare.html goes: the folder given if it is one, else where the command was typed."""
    return Path(given[0]) if len(given) == 1 and Path(given[0]).is_dir() else Path()
