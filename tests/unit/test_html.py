"""Pages: escaped, self-contained, small; and in a real browser where there is one."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mpt.cli import main
from mpt.record.reader import read_run
from mpt.report.command import html_of
from mpt.report.compare.comparison import Options, compare, read
from mpt.report.page import Page, Part, to_html
from mpt.report.pages import comparison_page
from mpt.report.section import Section, Table
from tests.unit._numerics_kit import look, looked_at, spread_out
from tests.unit._runs_kit import write_run

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u202e"
LIMIT_BYTES = 5_000_000


def embedded(page: str) -> list[dict[str, Any]]:
    """The figures in a page, strictly read."""
    text = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert text is not None
    return list(json.loads(text[1], parse_constant=lambda c: pytest.fail(c)))


def comparison(root: Path, seeds: int = 3, n: int = 60) -> str:
    for seed in range(seeds):
        write_run(root / f"fp32-{seed}", "fp32", seed, 0.9 + seed / 100, n=n, samples_per_s=1000 + seed)
        write_run(root / f"bf16-{seed}", "bf16", seed, 0.9 + seed / 100, n=n, samples_per_s=1500 - seed)
        write_run(root / f"fp16-{seed}", "fp16", seed, 0.9 + seed / 100, n=n, skips=(5, 9), how="emulated")
    return to_html(comparison_page(compare(*read([str(root)]), Options())))


class Tags(HTMLParser):
    """Elements of a page, and everything that would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.fetched += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "action") and v != "data:,"]


def test_a_page_fetches_nothing_and_is_small(tmp_path: Path) -> None:
    page = comparison(tmp_path)
    seen = Tags()
    seen.feed(page)
    assert seen.fetched == []
    assert "default-src 'none'" in page
    assert len(page.encode()) < LIMIT_BYTES


def test_twelve_long_runs_stay_below_the_limit(tmp_path: Path) -> None:
    page = comparison(tmp_path, seeds=4, n=6000)
    assert len(page.encode()) < LIMIT_BYTES
    assert len(embedded(page)[2]["traces"]) == 12


def test_whatever_a_user_typed_is_escaped(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "")
    write_run(tmp_path / name / "a", "fp32", name=json.dumps(HOSTILE))
    write_run(tmp_path / name / "b", "bf16", name=json.dumps(HOSTILE), skips=(3,))
    one = html_of(read_run(tmp_path / name / "a"))
    both = to_html(comparison_page(compare(*read([str(tmp_path / name)]), Options())))
    for page in (one, both):
        seen = Tags()
        seen.feed(page)
        assert seen.names.count("script") == 3
        assert "img" not in seen.names
        assert "alert(1)</script><img" not in page
        assert "\u202e" not in page


def test_skips_are_drawn_with_their_cause_and_non_finite_losses_as_gaps_with_marks(tmp_path: Path) -> None:
    write_run(tmp_path, "fp16", skips=(7, 8), loss=lambda i: math.nan if i == 20 else 1 / i)
    figures = {f["key"]: f for f in embedded(html_of(read_run(tmp_path)))}
    skips = next(t for t in figures["scale"]["traces"] if t["meta"].get("mark") == "skip")
    assert skips["x"] == [7, 8]
    assert skips["text"] == ["skipped: gradient overflow"] * 2
    line, marks = figures["loss"]["traces"]
    assert line["y"][19] is None
    assert marks["x"] == [20]
    assert marks["y"] == pytest.approx([1 / 19], rel=1e-4)


def test_a_run_that_never_took_a_step_has_a_page_without_pictures(tmp_path: Path) -> None:
    write_run(tmp_path, marker=None)
    (tmp_path / "steps.jsonl").write_text('{"schema": "mpt.steps/1"}\n')
    page = html_of(read_run(tmp_path))
    assert embedded(page) == []
    assert "config.yaml" in page


def until(page: Any, expression: str) -> None:
    """The expression came true (the browser's own way of waiting is code from text, which the page forbids)."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"never came true: {expression}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright (extra `test`) is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    with api.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    """A function from a file and a width to its page; at the end nothing was complained about or asked for."""
    complaints: list[str] = []
    contexts = []

    def open_page(path: Path, width: int, **more: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **more)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda r: None if r.url == path.as_uri() else complaints.append(r.url))
        page.goto(path.as_uri())
        page.wait_for_selector("#figure-loss .main-svg")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_draw_without_overflow_in_both_schemes(width: int, scheme: str, opened: Any, tmp_path: Path) -> None:
    path = tmp_path / "compare.html"
    path.write_text(comparison(tmp_path / "a long name = ü, 1"), encoding="utf-8")
    page = opened(path, width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("[...document.querySelectorAll('.plot')].every(p => p.querySelector('.main-svg'))")
    assert page.evaluate(
        "[...document.querySelectorAll('section')].every(s => s.getBoundingClientRect().right <= innerWidth)"
    )
    assert page.evaluate("document.documentElement.dataset.theme") == scheme


def test_the_page_of_a_real_sweep_opens_without_complaint(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["precision=fp32,tf32,bf16,fp16", "seed=0,1,2", "trainer.max_steps=8", "device=cpu"]
    assert main(["sweep", "--in-process", *words, "hydra.sweep.dir=s"]) == 0
    capsys.readouterr()
    for width in (390, 1440):
        page = opened(tmp_path / "s" / "compare.html", width)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.querySelectorAll('#figure-loss .scatterlayer .trace').length") == 12
        assert "baseline" in page.inner_text("#verdict table")


def test_plots_react_to_hover_zoom_and_switches(opened: Any, tmp_path: Path) -> None:
    path = tmp_path / "compare.html"
    path.write_text(comparison(tmp_path / "runs"), encoding="utf-8")
    page = opened(path, 1440)
    lines = "document.querySelectorAll('#figure-loss .scatterlayer .trace').length"
    assert page.evaluate(lines) == 9
    page.click(".switch button.group")
    assert page.evaluate(lines) == 6
    plot = page.locator("#figure-loss .nsewdrag")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] / 2)
    page.wait_for_selector("#figure-loss .hoverlayer .legend, #figure-loss .hoverlayer .hovertext")
    before = page.evaluate("document.querySelector('#figure-loss .plot').layout.xaxis.range[1]")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    until(page, f"document.querySelector('#figure-loss .plot').layout.xaxis.range[1] < {before}")
    page.click(".switch button.run")
    assert page.evaluate(lines) == 7
    page.click("#figure-loss button.log")
    assert page.evaluate("document.querySelector('#figure-loss .plot').layout.yaxis.type") == "log"
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("width", [390, 1440])
def test_exponents_of_layers_are_drawn_with_the_ranges_of_formats(width: int, opened: Any, tmp_path: Path) -> None:
    tensors = {"gradients": {f"layer{i}.weight": spread_out(-25 - i, 3, n=500) for i in range(4)}}
    folder = looked_at(tmp_path / "run", [look(step, tensors) for step in (1, 30)])
    (tmp_path / "report.html").write_text(html_of(read_run(folder)), encoding="utf-8")
    page = opened(tmp_path / "report.html", width)
    page.wait_for_selector("#figure-exponents_gradients .heatmaplayer image")
    rows = "[...document.querySelectorAll('#figure-exponents_gradients .ytick text')].map(t => t.textContent)"
    *layers, e4m3, e5m2, plain, scaled = page.evaluate(rows)  # from below
    assert layers == ["layer3", "layer2", "layer1", "layer0"]
    assert (e4m3, e5m2, plain) == ("e4m3, alone", "e5m2, alone", "float16 × 1")
    assert scaled.startswith("float16 × 2^")
    assert page.evaluate("document.querySelectorAll('#figure-exponents_gradients .shapelayer path').length") == 2
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_cells_of_tables_with_many_columns_carry_their_names(tmp_path: Path) -> None:
    table = Table(("a", "b", "<c>", "d"), (("1", "", "3", "4"),), right=(3,))
    few = Table(("a", "b"), (("1", "2"),))
    page = to_html(Page("t", (Part(Section("s", "S", tables=(table, few))),), ()))
    assert '<td data-label="&lt;c&gt;">3</td><td class="right" data-label="d">4</td>' in page
    assert page.count('<table class="lines">') == 1
    assert page.count("<td>1</td>") == 2


@pytest.mark.parametrize("width", [390, 768])
def test_rows_are_lines_of_named_cells_where_a_table_is_too_wide(width: int, opened: Any, tmp_path: Path) -> None:
    path = tmp_path / "compare.html"
    path.write_text(comparison(tmp_path / "runs"), encoding="utf-8")
    page = opened(path, width)
    assert page.evaluate("document.querySelectorAll('table.lines').length") >= 3
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every(s => s.scrollWidth <= s.clientWidth)")
    name = "getComputedStyle(document.querySelector('#verdict .lines td:nth-child(2)'), '::before').content"
    assert "verdict" in page.evaluate(name)
    page.set_viewport_size({"width": 1400, "height": 900})
    assert page.evaluate(name) == "none"
    assert page.evaluate("getComputedStyle(document.querySelector('.lines thead')).display") == "table-header-group"


def test_a_page_can_be_printed(opened: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(html_of(read_run(write_run(tmp_path / "run", "fp16", skips=(3,)))), encoding="utf-8")
    page = opened(path, 1440, color_scheme="dark")
    assert page.pdf()[:5] == b"%PDF-"


def test_a_page_that_is_widened_draws_its_plots_anew_and_cuts_none(opened: Any, tmp_path: Path) -> None:
    path = tmp_path / "compare.html"
    path.write_text(comparison(tmp_path / "runs"), encoding="utf-8")
    page = opened(path, 390)
    inside = """[...document.querySelectorAll('.plot')].every(p => {
        const box = p.getBoundingClientRect(), drawn = p.querySelector('.main-svg').getBoundingClientRect();
        return Math.abs(drawn.width - box.width) < 2 && drawn.bottom <= box.bottom + 1; })"""
    for width in (390, 1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        until(page, inside)


def test_a_table_that_goes_on_shows_a_shadow_and_switches_say_what_they_do(opened: Any, tmp_path: Path) -> None:
    path = tmp_path / "compare.html"
    path.write_text(comparison(tmp_path / "runs"), encoding="utf-8")
    page = opened(path, 390)
    assert "gradient" in page.evaluate("getComputedStyle(document.querySelector('.scroll')).backgroundImage")
    named = "[...document.querySelectorAll('header button')].every(b => b.title && b.getAttribute('aria-label'))"
    assert page.evaluate(named)
