"""What a run shows: lines without a terminal, a live display on one, nothing when quiet; never a reason to stop."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest

from mpt.telemetry import console as module
from mpt.telemetry.console import LineConsole, QuietConsole, figures, make_console, place
from mpt.telemetry.live import RichConsole
from mpt.types import Snapshot
from mpt.units import bytes_text, number_text, seconds_text

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


def snapshot(step: int = 50, **changes: Any) -> Snapshot:
    values: dict[str, Any] = dict(
        step=step, total_steps=200, update=step - 2, epoch=1.25, loss=0.5, lr=1e-3, scale=65536.0, skipped=2,
        samples_per_s=12345.6, memory_bytes=512_000_000, eta_s=75.0,
    )  # fmt: skip
    return Snapshot(**{**values, **changes})


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    """A pipe whose reader went away."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def test_the_console_fits_the_stream(terminal: Terminal) -> None:
    assert isinstance(make_console(stream=terminal), RichConsole)
    assert isinstance(make_console(stream=io.StringIO()), LineConsole)
    assert isinstance(make_console(quiet=True, stream=terminal), QuietConsole)


def test_a_log_line_has_place_time_left_and_every_figure() -> None:
    told = " · ".join([place(snapshot()), *figures(snapshot(extra={"grad_norm": 0.25}))])
    assert told == (
        "50/200 steps · epoch 1.25 · 1:15 min left · loss 0.5 · lr 0.001 · scale 65,536 · skipped 2 · "
        "12,346 samples/s · 512 MB · grad_norm 0.25"
    )


def test_what_is_not_known_or_not_used_is_left_out() -> None:
    bare = snapshot(scale=1.0, skipped=0, samples_per_s=None, memory_bytes=None, eta_s=None, loss=math.nan)
    assert [place(bare), *figures(bare)] == ["50/200 steps · epoch 1.25", "loss nan", "lr 0.001"]


def test_progress_lines_come_at_most_once_in_two_seconds_and_the_last_always(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with make_console(stream=stream) as console:
        for step in (1, 2, 3, 4, 200):
            console.update(snapshot(step))
            now[0] += 0.8
    assert [line.split("/")[0] for line in stream.getvalue().splitlines()] == ["1", "4", "200"]


def test_lines_are_plain_text_in_order() -> None:
    stream = io.StringIO()
    with make_console(stream=stream) as console:
        console.start(["small_cnn [bold]on[/bold] digits"])
        console.evaluated(4, 3, {"accuracy": 0.9812, "loss": 0.1})
        console.say("gradients overflowed", "warning")
        console.say("saved")
        console.finish(["done: 4 steps"])
    assert stream.getvalue().splitlines() == [
        "small_cnn [bold]on[/bold] digits",
        "step 4 (update 3): accuracy 0.9812, loss 0.1",
        "warning: gradients overflowed",
        "saved",
        "done: 4 steps",
    ]


def drive(console: Any) -> None:
    with console:
        console.start(["first"])
        console.update(snapshot())
        console.evaluated(1, 1, {"accuracy": 0.5})
        console.say("a word", "error")
        console.update(snapshot(200))
        console.finish(["last"])


@pytest.mark.parametrize("terminal_like", [True, False])
def test_a_stream_whose_reader_is_gone_does_not_stop_the_run(
    terminal_like: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    drive(make_console(stream=Gone(terminal_like)))
    closed = io.StringIO()
    console = make_console(stream=closed)
    closed.close()
    drive(console)


def test_quiet_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    drive(make_console(quiet=True))
    assert capfd.readouterr() == ("", "")


def test_the_live_display_shows_bar_figures_and_kept_lines_with_markup_as_text(terminal: Terminal) -> None:
    with make_console(stream=terminal) as console:
        console.start(["[red]small_cnn[/red] :smile:"])
        console.update(snapshot())
        console.say("kept [bold]line")
        console.finish(["done"])
    text = terminal.getvalue()
    for part in (
        "[red]small_cnn[/red] :smile:",
        "50/200 steps",
        "━",
        "scale 65,536",
        "skipped 2",
        "kept [bold]line",
        "done",
    ):
        assert part in text


def test_the_live_display_says_what_it_is_busy_with_until_the_next_step(terminal: Terminal) -> None:
    with RichConsole(terminal) as console:
        console.doing("evaluating")  # nothing to show it under yet
        assert "evaluating" not in terminal.getvalue()
        console.update(snapshot(50))
        console.doing("evaluating")
        assert "50/200 steps" in terminal.getvalue().split("loss 0.5")[-1]
        assert "evaluating …" in terminal.getvalue()


def test_the_live_display_is_redrawn_at_most_ten_times_a_second(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpt.telemetry import live

    now = [10.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    with make_console(stream=terminal) as console:
        for step in range(1, 101):
            console.update(snapshot(step))
            now[0] += 0.01
    assert 8 <= terminal.getvalue().count("/200 steps") <= 12


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_the_terminal_is_as_it_was_after_any_exception(terminal: Terminal, error: type[BaseException]) -> None:
    console = make_console(stream=terminal)
    with pytest.raises(error):
        interrupted(console, error)
    text = terminal.getvalue()
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) == 1
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)


def interrupted(console: Any, error: type[BaseException]) -> None:
    with console:
        console.update(snapshot())
        raise error


def test_the_live_display_has_no_thread_of_its_own(terminal: Terminal) -> None:
    import threading

    before = threading.active_count()
    with make_console(stream=terminal) as console:
        console.update(snapshot())
        assert threading.active_count() == before


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (512e6, "512 MB"),
        (1.857e9, "1.86 GB"),
        (999.9e6, "1,000 MB"),
        (5e15, "5,000 TB"),
    ],
)
def test_bytes_read_as_three_digits_and_a_unit(count: float, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.4125, "0.41 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1:00 min"),
        (187, "3:07 min"),
        (7509, "2:05:09 h"),
    ],
)
def test_durations_read_as_a_clock(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.123456, "0.1235"),
        (65536.0, "65,536"),
        (2.0**24, "16,777,216"),
        (1234.56, "1,235"),
        (-4321.0, "-4,321"),
        (3.2e11, "320,000,000,000"),
        (1.5e38, "1.5e+38"),
        (1e-7, "1e-07"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_figures_have_few_digits_and_say_when_they_are_none(number: float, text: str) -> None:
    assert number_text(number) == text
