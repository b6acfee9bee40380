"""JPEG files as photographs are: noise with their 1/f spectrum, which compresses as they do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

QUALITY = 90
CLASSES = ("a", "b")


def photo(height: int, width: int, seed: int) -> Image.Image:
    """Planes that share most of their detail. At 256 pixels and quality 90 a file has about 45 kB."""
    rng = np.random.default_rng(seed)
    f = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    amplitude = 1 / np.maximum(f, 1 / max(height, width))

    def plane() -> np.ndarray:
        found = np.fft.irfft2(amplitude * np.exp(2j * np.pi * rng.random(f.shape)), s=(height, width))
        return found / found.std()

    grey = plane()
    colour = np.stack([grey + 0.35 * plane() for _ in range(3)], -1)
    return Image.fromarray(np.clip(118 + 55 * colour, 0, 255).astype(np.uint8))


def write_tree(root: Path, shapes: list[tuple[int, int]], each: int) -> Path:
    """train/ and val/ with two classes; `each` copies of one photograph of each shape in each class."""
    for part in ("train", "val"):
        for name in CLASSES:
            (root / part / name).mkdir(parents=True)
    for i, shape in enumerate(shapes):
        image = photo(*shape, i)
        for part, copies in (("train", each), ("val", 1)):
            for name in CLASSES:
                for n in range(copies):
                    image.save(root / part / name / f"{i}-{n}.jpg", quality=QUALITY)
    return root
