"""Compiled steps, predicted: against what torch's allocator gives in one, and against the eager step's own figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mpt.build import make_plan
from mpt.cli import main
from mpt.config.compose import compose
from mpt.predict.compiled import EAGER_PARTS, FUSED_FOR_A_CPU
from mpt.predict.fake import trace
from mpt.predict.inductor import FUSED
from mpt.predict.prediction import predict
from mpt.predict.trace import Op, Trace
from mpt.predict.tracker import Untraceable
from mpt.types import Unmeasured
from tests.e2e._run import Done

COMPILED = "trainer.compile=true"
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method")
"""torch 2.11's compiler warns of itself as it is loaded."""


def traced(*words: str) -> Trace:
    cfg = compose(["device=cpu", *words])
    return trace(cfg, make_plan(cfg))


def user_model(folder: Path, body: str) -> list[str]:
    """The words for a net of one layer whose output goes through `body`."""
    (folder / "net_of_user.py").write_text(
        "import torch\nclass M(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.a = torch.nn.Linear(64, 10)\n"
        f"    def forward(self, x):\n        x = self.a(x.flatten(1))\n        {body}\n"
    )
    return ["model=custom", f"model.path={folder}/net_of_user.py:M"]


def fused(found: Trace) -> list[Op]:
    return [op for op in found.ops if op.name == FUSED]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_peak_of_a_compiled_run_is_what_was_predicted(tmp_path: Path, precision: str) -> None:
    done = Done(
        tmp_path / "run", "model=mlp", "data=digits", "device=cpu", f"precision={precision}", COMPILED,
        "trainer.predict=true", "trainer.max_steps=3", "trainer.eval_every=0", "checkpoint.every=0",
    )  # fmt: skip
    memory = done.summary["memory"]
    assert memory["predicted_peak_bytes"] == memory["peak_bytes"]
    assert "that torch's allocator gave in one profiled step" in memory["method"]
    assert memory["activations_bytes"] is None
    assert "compiled" in memory["activations_bytes_reason"]
    assert "mpt bench" in done.summary["speed"]["predicted_step_ms_reason"]


@pytest.mark.parametrize("compiled", [True, False])
def test_recurrent_nets_are_predicted_with_what_their_kernels_keep(tmp_path: Path, compiled: bool) -> None:
    """An LSTM's kernel keeps a workspace; a GRU is made of other ops. torch compiles around both."""
    (tmp_path / "recurrent_of_user.py").write_text(
        "import torch\nclass M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = torch.nn.LSTM(8, 16, batch_first=True)\n"
        "        self.b = torch.nn.GRU(16, 10, batch_first=True)\n"
        "    def forward(self, x):\n        return self.b(self.a(x.flatten(1, 2))[0])[0][:, -1]\n"
    )
    done = Done(
        tmp_path / "run", "model=custom", f"model.path={tmp_path}/recurrent_of_user.py:M", "data=digits", "device=cpu",
        f"trainer.compile={str(compiled).lower()}", "trainer.predict=true", "trainer.max_steps=3",
        "trainer.eval_every=0", "checkpoint.every=0",
    )  # fmt: skip
    memory = done.summary["memory"]
    assert abs(memory["predicted_peak_bytes"] - memory["peak_bytes"]) <= 8  # numbers of one element


def test_a_tiny_nets_compiled_trace_uses_the_threads_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler fuses otherwise for another number of threads, and a run gives a tiny net one."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, events = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            events.append(traced(COMPILED).events)
    finally:
        torch.set_num_threads(before)
    assert events[0] == events[1]


def test_a_chain_is_one_kernel_that_reads_its_input_and_writes_its_result(tmp_path: Path) -> None:
    words = user_model(tmp_path, "return (torch.relu(x) + 1).sigmoid() * 3")
    eager, compiled = traced(*words), traced(*words, COMPILED)
    result = 64 * 10 * 4
    assert next((op.phase, op.bytes_read, op.bytes_written) for op in fused(compiled)) == ("forward", result, result)
    assert not fused(eager)
    assert {"relu", "sigmoid"} <= {op.name for op in eager.ops}
    assert not {"relu", "sigmoid"} & {op.name for op in compiled.ops}
    assert sum(op.flops for op in compiled.ops) == sum(op.flops for op in eager.ops) > 0


def test_a_break_in_the_graph_is_followed(tmp_path: Path) -> None:
    words = user_model(
        tmp_path, "x = torch.relu(x)\n        torch._dynamo.graph_break()\n        return x.sigmoid() * 3"
    )
    assert len([op for op in fused(traced(*words, COMPILED)) if op.phase == "forward"]) == 2


def test_a_model_that_reads_numbers_is_told_compiled_too(tmp_path: Path) -> None:
    words = user_model(tmp_path, "return x if float(x.sum()) > 0 else -x")
    with pytest.raises(Untraceable) as error:
        traced(*words, COMPILED)
    (problem,) = error.value.problems
    assert "reads a tensor's value while it computes" in problem.what
    assert "mpt train … trainer.max_steps=10" in problem.hint


def test_numpy_in_a_model_is_compiled_and_no_zeros_are_put_in_its_place(tmp_path: Path) -> None:
    words = user_model(tmp_path, "import numpy\n        return x * torch.from_numpy(numpy.abs(x.detach().numpy()))")
    with pytest.raises(Untraceable, match="numpy"):
        traced(*words)
    done = Done(
        tmp_path / "run", *words, "data=digits", "device=cpu", COMPILED, "trainer.predict=true",
        "trainer.max_steps=3", "trainer.eval_every=0", "checkpoint.every=0",
    )  # fmt: skip
    memory = done.summary["memory"]
    assert memory["predicted_peak_bytes"] == memory["peak_bytes"]


def test_emulated_formats_are_predicted_as_they_run_eagerly() -> None:
    assert traced("precision=fp8", COMPILED).events == traced("precision=fp8").events


def test_nothing_that_was_compiled_for_a_trace_is_left_behind() -> None:
    """A real model is compiled anew after it."""
    traced("model=mlp", COMPILED)
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    run = torch.compile(torch.nn.Linear(4, 4), backend=backend)
    assert type(run(torch.ones(2, 4))) is torch.Tensor
    assert compiled == [1]


def test_a_compiled_step_moves_less_on_a_gpu_that_is_not_here() -> None:
    words = ["model=gpt", "model.layers=1", "model.width=32", "data=shakespeare", "data.batch_size=4", "data.limit=32"]
    made = {}
    for compiled in ("false", "true"):
        cfg = compose([*words, "device=h100", "precision=bf16", f"trainer.compile={compiled}"])
        made[compiled] = predict(cfg, make_plan(cfg))
    eager, compiled_step = made["false"], made["true"]
    assert not isinstance(eager.time, Unmeasured)
    assert not isinstance(compiled_step.time, Unmeasured)
    assert compiled_step.time.launches < eager.time.launches
    assert compiled_step.time.moved_bytes < eager.time.moved_bytes
    assert compiled_step.time.flops == eager.time.flops
    assert (eager.not_told, compiled_step.not_told) == ("", FUSED_FOR_A_CPU)
    assert isinstance(compiled_step.largest_batch, int)


def test_a_plan_says_what_it_does_not_know_of_a_compiled_step(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("model=mlp", "data.limit=64", "precision=bf16", COMPILED)
    for more, note in (
        (["device=cpu"], None),
        (["device=h100", "distributed=ddp", "distributed.nproc=2"], EAGER_PARTS),
    ):
        assert main(["plan", *words, *more, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["predicted"]
        assert told.get("note") == note
    assert main(["plan", *words, "device=cpu"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "a compiler's kernels go across layers" in shown
    assert "not known before they are built" in shown


def test_each_trace_through_the_compiler_has_a_line_on_stderr_and_none_in_the_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["plan", "model=mlp", "data.limit=256", "device=h100", "precision=bf16", "--json"]
    assert main([*words, COMPILED]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["precision"] == "bf16"
    lines = told.err.splitlines()
    assert lines[0] == "compiling for a trace: bf16, batch 64, NVIDIA H100 80GB HBM3"
    assert lines[-1] == "compiling for a trace: fp32, batch 64, NVIDIA H100 80GB HBM3"
    assert 3 <= len(lines) <= 5
    assert len(set(lines)) == len(lines)
    assert main(words) == 0
    assert capsys.readouterr().err == ""
