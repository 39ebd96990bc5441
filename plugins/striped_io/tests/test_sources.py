"""Sources of conversions: shards as others write them, lists as editors do, databases."""

from __future__ import annotations

import errno
import io
import json
import os
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import demitasse
from demitasse import DataError, DataSpec
from demitasse_striped_io.convert import convert_to_striped
from demitasse_striped_io.data_command import command
from demitasse_striped_io.decoding import decode
from demitasse_striped_io.inputs import FilesInput
from demitasse_striped_io.plugin import data_source

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
        with pytest.raises(DataError, match=r"b\.tar: 0\.json is not a label"):
            convert_to_striped(runtime, tmp_path / "b.tar", tmp_path / "other")


def test_a_sample_with_two_images_is_told_and_not_guessed(tmp_path: Path, runtime: Any) -> None:
    members = ("a/7.cls", b"1"), ("a/7.jpg", image(".jpg")), ("a/7.png", image(".png"))
    shard(tmp_path / "a.tar", *members)
    with pytest.raises(DataError, match=r"a\.tar: the sample 'a/7' has 2 images \(7\.jpg, 7\.png\)"):
        convert_to_striped(runtime, tmp_path / "a.tar", tmp_path / "set")
    shard(tmp_path / "a.tar", *members[:2], ("a/7.mask.png", image(".png")))
    assert convert_to_striped(runtime, tmp_path / "a.tar", tmp_path / "set")["samples"] == 1


NAMES = ("plain.png", "two  blanks.png", "tab\there.png", "\u65e5\u672c.png", "l\udce9.png")


def test_a_list_is_read_as_the_datasets_plugin_reads_it(
    tmp_path: Path, runtime: Any, opened: Opened, read: Read
) -> None:
    """With a byte order mark, Windows' line ends, and names in any encoding."""
    for number, name in enumerate(NAMES):
        (tmp_path / name).write_bytes(image(".png", 40 * number))
    lines = "".join(f"{name}{' ' if i % 2 else chr(9)}{3 * i}\r\n" for i, name in enumerate(NAMES))
    text = b"\xef\xbb\xbf" + lines.encode("utf-8", "surrogateescape")
    (tmp_path / "list.txt").write_bytes(text)
    convert_to_striped(runtime, tmp_path / "list.txt", tmp_path / "set", stripes=2)
    got = read(opened(tmp_path / "set"), 0, 5)
    assert got["label"].tolist() == [0, 3, 6, 9, 12]
    assert got["data"][:, 0, 0, 0].tolist() == [0, 40, 80, 120, 160]
    source = runtime.open_source(DataSpec(str(tmp_path / "list.txt"), "images"))
    theirs = read(source, 0, 5)
    source.close()
    assert all((theirs[name] == values).all() for name, values in got.items())


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        (b"a 1.png\r\nsub\\b.png\r\n", [0, 0]),
        ("\ufeffa 1.png 3.0\r\nsub/b.png -1.\r\n".encode("utf-16-le"), [3, -1]),
    ],
)
def test_a_list_as_editors_leave_it_is_read_as_the_datasets_plugin_reads_it(
    content: bytes, labels: list[int], tmp_path: Path, runtime: Any, opened: Opened, read: Read
) -> None:
    (tmp_path / "sub").mkdir()
    for value, name in ((40, "a 1.png"), (90, "sub/b.png")):
        (tmp_path / name).write_bytes(image(".png", value))
    (tmp_path / "list.txt").write_bytes(content)
    convert_to_striped(runtime, tmp_path / "list.txt", tmp_path / "set")
    got = read(opened(tmp_path / "set"), 0, 2)
    source = runtime.open_source(DataSpec(str(tmp_path / "list.txt"), "images"))
    theirs = read(source, 0, 2)
    source.close()
    assert all((theirs[name] == values).all() for name, values in got.items())
    assert (got["label"].tolist(), got["data"][:, 0, 0, 0].tolist()) == (labels, [40, 90])


@pytest.mark.parametrize("label", ["+-3", "--3", "0.5", "\u0663", "", "+"])
def test_what_is_no_label_is_told_with_its_line(tmp_path: Path, runtime: Any, label: str) -> None:
    (tmp_path / "a.png").write_bytes(image(".png"))
    (tmp_path / "list.txt").write_text(f"a.png 1\na.png {label}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"list\.txt:2: 'a\.png.*' is not a path, a blank and a label"):
        convert_to_striped(runtime, tmp_path / "list.txt", tmp_path / "set")
    with pytest.raises(DataError, match=r"list\.txt:2: 'a\.png.*' is not a path, a blank and a label"):
        runtime.open_source(DataSpec(str(tmp_path / "list.txt"), "images"))


def test_a_list_of_hdf5_files_is_told_its_kind(tmp_path: Path, runtime: Any) -> None:
    (tmp_path / "list.txt").write_text("train.h5\n")
    with pytest.raises(DataError, match=r"list\.txt:1: 'train\.h5' is not .*needs --kind hdf5"):
        convert_to_striped(runtime, tmp_path / "list.txt", tmp_path / "set")


def test_pipes_and_devices_are_no_lists_and_no_images(tmp_path: Path, runtime: Any) -> None:
    """Otherwise /dev/zero would take all memory, and a pipe would wait for its writer."""
    os.mkfifo(tmp_path / "pipe")
    for name in ("/dev/zero", str(tmp_path / "pipe")):
        with pytest.raises(DataError, match="is a pipe or a device; a file is needed here"):
            convert_to_striped(runtime, name, tmp_path / "set", kind="images")
        (tmp_path / "list.txt").write_text(f"{name} 1\n")
        with pytest.raises(DataError, match=r"list\.txt:1: .* cannot be read: it is a pipe or a device"):
            convert_to_striped(runtime, tmp_path / "list.txt", tmp_path / "set")
    (tmp_path / "list.txt").write_text("pipe/ 1\n")
    with pytest.raises(DataError, match=r"^\S*list\.txt:1: \S*pipe: cannot be read: it is a pipe"):
        convert_to_striped(runtime, tmp_path / "list.txt", tmp_path / "set")


def test_a_class_without_images_is_told_for_it_would_change_the_others_numbers(
    tmp_path: Path, runtime: Any, opened: Opened, read: Read
) -> None:
    for name in (".checkpoints", "bee", "cat"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "0.png").write_bytes(image(".png"))
    convert_to_striped(runtime, tmp_path / "in", tmp_path / "set", stripes=2)
    assert read(opened(tmp_path / "set"), 0, 2)["label"].tolist() == [0, 1]
    runtime.program("convert_samples", tmp_path / "in", tmp_path / "db")
    (tmp_path / "in" / "dog").mkdir()  # an empty last class, which changes nothing
    convert_to_striped(runtime, tmp_path / "in", tmp_path / "set", force=True)
    (tmp_path / "in" / "ant").mkdir()
    for program in ("convert_to_striped", "convert_samples"):
        with pytest.raises(DataError, match="are the classes, but there are no images in ant"):
            runtime.program(program, tmp_path / "in", tmp_path / "other")


def test_large_images_and_bytes_behind_a_png_are_read(
    tmp_path: Path, runtime: Any, opened: Opened, read: Read
) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV is the reference")
    large = bytes(cv2.imencode(".jpg", np.full((8200, 8300), 9, np.uint8))[1])
    files = {"large.jpg": large, "more.png": image(".png") + bytes(500), "a.webp": image(".webp")}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "list.txt").write_text("".join(f"{name} 0\n" for name in files))
    convert_to_striped(runtime, tmp_path / "list.txt", tmp_path / "set", height=4, width=4)
    got = read(opened(tmp_path / "set"), 0, 3)["data"]
    for made, data in zip(got, files.values(), strict=True):
        pixels = cv2.resize(cv2.imdecode(np.frombuffer(data, np.uint8), 1), (4, 4))
        assert (made == pixels.transpose(2, 0, 1)).all()


CLAIMS = {
    "gif": b"GIF89a" + struct.pack("<HH", 30_000, 30_000) + bytes(30),
    "png": b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"
    + struct.pack(">II", 30_000, 30_000)
    + bytes(13)
    + b"IEND\xaeB`\x82",
    "webp": b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + b"\x2f\x75\0" * 2 + bytes(30),
}


@pytest.mark.parametrize("form", CLAIMS)
def test_what_claims_more_pixels_than_its_bytes_hold_gets_no_memory(form: str) -> None:
    with pytest.raises(DataError, match=r"claims 30,\d+ x 30,\d+ pixels in \d+ bytes"):
        decode(np.frombuffer(CLAIMS[form], np.uint8), False, None)
    for length in (7, 9, 20):
        with pytest.raises(DataError, match="image"):
            decode(np.frombuffer(CLAIMS[form][:length], np.uint8), False, None)


def test_image_files_in_a_database_are_resized_as_those_of_a_list(
    tmp_path: Path, runtime: Any, opened: Opened, read: Read
) -> None:
    """ImageNet's, as stored by convert_imageset --encoded, vary in size."""
    cv2 = pytest.importorskip("cv2", reason="OpenCV is the reference")
    random = np.random.default_rng(2)
    sizes = ((20, 30, 3), (40, 25, 3), (31, 17))
    for number, shape in enumerate(sizes):
        pixels = cv2.blur(random.integers(0, 256, shape, np.uint8), (5, 5))
        cv2.imwrite(str(tmp_path / f"{number}.jpg"), pixels)
    (tmp_path / "list.txt").write_text("".join(f"{number}.jpg {number}\n" for number in range(3)))
    about: dict[str, Any] = {"root": f"{tmp_path}/", "encoded": True}
    runtime.program("convert_samples", tmp_path / "list.txt", tmp_path / "db", **about)
    for gray in (False, True):
        given: dict[str, Any] = {"height": 12, "width": 10, "gray": gray, "stripes": 2, "force": True}
        convert_to_striped(runtime, tmp_path / "db", tmp_path / "set", **given)
        got = read(opened(tmp_path / "set"), 0, 3)
        assert got["label"].tolist() == [0, 1, 2]
        for number in range(3):
            whole = cv2.imread(str(tmp_path / f"{number}.jpg"), int(not gray))
            pixels = cv2.resize(whole, (10, 12)).reshape(12, 10, -1)
            assert (got["data"][number] == pixels.transpose(2, 0, 1)).all()
    runtime.program("convert_samples", tmp_path / "list.txt", tmp_path / "raw", height=9, width=9)
    with pytest.raises(
        DataError, match="raw: its records are pixels already; only image files can be made"
    ):
        convert_to_striped(runtime, tmp_path / "raw", tmp_path / "other", gray=True)
    with pytest.raises(DataError, match="only image files and databases can be resized or made gray"):
        convert_to_striped(runtime, "digits", tmp_path / "other", height=9, width=9)


def test_files_are_read_by_as_many_bytes_at_a_time_as_others(
    tmp_path: Path, runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not always 64 by each thread: for files of 10 MB, that would be 7 GB."""
    monkeypatch.setattr("demitasse_striped_io.writer.CHUNK", 100_000)
    counts, chunk = list[int](), FilesInput.chunk

    def counted(files: FilesInput, first: int, count: int, contents: Any) -> Any:
        counts.append(count)
        return chunk(files, first, count, contents)

    monkeypatch.setattr(FilesInput, "chunk", counted)
    for side, expected in ((100, 3), (10, 100)):
        (tmp_path / "a.bmp").write_bytes(image(".bmp", height=side, width=side))
        (tmp_path / "list.txt").write_text("a.bmp 1\n" * 100)
        counts.clear()
        convert_to_striped(runtime, tmp_path / "list.txt", tmp_path / "set", force=True, stripes=2)
        assert max(counts) == expected


def test_files_that_are_not_there_are_told_before_anything_is_written(
    tmp_path: Path, runtime: Any
) -> None:
    (tmp_path / "a.png").write_bytes(image(".png"))
    (tmp_path / "list.txt").write_text("a.png 1\nb.png 1\na.png 1\nc/d.png 2\ne.png 3\n")
    told = r"list\.txt:2: b\.png: no such file \(and 2 more that it lists\)"
    with pytest.raises(DataError, match=told):
        convert_to_striped(runtime, tmp_path / "list.txt", tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_image_files_that_are_kept_and_are_none_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = image(".jpg")
    files = {"a.jpg": whole, "b.jpg": whole[: len(whole) // 2], "c.jpg": b"<html>404</html>"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text("".join(f"{name} 1\n" for name in (*files, "a.jpg")))
    given = ["convert", "list.txt", "set", "--stripes", "2", "--json", "done.json"]
    output = CliRunner().invoke(command, given, catch_exceptions=False).output
    assert "list.txt:2: b.jpg: its image is cut off" in output
    assert "2 images were kept that cannot be read: a run stops there" in output
    assert set(json.loads(Path("done.json").read_text())["damaged"]) == {
        "list.txt:2: b.jpg",
        "list.txt:3: c.jpg",
    }


def test_pixels_are_not_resized_when_they_are_read(made: Any, opened: Opened) -> None:
    """Asking for it is an error, because they would be delivered unchanged."""
    assert opened(made.path, height=16, width=16).fields["data"].shape == (3, 16, 16)
    for asked in ({"height": 8, "width": 8}, {"height": 8}):
        with pytest.raises(DataError, match=r"samples are pixels already.*\(height 8, width [80]\)"):
            opened(made.path, **asked)


def test_a_folder_into_which_nobody_may_look_is_told(
    tmp_path: Path, runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "list.txt").write_text("closed/a.png 1\n")
    stat = Path.stat

    def refused(path: Path, **more: bool) -> os.stat_result:
        if "closed" in path.parts:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refused)
        for source in (tmp_path / "list.txt", tmp_path / "closed" / "set"):
            with pytest.raises(DataError, match=r"closed\S* cannot be read: Permission denied"):
                convert_to_striped(runtime, source, tmp_path / "set")
        with pytest.raises(DataError, match=r"closed/set cannot be read: Permission denied"):
            data_source(spec=DataSpec(str(tmp_path / "closed" / "set")))
