"""Crops of image files against torchvision's, and JPEGs that are decoded smaller."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, features
from scipy.stats import ks_2samp
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from mpt.data._boxes import MARGIN, TRIES, Box, random_box, shrink_of, shrunk, uniform
from mpt.data._crops import FolderReader, centre_crop, scaled
from mpt.data._decode import decode
from mpt.data._order import AUGMENT, generator
from mpt.data._tree import scan

WHITE = (255, 255, 255)
SIZES = [(300, 400), (400, 300), (256, 256), (50, 640), (33, 20)]


def photo(height: int, width: int, seed: int = 0) -> Image.Image:
    """Noise with the 1/f spectrum of photographs."""
    rng = np.random.default_rng(seed)
    f = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    amplitude = 1 / np.maximum(f, 1 / max(height, width))
    planes = []
    for _ in range(3):
        plane = np.fft.irfft2(amplitude * np.exp(2j * np.pi * rng.random(f.shape)), s=(height, width))
        planes.append(plane / plane.std())
    return Image.fromarray(np.clip(118 + 55 * np.stack(planes, -1), 0, 255).astype(np.uint8))


def reader(folder: Path, image: Image.Image, name: str = "x.jpg", *, side: int = 32, **asked: bool) -> FolderReader:
    """Over one file; `augment` and `draft` unless told otherwise."""
    (folder / "a").mkdir(exist_ok=True)
    image.save(folder / "a" / name, **({"quality": 90, "exif": image.getexif()} if name.endswith("jpg") else {}))
    how = {"augment": True, "draft": True, **asked}
    return FolderReader(scan(folder, ("a",)), (3, side, side), WHITE, augment=how["augment"], draft=how["draft"])


def crops(of: FolderReader, n: int) -> torch.Tensor:
    return torch.stack([of.read(0, generator(AUGMENT, 0, epoch, 0))[0] for epoch in range(n)])


@pytest.mark.parametrize("size", SIZES)
def test_the_centre_is_torchvisions_resize_and_crop_bit_for_bit(size: tuple[int, int]) -> None:
    pixels = torch.from_numpy(np.array(photo(*size)))
    theirs = v2.Compose([v2.Resize(37, antialias=True), v2.CenterCrop(32)])(pixels.permute(2, 0, 1))
    assert torch.equal(centre_crop(pixels, (32, 32)), theirs.permute(1, 2, 0))


@pytest.mark.parametrize("size", SIZES)
def test_a_random_crop_is_torchvisions_crop_of_the_same_box_bit_for_bit(tmp_path: Path, size: tuple[int, int]) -> None:
    folder = reader(tmp_path, photo(*size), draft=False)
    whole = decode(folder.name(0), 3, WHITE).permute(2, 0, 1)
    for epoch, ours in enumerate(crops(folder, 12)):
        draws = uniform(generator(AUGMENT, 0, epoch, 0), 2 * TRIES + 3)
        theirs = F.resized_crop(whole, *random_box(*size, draws[:-1]), size=[32, 32], antialias=True)
        theirs = F.horizontal_flip(theirs) if draws[-1] < 0.5 else theirs
        assert torch.equal(ours, theirs.permute(1, 2, 0))


@pytest.mark.parametrize("size", SIZES)
def test_boxes_are_distributed_as_torchvisions(size: tuple[int, int]) -> None:
    """A Kolmogorov-Smirnov test of each coordinate; the seeds are fixed, so it passes always or never."""
    image = torch.zeros(3, *size)
    transform = v2.RandomResizedCrop(32)
    torch.manual_seed(0)
    theirs = [transform.make_params([image]) for _ in range(1500)]
    ours = [random_box(*size, uniform(generator(AUGMENT, 1, e, 0), 2 * TRIES + 2)) for e in range(1500)]
    for key in ("top", "left", "height", "width"):
        assert ks_2samp([getattr(b, key) for b in ours], [p[key] for p in theirs]).pvalue > 1e-3, key


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 2**32))
def test_boxes_lie_inside_and_keep_their_limits(height: int, width: int, seed: int) -> None:
    box = random_box(height, width, uniform(np.random.Philox(seed), 2 * TRIES + 2))
    assert box.height >= 1
    assert box.width >= 1
    assert 0 <= box.top <= height - box.height
    assert 0 <= box.left <= width - box.width


@given(st.integers(1, 4000), st.integers(1, 4000), st.sampled_from([32, 224]))
def test_a_draft_leaves_twice_the_crop_and_the_next_smaller_one_would_not(height: int, width: int, side: int) -> None:
    box = Box(5, 9, height, width)
    by = shrink_of(box, (side, side))
    assert by == 1 or min(shrunk(box, by)[2:]) >= MARGIN * side
    assert by == 8 or min(height, width) < MARGIN * side * 2 * by


def test_drafted_crops_differ_by_a_level_on_average(tmp_path: Path) -> None:
    """docs/data.md: measured 1.0 on average and 7 at most; a shift by a pixel of the draft would be 4."""
    drafted = crops(reader(tmp_path, photo(1024, 1365), side=64), 40).float()
    aligned = reader(tmp_path, photo(1024, 1365), side=64, draft=False)
    whole, seen = decode(aligned.name(0), 3, WHITE), 0
    for epoch, ours in enumerate(drafted):
        draws = uniform(generator(AUGMENT, 0, epoch, 0), 2 * TRIES + 3)
        box = random_box(1024, 1365, draws[:-1])
        by = shrink_of(box, (64, 64))
        top, left, height, width = (n // by * by for n in box)
        plain = scaled(whole[top : top + height, left : left + width].contiguous(), (64, 64))
        plain = plain.flip(1) if draws[-1] < 0.5 else plain
        off = (ours - plain.float()).abs()
        seen += by > 1
        assert off.max() == 0 if by == 1 else off.mean() <= 2 and off.max() <= 16
    assert seen > 20


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_drafted_image_stands_upright_too(tmp_path: Path, orientation: int) -> None:
    """A stored image is turned; the crops are those of the file that is stored upright."""
    image = photo(600, 800)
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }  # fmt: skip
    turned = image.transpose(undo[orientation]) if orientation > 1 else image.copy()
    exif = turned.getexif()
    exif[0x0112] = orientation
    upright = crops(reader(tmp_path, image), 6).float()
    found = crops(reader(tmp_path, turned), 6).float()
    # JPEG blocks lie elsewhere in a turned image: a level or two; another part of the image would be tens.
    assert (upright - found).abs().mean() < 3


@pytest.mark.parametrize("name", ["x.png", "x.bmp", "x.webp", "x.tif"])
def test_other_files_are_decoded_whole(tmp_path: Path, name: str) -> None:
    if name == "x.webp" and not features.check("webp"):
        pytest.skip("this Pillow reads no WebP")
    drafted, whole = (reader(tmp_path, photo(400, 500), name, side=16, draft=draft) for draft in (True, False))
    assert torch.equal(crops(drafted, 8), crops(whole, 8))


def test_evaluation_decodes_whole_images(tmp_path: Path) -> None:
    drafting = reader(tmp_path, photo(800, 900), side=32, augment=False)
    pixels = decode(drafting.name(0), 3, WHITE)
    assert torch.equal(crops(drafting, 1)[0], centre_crop(pixels, (32, 32)))
