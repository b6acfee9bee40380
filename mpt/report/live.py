"""The page of runs that are going, served on this machine only, and kept up to date."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from mpt.errors import Problem, RecordError
from mpt.record.folder import EVALS, EVENTS, MARKERS, NUMERICS, STEPS
from mpt.record.reader import RUNNING, read_run
from mpt.report.compare.brief import brief_of
from mpt.report.compare.comparison import Options, compare, read
from mpt.report.compare.find import run_folders
from mpt.report.page import Page, Part, figures_of, sections_html, to_html
from mpt.report.pages import comparison_page, run_page
from mpt.report.section import Section, clean

ADDRESS = "127.0.0.1"
"""Never another: nobody else is to see the runs."""

ASK_EVERY_MS = 2000
_FILES = (STEPS, EVENTS, EVALS, NUMERICS, "summary.json", *MARKERS)


@dataclass(frozen=True)
class Built:
    """What is served of one moment; `mark` changes when the runs do."""

    mark: str
    html: bytes
    data: bytes


class LiveView:
    """Builds the page anew when the run folders changed; may be asked by several threads."""

    def __init__(self, given: Sequence[str]) -> None:
        self._given = tuple(given)
        self._lock = threading.Lock()
        self._built: Built | None = None
        self._not_before = 0.0

    def now(self) -> Built:
        """The page as the folders are; at most a third of the time is spent on building it."""
        with self._lock:
            if self._built is not None and time.monotonic() < self._not_before:
                return self._built
            mark = _mark(self._given)
            if self._built is None or mark != self._built.mark:
                began = time.monotonic()
                self._built = _build(self._given, mark)
                self._not_before = time.monotonic() + 2 * (time.monotonic() - began)
            return self._built


class LiveServer(ThreadingHTTPServer):
    """Serves `/` and `/data.json` to programs of this machine. `port` 0: any free one."""

    daemon_threads = True

    def __init__(self, view: LiveView, port: int) -> None:
        self.view = view
        super().__init__((ADDRESS, port), _Handler)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer

    def do_GET(self) -> None:
        if not self._from_here():
            self.send_error(403, "ask for it by its own address")
            return
        path = self.path.partition("?")[0]
        if path not in ("/", "/data.json"):
            self.send_error(404)
            return
        built = self.server.view.now()
        if path == "/":
            self._send(200, "text/html; charset=utf-8", built.html)
        elif self.headers.get("If-None-Match") == f'"{built.mark}"':
            self._send(304, "application/json", b"", built.mark)
        else:
            self._send(200, "application/json", built.data, built.mark)

    def _from_here(self) -> bool:
        """Whether the browser was sent to this address: a foreign name that leads here is someone else's page."""
        host = self.headers.get("Host", "").rpartition(":")[0]
        return host in (ADDRESS, "localhost")

    def _send(self, code: int, kind: str, body: bytes, mark: str | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if mark is not None:
            self.send_header("ETag", f'"{mark}"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests of our own page are no news."""


def page_of(given: Sequence[str]) -> Page:
    """The page of one run, of several compared, or of none yet."""
    try:
        folders = run_folders(given)
        if len(folders) == 1:
            run = read_run(folders[0])
            return run_page(run, brief_of(run) if len(run.steps) else None)
        runs, skipped = read(given)
        if len(runs) == 1:
            return run_page(read_run(runs[0].data.path), runs[0])
        return comparison_page(compare(runs, skipped, Options()))
    except RecordError as error:
        return _waiting(error.problems)


def _build(given: Sequence[str], mark: str) -> Built:
    page = page_of(given)
    figures = figures_of(page)
    shape = "|".join(
        [*(p.section.key for p in page.parts), *(str(f["key"]) for f in figures), *(d.label for d in page.drawn)]
    )
    news = {"figures": figures, "sections": sections_html(page), "shape": hashlib.sha256(shape.encode()).hexdigest()}
    return Built(mark, to_html(page, ASK_EVERY_MS).encode(), json.dumps(news, allow_nan=False).encode())


def _waiting(problems: Sequence[Problem]) -> Page:
    """What is shown before there is anything to show."""
    notes = tuple(("careful", clean(f"{p.where}: {p.what}")) for p in problems)
    return Page("Waiting for the first step", (Part(Section("headline", "Waiting", notes=notes)),), ())


def _mark(given: Sequence[str]) -> str:
    """A digest of sizes and times of everything that is read."""
    seen = hashlib.sha256()
    for folder in run_folders(given):
        for name in _FILES:
            try:
                stat = (Path(folder) / name).stat()
                seen.update(f"{folder}/{name} {stat.st_size} {stat.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
            except OSError:
                continue
    return seen.hexdigest()[:32]


def _farewell(given: Sequence[str]) -> str:
    """What is said at the end: only of runs that are going that they go on."""
    going = 0
    for folder in run_folders(given):
        try:
            going += read_run(folder).status == RUNNING
        except RecordError:
            continue
    if not going:
        return "stopped serving"
    return f"stopped serving; the {'run goes' if going == 1 else 'runs go'} on"


def watch(given: Sequence[str], port: int | None) -> int:
    """Serves until Ctrl-C or SIGTERM; then 0. Raises: RecordError where a folder is missing or the port is taken."""
    import signal
    import sys

    missing = [Problem(word, "there is no such folder") for word in given if not Path(word).is_dir()]
    if missing:
        raise RecordError(*missing)
    try:
        server = LiveServer(LiveView(given), port or 0)
    except OSError as error:
        why = Problem("--port", f"{port} can't be had: {error.strerror}", "leave it away: any free port")
        raise RecordError(why) from error
    # SIGINT too: a shell's background jobs are started with it ignored
    before = {n: signal.signal(n, signal.default_int_handler) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        print(f"live at {server.url} (this machine only; Ctrl-C stops)", file=sys.stderr, flush=True)
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        print(_farewell(given), file=sys.stderr)
    finally:
        server.server_close()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0
