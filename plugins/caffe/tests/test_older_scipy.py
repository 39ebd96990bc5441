"""scipy.misc's image functions, as scripts of Caffe's time use them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")
pytest.importorskip("scipy")
cv2 = pytest.importorskip("cv2")

from demitasse_caffe.older_scipy import (  # noqa: E402
    bytescale,
    fromimage,
    imread,
    imresize,
    imsave,
    toimage,
)

SCRIPT = """
import warnings
warnings.simplefilter("error")
import scipy.misc
from scipy.misc import imread, imresize
image = imread("a.png")
scipy.misc.imsave("b.png", imresize(image, (4, 6)))
print(image.shape, imread("b.png").shape, scipy.misc.imread("a.png", flatten=True).dtype)
"""


@pytest.fixture
def image() -> np.ndarray:
    """Return a smooth image (height, width, 3)."""
    y, x = np.mgrid[0:12, 0:20]
    return np.stack([y * 20, x * 12, (x + y) * 7], axis=2).astype(np.uint8)


def test_a_script_finds_them_where_they_were(tmp_path: Path, image: np.ndarray) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), image)
    (tmp_path / "s.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "demitasse_caffe.pycaffe", "s.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "(12, 20, 3) (4, 6, 3) float32\n", done.stderr


def test_numbers_are_scaled_as_scipys_own_example_has_it() -> None:
    """The example from the documentation of bytescale in SciPy 1.1."""
    given = [
        [91.06794177, 3.39058326, 84.4221549],
        [73.88003259, 80.91433048, 4.88878881],
        [51.53875334, 34.45808177, 27.5873488],
    ]
    assert bytescale(given).tolist() == [[255, 0, 236], [205, 225, 4], [140, 90, 70]]
    low = bytescale(given, high=200, low=100)
    assert low.tolist() == [[200, 100, 192], [180, 188, 102], [155, 135, 128]]
    assert bytescale(given, cmin=0, cmax=255).tolist() == [[91, 3, 84], [74, 81, 5], [52, 34, 28]]
    assert bytescale(np.full((2, 2), 7.0)).tolist() == [[0, 0], [0, 0]]


def test_files_are_read_and_written_as_opencv_reads_them(tmp_path: Path, image: np.ndarray) -> None:
    imsave(tmp_path / "a.png", image)
    assert (cv2.imread(str(tmp_path / "a.png"))[:, :, ::-1] == image).all()
    assert (imread(tmp_path / "a.png") == image).all()
    gray = imread(tmp_path / "a.png", mode="L")
    assert np.abs(gray.astype(int) - cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)).max() <= 1
    imsave(tmp_path / "f.png", image[:, :, 0] / 7.0 + 3)  # scaled from the minimum to the maximum
    read = cv2.imread(str(tmp_path / "f.png"), cv2.IMREAD_UNCHANGED)
    assert np.abs(read - image[:, :, 0] * (255 / 220)).max() <= 0.5 + 1e-9
    with pytest.raises(FileNotFoundError):
        imread(tmp_path / "none.png")


def test_sizes_are_percents_shares_or_extents(image: np.ndarray) -> None:
    assert imresize(image, 50).shape == (6, 10, 3)
    assert imresize(image, 1.5).shape == (18, 30, 3)
    assert imresize(image[:, :, 0], (5, 7)).shape == (5, 7)
    assert (
        imresize(image, (24, 40, 3), interp="nearest").tolist()
        == np.repeat(np.repeat(image, 2, 0), 2, 1).tolist()
    )
    larger = imresize(image, (24, 40)).astype(int)
    assert np.abs(larger - cv2.resize(image, (40, 24), interpolation=cv2.INTER_LINEAR)).max() <= 1
    kept = imresize(image[:, :, 0] / 3.0, (12, 20), mode="F")
    assert kept.dtype == np.float32
    np.testing.assert_allclose(kept, image[:, :, 0] / 3.0, rtol=1e-6)


def test_channels_come_first_or_last(image: np.ndarray) -> None:
    assert (fromimage(toimage(image.transpose(2, 0, 1))) == image).all()
    with_alpha = np.concatenate([image, image[:, :, :1]], axis=2)
    assert toimage(with_alpha).mode == "RGBA"
    assert (fromimage(toimage(with_alpha)) == with_alpha).all()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda x: toimage(np.zeros((2, 5, 6))), "shape \\(2, 5, 6\\) is not an image"),
        (lambda x: imsave("never.png", np.zeros((3, 5, 6))), "6 channels"),
        (lambda x: toimage(x * 1j), "complex"),
        (lambda x: toimage(x, mode="L"), "mode 'L' of 3 channels"),
        (lambda x: imresize(x, 50, interp="linear"), "unknown interp 'linear' \\(valid: nearest"),
        (lambda x: bytescale(x / 2.0, high=300), "not in order"),
        (lambda x: bytescale(x / 2.0, cmin=3, cmax=2), "less than"),
    ],
)
def test_what_is_wrong_is_told(given: object, told: str, image: np.ndarray) -> None:
    with pytest.raises(ValueError, match=told):
        given(image)  # type: ignore[operator]
