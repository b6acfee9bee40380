"""Each model against what is known of it: parameter counts, causality, initial weights, sizes that fit."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mpt.config.schema import DataConfig
from mpt.data import digits
from mpt.data._context import DataContext
from mpt.errors import ConfigError, ModelError
from mpt.models import custom, gpt, mlp, small_cnn
from mpt.models import torchvision as vision
from mpt.tasks import classification
from mpt.types import DataSpec

# One of each family of torchvision's classifiers.
FAMILIES = [
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
    "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "resnet18", "resnet50", "resnext50_32x4d",
    "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11", "vit_b_16", "vit_h_14", "wide_resnet50_2",
]  # fmt: skip


def images(side: int = 8, channels: int = 1, classes: int = 10) -> DataSpec:
    return DataSpec("made up", "images", (channels, side, side), classes, 10, 10, (), "")


def tokens(vocabulary: int, length: int) -> DataSpec:
    return DataSpec("made up", "tokens", (length,), vocabulary, 10, 10, (), "")


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def small_gpt(**changes: Any) -> nn.Module:
    torch.manual_seed(0)
    return gpt.build({"layers": 2, "heads": 2, "width": 16, "context": 12, **changes}, tokens(11, 12))


def test_gpt2_small_has_the_124_439_808_parameters_of_the_original() -> None:
    with torch.device("meta"):
        model = gpt.build({"layers": 12, "heads": 12, "width": 768, "context": 1024}, tokens(50257, 1024))
    assert size(model) == 124_439_808


def test_the_head_is_the_embedding() -> None:
    model = small_gpt()
    assert model.head.weight is model.tokens.weight  # type: ignore[union-attr]


def test_a_position_sees_nothing_of_what_comes_after() -> None:
    model = small_gpt().eval()
    ids = torch.arange(12).remainder(11).unsqueeze(0)
    changed = ids.clone()
    changed[0, 7] = 5
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(-1).all()


def test_gpt_is_the_textbook_transformer() -> None:
    """Written out in float64 with an explicit mask and softmax."""
    model = small_gpt().double()
    ids = torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(1))
    w = dict(model.named_parameters())
    x = w["tokens.weight"][ids] + w["positions.weight"]
    mask = torch.full((12, 12), -math.inf).triu(1)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (16,), w[f"{name}.weight"], w[f"{name}.bias"])

    for i in range(2):
        b = f"blocks.{i}"
        qkv = F.linear(norm(x, f"{b}.norm1"), w[f"{b}.attention.qkv.weight"], w[f"{b}.attention.qkv.bias"])
        heads = [t.unflatten(-1, (2, 8)).transpose(1, 2) for t in qkv.chunk(3, -1)]
        scores = heads[0] @ heads[1].mT / math.sqrt(8) + mask
        mixed = (scores.softmax(-1) @ heads[2]).transpose(1, 2).flatten(2)
        x = x + F.linear(mixed, w[f"{b}.attention.out.weight"], w[f"{b}.attention.out.bias"])
        up = F.gelu(F.linear(norm(x, f"{b}.norm2"), w[f"{b}.up.weight"], w[f"{b}.up.bias"]), approximate="tanh")
        x = x + F.linear(up, w[f"{b}.down.weight"], w[f"{b}.down.bias"])
    expected = norm(x, "norm") @ w["tokens.weight"].T
    # Sums of at most 64 products in another order, through 2 blocks.
    assert (model(ids) - expected).abs().max() <= 1000 * torch.finfo(torch.float64).eps


def test_initial_weights_are_gpt2s() -> None:
    torch.manual_seed(0)
    model = gpt.build({"layers": 8, "heads": 4, "width": 128, "context": 64}, tokens(256, 64))
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            residual = name.endswith(("attention.out.weight", "down.weight"))
            wanted = 0.02 / math.sqrt(16) if residual else 0.02
            # The deviation of n normal numbers varies by 1 / sqrt(2 n); five of those.
            assert abs(weight.std() / wanted - 1) < 5 / math.sqrt(2 * weight.numel()), name
            assert abs(weight.mean()) < 5 * wanted / math.sqrt(weight.numel()), name
        elif name.endswith("bias"):
            assert not weight.any(), name
        else:
            assert (weight == 1).all(), name


def test_untrained_gpt_guesses_uniformly() -> None:
    model = gpt.build({}, tokens(256, 64))
    ids = torch.randint(256, (8, 64), generator=torch.Generator().manual_seed(0))
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.roll(1).flatten())
    assert abs(loss - math.log(256)) < 0.1


def test_gpt_without_biases_has_none() -> None:
    assert not [n for n, _ in small_gpt(bias=False).named_parameters() if n.endswith("bias")]


def test_dropout_acts_in_training_only() -> None:
    ids = torch.zeros(2, 12, dtype=torch.int64)
    model = small_gpt(dropout=0.5)
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"heads": 3}, "model.width: got 16, which 3 heads do not divide"),
        ({"layers": 0}, "model.layers: got 0"),
        ({"dropout": 1.0}, "model.dropout: got 1.0"),
        ({"context": 8}, "model.context: got 8, but the data's windows have 12 tokens"),
    ],
)
def test_contradicting_options_of_gpt_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError) as refused:
        small_gpt(**options)
    assert said in str(refused.value)


def test_all_bad_options_come_at_once() -> None:
    with pytest.raises(ModelError) as refused:
        mlp.build({"width": 0, "depth": 0}, images())
    assert [p.where for p in refused.value.problems] == ["model.width", "model.depth"]


def test_mlp_has_the_parameters_of_its_shape() -> None:
    assert size(mlp.build({"width": 20, "depth": 3}, images(8))) == 65 * 20 + 2 * 21 * 20 + 21 * 10


def test_small_cnn_learns_digits_to_98_percent_in_ten_epochs() -> None:
    torch.manual_seed(0)
    config = DataConfig("digits", 64, None, None, False, 0, "error", None, None, None, None)
    data = digits.open_data(config, small_cnn.input_spec({}), DataContext(0, "cpu", channels_last=True))
    model, task = small_cnn.build({}, data.spec), classification.build({}, data.spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    steps = 10 * data.batches_per_epoch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for batch in islice(data.train(0), steps):
        optimizer.zero_grad()
        (task.loss_sum(model(batch.inputs), batch) / task.count(batch)).backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        sums = torch.stack([task.sums(model(b.inputs), b) for b in data.eval()]).sum(0)
    assert task.metrics(sums.tolist(), data.spec.n_eval)["accuracy"] >= 0.98


@pytest.mark.parametrize("arch", FAMILIES)
def test_each_family_takes_its_smallest_images_and_any_number_of_classes(arch: str) -> None:
    wanted = vision.input_spec({"arch": arch})
    side = wanted.size or wanted.min_size
    with torch.device("meta"):
        model = vision.build({"arch": arch}, images(side, 3, 7))
        output = model(torch.randn(2, 3, side, side))
    assert isinstance(output, torch.Tensor), "auxiliary outputs are off"
    assert tuple(output.shape) == (2, 7)


def test_resnet50_has_the_parameters_of_the_paper() -> None:
    """25,557,032 with 1000 classes, as torchvision documents."""
    with torch.device("meta"):
        assert size(vision.build({"arch": "resnet50"}, images(32, 3, 1000))) == 25_557_032


def test_an_unknown_architecture_is_refused_with_the_nearest() -> None:
    with pytest.raises(ModelError, match="did you mean `resnet50`"):
        vision.build({"arch": "resent50"}, images(32, 3))


def test_images_that_patches_do_not_divide_are_refused_with_the_nearest_size() -> None:
    with pytest.raises(ModelError, match=r"use data\.image_size=28"):
        vision.build({"arch": "vit_h_14"}, images(32, 3))


def test_weights_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ModelError, match=r"model\.weights"):
        vision.build({"arch": "resnet18", "weights": "NONE_SUCH"}, images(32, 3))


@pytest.mark.parametrize("arch", ["resnet18", "squeezenet1_1", "vit_b_32", "mobilenet_v3_small"])
def test_a_trained_classifier_gets_a_new_head_and_keeps_the_rest(arch: str) -> None:
    from torchvision import models

    with torch.device("meta"):
        model = models.get_model(arch, weights=None)
        kept = {n: p for n, p in model.named_parameters() if p.shape[0] != 1000}
        model = vision.with_head(model, 5)
        side = 224 if arch.startswith("vit") else 64
        assert tuple(model(torch.randn(2, 3, side, side)).shape) == (2, 5)
    after = dict(model.named_parameters())
    assert all(after[name] is weight for name, weight in kept.items())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 3", "returned a int, not a torch.nn.Module"),
        ("return nn.Linear(2, 2).half()", "`weight` in torch.float16; weights must come in float32"),
        ("raise ValueError('no idea')", "ValueError: no idea"),
    ],
)
def test_a_users_model_that_does_not_fit_is_told(tmp_path: Path, body: str, said: str) -> None:
    file = tmp_path / f"model_{tmp_path.name}.py"
    file.write_text(f"from torch import nn\ndef make():\n    {body}\n")
    with pytest.raises((ModelError, ConfigError)) as refused:
        custom.build({"path": f"{file}:make"}, images())
    assert said in str(refused.value)
    assert "model.path" in str(refused.value)


def test_a_users_model_without_a_path_is_refused() -> None:
    with pytest.raises(ModelError, match=r"model\.path: is not set"):
        custom.build({}, images())


ODD_MODELS = {
    "def M():\n    m = nn.Linear(64, 10); m.c = nn.Parameter(torch.ones(3) * 1j); return m": (
        "`c` in complex numbers", "view_as_complex",
    ),
    "def M(): return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))": ("`1.weight` without a shape", "nn.Linear for"),
    "def M(): return nn.Linear(64, 10, device='meta')": ("`weight` on the meta device", "to_empty"),
    "def M(): return torch.jit.trace(nn.Linear(64, 10), torch.ones(64))": ("TorchScript", "trainer.compile=true"),
    "def M(): return nn.Sequential(nn.Flatten(), torch.jit.script(nn.Linear(64, 10)))": (
        "`1`, a TorchScript module", "trainer.compile=true",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("source", ODD_MODELS)
def test_a_users_model_that_can_not_be_trained_is_refused_by_the_name_of_its_tensor(
    source: str, tmp_path: Path
) -> None:
    file = tmp_path / f"odd_{abs(hash(source))}.py"
    file.write_text(f"import torch\nfrom torch import nn\n{source}\n")
    with pytest.raises(ModelError) as refused:
        custom.build({"path": f"{file}:M"}, images())
    assert all(text in str(refused.value) for text in ODD_MODELS[source])


def test_a_users_model_may_have_complex_buffers(tmp_path: Path) -> None:
    source = "def M():\n    m = nn.Linear(64, 10); m.register_buffer('phase', torch.ones(3) * 1j); return m"
    (tmp_path / "phased_model.py").write_text(f"import torch\nfrom torch import nn\n{source}\n")
    assert custom.build({"path": f"{tmp_path / 'phased_model.py'}:M"}, images()).phase.is_complex()  # type: ignore[union-attr,operator]


def test_a_users_model_may_be_planned_on_the_meta_device(tmp_path: Path) -> None:
    (tmp_path / "planned_model.py").write_text("from torch import nn\ndef M():\n    return nn.Linear(64, 10)\n")
    with torch.device("meta"):
        model = custom.build({"path": f"{tmp_path / 'planned_model.py'}:M"}, images())
    assert next(model.parameters()).is_meta
