"""Rows of floating features, as users' arrays have them: what is trained on, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mpt.config.schema import DataConfig
from mpt.data._context import DataContext, DataSource
from mpt.data._given import given_arrays, open_arrays
from mpt.errors import DataError
from mpt.types import InputSpec
from tests.e2e._cli import document, mpt

Config = Callable[..., DataConfig]
X = np.random.default_rng(0).standard_normal((30, 7))
Y = np.arange(30) % 3


def opened(cfg: DataConfig, wanted: InputSpec | None = None, held: int = 7) -> DataSource:
    result = {"train": (X[:20], Y[:20]), "eval": (X[20:, :held], Y[20:])}
    return open_arrays(cfg, wanted or InputSpec("images"), DataContext(0, "cpu"), given_arrays(result, "m:f"))


def test_features_are_float32_rows_as_they_are(data_config: Config) -> None:
    source = opened(data_config("custom", batch_size=4))
    assert (source.spec.shape, source.spec.num_classes, source.spec.n_train) == ((7,), 3, 20)
    evaluated = torch.cat([batch.inputs for batch in source.eval()])
    assert torch.equal(evaluated, torch.from_numpy(X[20:].astype(np.float32)))
    batch = next(source.train(0))
    assert torch.equal(batch.inputs, torch.from_numpy(X.astype(np.float32))[source.train_indices(0)])
    assert torch.equal(batch.targets, torch.from_numpy(Y)[source.train_indices(0)])


def test_the_fingerprint_of_features_follows_their_content_and_number(data_config: Config) -> None:
    whole, again, part = (
        opened(data_config("custom", limit=n)).spec.fingerprint for n in (None, None, 10)
    )  # fmt: skip
    assert whole == again != part


@pytest.mark.parametrize(
    ("wanted", "held", "changes", "said"),
    [
        (InputSpec("images", min_size=4), 7, {}, "rows of 7 features, but the model takes images"),
        (InputSpec("images", channels=3), 7, {}, "use model=mlp or model=custom"),
        (InputSpec("tokens"), 7, {}, "the model takes token ids"),
        (None, 6, {}, "training has 7 features, evaluation 6"),
        (None, 7, {"image_size": 8, "mean": [0.5]}, "got 8, without effect on features"),
    ],
)
def test_what_features_do_not_fit_is_refused(
    wanted: InputSpec | None, held: int, changes: dict[str, object], said: str, data_config: Config
) -> None:
    with pytest.raises(DataError) as refused:
        opened(data_config("custom", **changes), wanted, held)
    assert said in str(refused.value)


def test_an_array_file_of_features_trains_an_mlp_and_is_planned(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    made = "import numpy as np\ndef load():\n    x, y = np.load('x.npy'), np.arange(30) % 3\n"
    (tmp_path / "mine.py").write_text(made + "    return {'train': (x[:20], y[:20]), 'eval': (x[20:], y[20:])}\n")
    words = ("data=custom", "data.path=mine.py:load", "model=mlp", "model.width=8", "model.depth=1", "device=cpu")
    mpt("train", *words, "trainer.channels_last=true", "trainer.max_steps=3", "run_dir=run", cwd=tmp_path)
    assert document(tmp_path / "run" / "plan.json")["params"] == 7 * 8 + 8 + 8 * 3 + 3
    assert (tmp_path / "run" / "DONE").is_file()
    assert "Predicted memory" in mpt("plan", *words, "trainer.channels_last=true", cwd=tmp_path).stdout
