"""What samples are converted from: shards as others write them, lists as editors do, databases."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import DataError
from demitasse_striped_io.convert import convert_to_striped

Opened, Read = Callable[..., Any], Callable[..., dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with demitasse.compose(plugins=["striped_io", "datasets"]) as made:
        yield made


def image(ending: str, value: int = 7, height: int = 8, width: int = 6) -> bytes:
    cv2 = pytest.importorskip("cv2", reason="images are decoded by OpenCV")
    return bytes(cv2.imencode(ending, np.full((height, width, 3), value, np.uint8))[1])


def shard(path: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    "told",
    [
        b'{"annotations": 3}',
        b'{"label": "quail"}',
        b'{"label": 9, "cls": 9}',
        b'[{"box": [1, 2, 3, 4]}]',
        b"no JSON",
    ],
)
def test_a_label_of_its_own_counts_before_json_which_often_tells_other_things(
    tmp_path: Path, runtime: Any, opened: Opened, read: Read, told: bytes
) -> None:
    jpg = image(".jpg")
    before = [("0.cls", b"5"), ("0.jpg", jpg), ("0.json", told)]
    behind = [("1.json", told), ("1.JPG", jpg), ("1.CLS", b"6\n")]
    shard(tmp_path / "a.tar", *before, *behind)
    convert_to_striped(runtime, tmp_path / "a.tar", tmp_path / "set", stripes=2)
    assert read(opened(tmp_path / "set"), 0, 2)["label"].tolist() == [5, 6]


def test_where_json_alone_tells_a_label_it_is_a_whole_number(
    tmp_path: Path, runtime: Any, opened: Opened, read: Read
) -> None:
    jpg = image(".jpg")
    texts = (b'{"label": 4}', b'{"label": 3.0}', b'{"caption": "a quail"}', b"[1]")
    shard(
        tmp_path / "a.tar",
        *(m for i, text in enumerate(texts) for m in ((f"{i}.jpg", jpg), (f"{i}.json", text))),
    )
    convert_to_striped(runtime, tmp_path / "a.tar", tmp_path / "set", stripes=2)
    assert read(opened(tmp_path / "set"), 0, 4)["label"].tolist() == [4, 3, 0, 0]
    for text in (b'{"label": 3.5}', b'{"label": "quail"}', b'{"label": [1]}'):
        shard(tmp_path / "b.tar", ("0.jpg", jpg), ("0.json", text))
        with pytest.raises(DataError, match=r"b\.tar: 0\.json is no label"):
            convert_to_striped(runtime, tmp_path / "b.tar", tmp_path / "other")


def test_a_sample_with_two_images_is_told_and_not_guessed(tmp_path: Path, runtime: Any) -> None:
    members = ("a/7.cls", b"1"), ("a/7.jpg", image(".jpg")), ("a/7.png", image(".png"))
    shard(tmp_path / "a.tar", *members)
    with pytest.raises(DataError, match=r"a\.tar: the sample 'a/7' has 2 images \(7\.jpg, 7\.png\)"):
        convert_to_striped(runtime, tmp_path / "a.tar", tmp_path / "set")
    shard(tmp_path / "a.tar", *members[:2], ("a/7.mask.png", image(".png")))
    assert convert_to_striped(runtime, tmp_path / "a.tar", tmp_path / "set")["samples"] == 1
