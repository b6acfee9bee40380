"""`mpt report RUN_DIR` and `mpt compare …`: in the terminal or as JSON, and as files beside the runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mpt.errors import ConfigError, ExitCode, Problem, RecordError
from mpt.record.reader import RunData, dumps, read_run
from mpt.report.compare import golden
from mpt.report.compare.brief import brief_of
from mpt.report.compare.comparison import Comparison, Options, compare, read
from mpt.report.compare.document import to_json as comparison_json
from mpt.report.compare.find import swept
from mpt.report.compare.golden import Held
from mpt.report.compare.sections import sections as comparison_sections
from mpt.report.files import require_writable, write_reports
from mpt.report.json import to_json
from mpt.report.markdown import to_markdown
from mpt.report.page import to_html
from mpt.report.pages import comparison_page, default_folder, run_page
from mpt.report.section import Section
from mpt.report.sections import advice, numerics, sections


def advised(run_dir: str, as_json: bool) -> int:
    """What other loss scalings would have done in a run, on stdout.

    Raises: RecordError when the folder holds no run, or one whose gradients were not looked at.
    """
    run = read_run(Path(run_dir))
    found = advice.section(run)
    if found is None:
        bad = f": {run.numerics.bad:,} lines of numerics.jsonl can't be read" if run.numerics.bad else ""
        hint = "train with numerics=light: it costs under 2 % and records them"
        raise RecordError(Problem(run_dir, f"nothing is recorded of this run's gradients{bad}", hint))
    parts = [found, *(part for part in (numerics.section(run),) if part is not None)]
    if as_json:
        print(dumps(to_json(parts, run.path), indent=2))
    else:
        _show(parts)
    return ExitCode.FINISHED


def report(run_dir: str, as_json: bool, html: bool = True) -> int:
    """The report of one run on stdout, and report.md and report.html in its folder; exit code 0 whatever state the
    run is in.

    Raises: RecordError when the folder holds no run.
    """
    run = read_run(Path(run_dir))
    parts = sections(run)
    texts = {"report.md": to_markdown(parts), **({"report.html": html_of(run, parts)} if html else {})}
    written = write_reports(run.path, texts)
    if as_json:
        print(dumps(to_json(parts, run.path), indent=2))
        return ExitCode.FINISHED
    _show(parts, run.status)
    _tell(written)
    return ExitCode.FINISHED


def html_of(run: RunData, parts: Sequence[Section] | None = None) -> str:
    """report.html of a run, of its `sections` where they are known."""
    return to_html(run_page(run, brief_of(run) if len(run.steps) else None, parts))


def compared(
    given: Sequence[str], options: Options, *, as_json: bool, out: str | None = None, against: str | None = None,
    fail_if: Sequence[str] = (),
) -> int:  # fmt: skip
    """The comparison on stdout, and compare.html, compare.md and compare.json; 4 where a verdict is in `fail_if`.

    Raises: RecordError where fewer than two runs can be read; ConfigError where no conclusion may be drawn at all, or
    where `out` can't be written to.
    """
    if out is not None:
        require_writable("--out", Path(out), folder=True)
    runs, skipped = read(given)
    options = replace(options, swept=tuple(map(str, swept(given).get("axis") or ())))
    kept = golden.load(Path(against)) if against else None
    if kept is not None and options.metric is None:
        options = _as_kept(options, kept)
    if len(runs) < 2 and kept is None:
        why = Problem(str(runs[0].data.path), "is the only run: nothing to compare it with", "mpt report shows one run")
        raise RecordError(why, *skipped)
    made = compare(runs, skipped, options)
    _refuse(made, kept is not None)
    held = golden.hold(kept, made.configs, made.metric, force=options.force) if kept is not None else []
    more = [golden.section(held, Path(against))] if against else []
    written = _write_and_show(made, more, given, as_json, out)
    code = _code(made, held, fail_if, against is not None)
    return ExitCode.FAULT if out is not None and not written and code == ExitCode.FINISHED else code


def _as_kept(options: Options, kept: dict[str, object]) -> Options:
    """The metric of the kept comparison, where none was asked for."""
    return replace(options, metric=str(kept["metric"]), at=str(kept["at"]))


def _refuse(made: Comparison, against: bool) -> None:
    """Raises: ConfigError where every comparison is refused and there is no golden file to hold the runs to."""
    if not made.refused or against:
        return
    hint = "--force concludes all the same; --axis KEY says that this key is what is compared"
    raise ConfigError(
        *(
            Problem(
                f"{j.pairing.candidate.label} against {j.pairing.baseline.label}", "; ".join(j.pairing.refused), hint
            )
            for j in made.judged
        )
    )


def _write_and_show(
    made: Comparison, more: Sequence[Section], given: Sequence[str], as_json: bool, out: str | None
) -> bool:
    """Whether all files were written."""
    first, *others = comparison_sections(made)
    parts = [first, *more, *others]
    document = dumps({**comparison_json(made), **{s.key: dict(s.data) for s in more}}, indent=2)
    folder = Path(out) if out else default_folder(given)
    page = to_html(comparison_page(made, more))
    texts = {"compare.html": page, "compare.md": to_markdown(parts), "compare.json": document + "\n"}
    written = write_reports(folder, texts)
    if as_json:
        print(document)
    else:
        _show(parts)
        _tell(written)
    return len(written) == len(texts)


def _code(made: Comparison, held: Sequence[Held], fail_if: Sequence[str], against: bool) -> int:
    """4 when a word that must not be said was said (a refusal is none that passes)."""
    words = [h.word for h in held] if against else [j.word for j in made.judged]
    if not fail_if:
        return ExitCode.FINISHED
    failing = sorted({word for word in words if word in (*fail_if, "refused")})
    if failing:
        print(f"--fail-if: {', '.join(failing)}", file=sys.stderr)
    return ExitCode.JOBS_FAILED if failing else ExitCode.FINISHED


def _show(parts: Sequence[Section], status: str = "") -> None:
    from rich.console import Console

    from mpt.report.text import render

    piped = not sys.stdout.isatty()
    terminal = Console(markup=False, highlight=False, emoji=False, width=180 if piped else None)
    with terminal.capture() as shown:
        terminal.print(render(parts, status))
    text = shown.get()
    # rich fills lines up to the width, which a file or a pager has no use for
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in text.splitlines()) if piped else text)


def _tell(written: Sequence[Path]) -> None:
    if written:
        print(f"written: {', '.join(map(str, written))}", file=sys.stderr)
