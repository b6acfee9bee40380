"""Image files of every kind become 8-bit pixels, and broken ones are told."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mpt.data import _jpeg
from mpt.data._decode import UNREADABLE, decode

WHITE = (255, 255, 255)
GREY = np.linspace(0, 255, 30).astype(np.uint8).reshape(5, 6)


def saved(folder: Path, image: Image.Image, name: str = "x.png", **options: object) -> str:
    image.save(folder / name, **options)
    return str(folder / name)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "LA", "PA", "RGBA", "CMYK", "YCbCr", "I;16", "I"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_becomes_the_wanted_channels(tmp_path: Path, mode: str, channels: int) -> None:
    grey = Image.fromarray(GREY)
    if mode in ("I;16", "I"):
        image = Image.fromarray(GREY.astype(np.uint16) * 257).convert(mode)
    else:
        image = grey.convert("RGBA").convert(mode) if mode in ("LA", "RGBA", "PA") else grey.convert(mode)
    suffix = {"CMYK": "x.tif", "YCbCr": "x.tif", "I": "x.tif", "PA": "x.png"}.get(mode, "x.png")
    if mode == "PA":
        image = grey.convert("P")
        image.info["transparency"] = 255
    pixels = decode(saved(tmp_path, image, suffix), channels, WHITE)
    assert tuple(pixels.shape) == (5, 6, channels)
    expected = np.array(grey.convert("1").convert("L")) if mode == "1" else GREY
    off = np.abs(pixels.numpy().astype(int) - expected[..., None]).max()
    # YCbCr and luma weights each round once to 8 bits.
    assert off <= (2 if mode in ("YCbCr", "CMYK") else 1)


def test_transparent_pixels_show_the_background_not_their_hidden_colour(tmp_path: Path) -> None:
    hidden_red = np.zeros((4, 4, 4), np.uint8)
    hidden_red[..., 0] = 255
    path = saved(tmp_path, Image.fromarray(hidden_red))
    assert (decode(path, 3, (10, 20, 30)).numpy() == (10, 20, 30)).all()


def test_half_transparent_pixels_are_mixed(tmp_path: Path) -> None:
    pixels = np.full((2, 2, 4), (200, 100, 0, 128), np.uint8)
    mixed = decode(saved(tmp_path, Image.fromarray(pixels)), 3, (0, 0, 200)).numpy().astype(float)
    expected = np.array([200, 100, 0]) * 128 / 255 + np.array([0, 0, 200]) * 127 / 255
    assert np.abs(mixed - expected).max() <= 1


def test_a_palette_with_a_transparent_entry_is_composited_without_a_warning(tmp_path: Path) -> None:
    image = Image.fromarray(np.zeros((3, 3), np.uint8)).convert("P")
    path = saved(tmp_path, image, transparency=bytes([0] * 256))
    assert (decode(path, 3, WHITE).numpy() == 255).all()


def test_sixteen_bits_are_scaled_not_cut(tmp_path: Path) -> None:
    values = np.array([[0, 257, 32768, 65535]], np.uint16)
    pixels = decode(saved(tmp_path, Image.fromarray(values)), 1, WHITE)
    assert pixels.flatten().tolist() == [0, 1, 128, 255]


def test_images_stand_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    pixels = np.zeros((2, 4, 3), np.uint8)
    pixels[0, 0] = 255
    upright = decode(saved(tmp_path, Image.fromarray(pixels), "x.png", exif=exif), 3, WHITE)
    assert tuple(upright.shape) == (4, 2, 3)
    assert upright[0, 1].tolist() == [255, 255, 255]


@pytest.mark.parametrize("fault", ["cut", "empty", "html", "float", "bomb"])
def test_what_can_not_be_read_raises_one_of_the_known_errors(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file)
    if fault == "cut":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif fault == "empty":
        file.write_bytes(b"")
    elif fault == "html":
        file.write_text("<html>404</html>")
    elif fault == "float":
        file = file.with_suffix(".tif")
        Image.fromarray(noise[..., 0].astype(np.float32)).save(file)
    else:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UNREADABLE):
        decode(str(file), 3, WHITE)


@pytest.mark.parametrize("size", [(37, 53), (8, 8), (129, 65)])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_the_fast_decoder_changes_no_pixel(
    tmp_path: Path,
    size: tuple[int, int],
    subsampling: int,
    progressive: bool,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("simplejpeg", reason="the extra `jpeg` is not installed")
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).convert(mode)
    how = {} if mode == "L" else {"subsampling": subsampling}
    for quality in (30, 75, 95):
        path = saved(tmp_path, image, "x.jpg", quality=quality, progressive=progressive, **how)
        for channels in (1, 3):
            fast = decode(path, channels, WHITE)
            with monkeypatch.context() as patch:
                patch.setattr(_jpeg, "_simplejpeg", lambda: None)
                assert torch.equal(decode(path, channels, WHITE), fast)


def test_the_fast_decoder_is_used_for_plain_jpegs_and_leaves_broken_ones_to_pillow(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg", reason="the extra `jpeg` is not installed")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = Path(saved(tmp_path, Image.fromarray(noise), "x.jpg")).read_bytes()
    with Image.open(BytesIO(data)) as file:
        assert _jpeg.fast_jpeg(file, data, "RGB") is not None
        assert _jpeg.fast_jpeg(file, data, "L") is None
        assert _jpeg.fast_jpeg(file, data[: len(data) // 2], "RGB") is None
