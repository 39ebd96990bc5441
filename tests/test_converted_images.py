"""Lists and folders of images are converted to databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from sample_files import image_list, photo
from small_nets import net_of

import demitasse
from demitasse import DataError
from demitasse_datasets import convert


@pytest.fixture
def runtime() -> Iterator[Any]:
    with demitasse.compose() as made:
        yield made


def test_converting_resizes_grays_encodes_and_keeps_what_it_need_not_change(
    runtime: Any, tmp_path: Path
) -> None:
    path = image_list(tmp_path)

    def batch(**options: Any) -> np.ndarray:
        runtime.program("convert_samples", path, tmp_path / "db", force=True, **options)
        source = runtime.open_source(demitasse.DataSpec(tmp_path / "db"))
        out = {"data": np.empty((6, *source.fields["data"].shape), np.uint8)}
        stream = source.stream(0, 6, 6)
        stream.read(out)
        source.close()
        return out["data"]

    images = [photo(24 + n, 30 - n, seed=n) for n in range(6)]
    sized = [cv2.resize(image, (12, 10), interpolation=cv2.INTER_LINEAR) for image in images]
    for encoded in (False, True, "png", ".bmp"):
        found = batch(height=10, width=12, encoded=encoded)
        np.testing.assert_array_equal(found, np.stack(sized).transpose(0, 3, 1, 2))
    gray = [cv2.imread(str(tmp_path / f"{n}.png"), cv2.IMREAD_GRAYSCALE) for n in range(6)]
    wanted = [cv2.resize(image, (12, 10), interpolation=cv2.INTER_LINEAR) for image in gray]
    np.testing.assert_array_equal(batch(height=10, width=12, gray=True)[:, 0], wanted)
    with pytest.raises(DataError, match="already exists"):
        runtime.program("convert_samples", path, tmp_path / "db")
    path.write_text("0.png 1\nnone.png 2\n")
    with pytest.raises(DataError, match=r"list\.txt:2: none\.png: cannot be read"):
        runtime.program("convert_samples", path, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    assert not list(tmp_path.glob(".other*"))


def test_a_database_grows_as_it_must(
    runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "FIRST_MAP", 1 << 16)
    values = np.random.default_rng(0).integers(0, 256, (600, 1, 40, 40), np.uint8)
    source = tmp_path / "train-images-idx3-ubyte"
    source.write_bytes(b"\0\0\x08\x03" + np.array([600, 40, 40], ">u4").tobytes() + values.tobytes())
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(
        b"\0\0\x08\x01" + np.array([600], ">u4").tobytes() + bytes(n % 10 for n in range(600))
    )
    assert runtime.program("convert_samples", source, tmp_path / "db") == 600
    opened = runtime.open_source(demitasse.DataSpec(tmp_path / "db"))
    found = {"data": np.empty((600, 1, 40, 40), np.uint8), "label": np.empty(600, np.int32)}
    stream = opened.stream(0, 600, 600)
    stream.read(found)
    stream.close()
    np.testing.assert_array_equal(found["data"], values)
    np.testing.assert_array_equal(found["label"], np.arange(600) % 10)


@pytest.mark.parametrize("form", ["array", "list"])
def test_more_records_than_their_keys_have_digits_for_stay_in_order(
    runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Eight digits are for a hundred million; here one is for ten."""
    monkeypatch.setattr(convert, "DIGITS", 1)
    values = np.arange(12, dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, 4, 4), np.uint8)
    if form == "array":
        source = tmp_path / "train-images-idx3-ubyte"
        source.write_bytes(b"\0\0\x08\x03" + np.array([12, 4, 4], ">u4").tobytes() + values.tobytes())
    else:
        source = tmp_path / "list.txt"
        source.write_text("".join(f"{n}.png {n}\n" for n in range(12)))
        for n in range(12):
            cv2.imwrite(str(tmp_path / f"{n}.png"), values[n, 0])
    assert runtime.program("convert_samples", source, tmp_path / "db") == 12
    opened = runtime.open_source(demitasse.DataSpec(tmp_path / "db"))
    found = {key: np.empty((12, *f.shape), f.dtype) for key, f in opened.fields.items()}
    stream = opened.stream(0, 12, 12)
    stream.read(found)
    stream.close()
    np.testing.assert_array_equal(found["data"][:, 0, 0, 0], np.arange(12))


def test_a_folder_of_folders_becomes_classes(runtime: Any, tmp_path: Path) -> None:
    for number, name in enumerate(("cat", "dog", "empty")):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for n in range(2 - number):
            cv2.imwrite(str(tmp_path / "pets" / name / f"{n}.png"), photo(8, 8, seed=n))
    assert runtime.program("convert_samples", tmp_path / "pets", tmp_path / "db") == 3
    found = net_of(
        runtime,
        tmp_path,
        'layer { name: "d" type: "Data" top: "x" top: "y" '
        'data_param { source: "db" batch_size: 3 backend: LMDB } }',
    ).forward()
    assert found["y"].tolist() == [0, 0, 1]
