"""The live page: this machine only, news when the runs have any, a clean stop."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mpt.cli import main
from mpt.record.writer import RunWriter
from mpt.report.live import LiveServer, LiveView, _farewell, page_of
from mpt.types import StepRow
from tests.unit._runs_kit import write_run
from tests.unit.test_html import CHROMIUM, until


def rows(first: int, last: int) -> list[StepRow]:
    return [StepRow(i, i, True, 1 / i, 1e-3, 1.0, 1.0, 8, 0.01, 0.0) for i in range(first, last + 1)]


@contextmanager
def served(*folders: Path) -> Iterator[LiveServer]:
    server = LiveServer(LiveView([str(f) for f in folders]), 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def get(server: LiveServer, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, dict(answer.headers)


def losses(data: bytes) -> list[Any]:
    figures = {f["key"]: f for f in json.loads(data)["figures"]}
    return list(figures["loss"]["traces"][0]["x"])


def test_a_page_has_news_when_the_run_has_and_none_else(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run") as writer, served(tmp_path / "run") as server:
        writer.steps(rows(1, 5))
        status, data, headers = get(server, "/data.json")
        assert (status, losses(data)) == (200, [1, 2, 3, 4, 5])
        assert get(server, "/data.json", If_None_Match=headers["ETag"])[0] == 304
        writer.steps(rows(6, 8))
        server.view._not_before = 0.0
        status, data, _ = get(server, "/data.json", If_None_Match=headers["ETag"])
        assert (status, losses(data)[-1]) == (200, 8)
        assert get(server, "/")[0] == 200


def test_only_this_machine_by_its_own_address_is_answered(tmp_path: Path) -> None:
    with served(write_run(tmp_path)) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert get(server, "/", Host="evil.example:80")[0] == 403
        assert get(server, "/", Host=f"localhost:{server.server_port}")[0] == 200
        assert get(server, "/../config.yaml")[0] == 404


def test_runs_that_are_going_are_compared_and_a_sweep_without_runs_is_waited_for(tmp_path: Path) -> None:
    assert page_of([str(tmp_path)]).title == "Waiting for the first step"
    for precision in ("fp32", "bf16"):
        write_run(tmp_path / precision, precision, marker=None)
    page = page_of([str(tmp_path)])
    assert page.title == "Compared: fp32, bf16"
    assert len(page.drawn) == 2


def test_only_runs_that_are_going_are_said_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "done")
    assert _farewell([str(tmp_path)]) == "stopped serving"
    write_run(tmp_path / "going", marker=None)
    assert _farewell([str(tmp_path)]) == "stopped serving"
    monkeypatch.setattr("mpt.record.reader.is_held", lambda path: True)  # a lock is seen by other processes only
    assert _farewell([str(tmp_path)]) == "stopped serving; the run goes on"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_cleanly(stop: int, tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    code = "import sys; from mpt.cli import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", code, "report", "--watch", str(tmp_path / "run")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("live at http://127.0.0.1:")
        process.send_signal(stop)
        try:
            process.wait(timeout=60)
        finally:
            process.kill()
        assert process.stderr.read() == "stopped serving\n"  # the run is over
    assert process.returncode == 0


def test_wrong_words_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--watch", str(tmp_path / "none")]) == 2
    assert main(["report", "--watch", str(tmp_path), "--port", "99999"]) == 2
    assert main(["report", "--wach", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "none: there is no such folder" in err
    assert "--port: got 99999" in err
    assert "unrecognized arguments: --wach" in err


def test_a_browser_sees_the_news_without_being_told(tmp_path: Path) -> None:
    api = pytest.importorskip("playwright.sync_api", reason="playwright (extra `test`) is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with RunWriter(tmp_path / "run") as writer, served(tmp_path / "run") as server, api.sync_playwright() as running:
        writer.steps(rows(1, 5))
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.on("pageerror", lambda error: pytest.fail(str(error)))
        page.goto(server.url)
        last = "document.querySelector('#figure-loss .plot').data[0].x.at(-1)"
        until(page, f"{last} === 5")
        writer.steps(rows(6, 9))
        until(page, f"{last} === 9")
        browser.close()
