"""Six models that predictions are held against, small enough for a CPU."""

from __future__ import annotations

from _nets import SMALL_GPT

SIX: dict[str, tuple[str, ...]] = {
    "small_cnn": ("model=small_cnn", "data=digits"),
    "mlp": ("model=mlp", "data=digits", "model.width=512"),
    "resnet18": (
        *("model=resnet18", "data=synthetic_images", "data.n=32"),
        *("data.image_size=64", "data.batch_size=16"),
    ),
    "mobilenet": (
        *("model=mobilenet_v3_large", "data=synthetic_images", "data.n=32"),
        *("data.image_size=64", "data.batch_size=16"),
    ),
    "vit": (
        *("model=timm", "model.arch=vit_tiny_patch16_224", "data=synthetic_images", "data.n=16"),
        "data.batch_size=4",
    ),
    "gpt": SMALL_GPT,
}
