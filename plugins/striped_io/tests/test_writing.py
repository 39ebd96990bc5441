"""Sets are written whole or not at all, from every format, and resumed after a kill."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import DataError
from demitasse_striped_io import journal as journals
from demitasse_striped_io import writer as writing
from demitasse_striped_io.checking import check_set
from demitasse_striped_io.convert import convert_to_striped
from demitasse_striped_io.index import INDEX, JOURNAL, read_index, write_index
from demitasse_striped_io.layout import Layout

PLUGINS = ["striped_io", "datasets"]


@pytest.fixture
def runtime() -> Iterator[Any]:
    with demitasse.compose(plugins=PLUGINS) as composed:
        yield composed


@pytest.fixture
def same(runtime: Any) -> Callable[[str, Path], None]:
    """Check that a set contains what a source does, in its order."""

    def compare(source: str, target: Path) -> None:
        read = []
        for name in (source, str(target)):
            opened = runtime.open_source(demitasse.DataSpec(name))
            out = {key: np.zeros((opened.size, *f.shape), f.dtype) for key, f in opened.fields.items()}
            stream = opened.stream(0, opened.size, opened.size)
            stream.read(out)
            stream.close()
            opened.close()
            read.append(out)
        assert read[0].keys() == read[1].keys()
        for name, column in read[0].items():
            assert column.dtype == read[1][name].dtype and (column == read[1][name]).all()

    return compare


def idx(folder: Path, count: int = 300) -> Path:
    random = np.random.default_rng(0)
    images, labels = folder / "train-images-idx3-ubyte", folder / "train-labels-idx1-ubyte"
    head = np.array([count, 28, 28], ">i4").tobytes()
    images.write_bytes(b"\0\0\x08\x03" + head + random.integers(0, 256, count * 784, np.uint8).tobytes())
    labels.write_bytes(b"\0\0\x08\x01" + head[:4] + random.integers(0, 10, count, np.uint8).tobytes())
    return images


def test_blocks_go_round_the_stripes_and_records_lie_in_one_block(made: Any) -> None:
    whole = [made.stripe(i).read_bytes() for i in range(4)]
    for number in (0, 5, 6, 23, 24, 100):
        block, within = divmod(number, 6)
        at = block // 4 * made.index.block + within * 768
        assert whole[block % 4][at : at + 768] == made.columns["data"][number].tobytes()
    layout = Layout(made.index, {})
    assert layout.where(24) == "stripe 0, block 4, sample 24"
    assert tuple(map(len, whole)) == made.index.lengths == layout.stripe_lengths()


def test_idx_files(tmp_path: Path, runtime: Any, same: Callable[..., None]) -> None:
    source, target = idx(tmp_path), tmp_path / "set"
    said: list[tuple[int, int]] = []
    done = runtime.program(
        "convert_to_striped", source, target, stripes=4, block=8000, progress=lambda *s: said.append(s)
    )
    assert done["samples"] == 300 and done["verified"] and done["bytes"] > 300 * 784
    assert said[-1] == (300, 300)
    same(str(source), target)


def test_cifars_files(tmp_path: Path, runtime: Any, same: Callable[..., None]) -> None:
    rows = np.random.default_rng(1).integers(0, 10, (50, 3073), np.uint8)
    (tmp_path / "data_batch_1.bin").write_bytes(rows.tobytes())
    source = str(tmp_path / "data_batch_1.bin")
    convert_to_striped(runtime, source, tmp_path / "set", stripes=2, block=10_000)
    same(source, tmp_path / "set")


def test_hdf5_files(tmp_path: Path, runtime: Any, same: Callable[..., None]) -> None:
    h5py = pytest.importorskip("h5py", reason="writes the HDF5 file")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"] = np.random.default_rng(2).random((30, 8, 12)).astype(np.float32)
        file["label"] = np.arange(30, dtype=np.float32)
    convert_to_striped(runtime, tmp_path / "a.h5", tmp_path / "set", stripes=3, block=1000)
    same(str(tmp_path / "a.h5"), tmp_path / "set")


def test_an_lmdb_database(tmp_path: Path, runtime: Any, same: Callable[..., None]) -> None:
    runtime.program("convert_samples", idx(tmp_path), tmp_path / "db")
    convert_to_striped(runtime, tmp_path / "db", tmp_path / "set", stripes=3, block=5000)
    same(str(tmp_path / "db"), tmp_path / "set")


def image(number: int, ending: str, height: int = 20, width: int = 24) -> bytes:
    cv2 = pytest.importorskip("cv2", reason="OpenCV writes the images")
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
    return bytes(cv2.imencode(ending, cv2.blur(pixels, (5, 5)))[1])


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    lines = []
    for number in range(12):
        name = f"{number} a{'.png' if number % 2 else '.jpg'}"
        (tmp_path / name).write_bytes(image(number, name[-4:], 20 + number, 30 - number))
        lines.append(f"{name} {number % 5}\n")
    (tmp_path / "list.txt").write_text("".join(lines))
    return tmp_path / "list.txt"


def test_a_list_of_images_is_kept_as_files_or_decoded(
    tmp_path: Path, listed: Path, runtime: Any, opened: Callable[..., Any], read: Callable[..., Any]
) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV is the reference")
    size = {"height": 16, "width": 18}
    convert_to_striped(runtime, listed, tmp_path / "kept", stripes=3, block=5000, **size)
    convert_to_striped(runtime, listed, tmp_path / "raw", stripes=3, block=5000, raw=True, **size)
    kept, raw = read(opened(tmp_path / "kept"), 0, 12), read(opened(tmp_path / "raw"), 0, 12)
    assert read_index(tmp_path / "kept").form == "encoded"
    for number, line in enumerate(listed.read_text().splitlines()):
        name, _, label = line.rpartition(" ")
        pixels = cv2.resize(cv2.imread(str(tmp_path / name)), (18, 16))
        for got in (kept, raw):
            assert (got["data"][number] == pixels.transpose(2, 0, 1)).all()
            assert got["label"][number] == int(label)


def test_a_folder_of_images_has_its_sub_folders_as_classes(
    tmp_path: Path, runtime: Any, opened: Callable[..., Any], read: Callable[..., Any]
) -> None:
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / "in" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "in" / name / f"{number}.png").write_bytes(image(10 * label + number, ".png"))
    convert_to_striped(runtime, tmp_path / "in", tmp_path / "set", stripes=2, block=1 << 16)
    got = read(opened(tmp_path / "set"), 0, 6)
    assert got["label"].tolist() == [0, 0, 0, 1, 1, 1] and got["data"].shape == (6, 3, 20, 24)


def shard(path: Path, numbers: range, labels: str = "cls") -> None:
    packed = {".gz": "w:gz", ".tgz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}
    with tarfile.open(path, packed.get(path.suffix, "w")) as archive:  # type: ignore[call-overload]
        for number in numbers:
            text = f'{{"label": {number % 7}}}' if labels == "json" else f"{number % 7}\n"
            for name, data in ((".jpg", image(number, ".jpg")), (f".{labels}", text.encode())):
                member = tarfile.TarInfo(f"n{number:03d}/{number}{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def test_webdatasets_shards(
    tmp_path: Path, runtime: Any, opened: Callable[..., Any], read: Callable[..., Any]
) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV is the reference")
    shard(tmp_path / "in-000.tar", range(5))
    shard(tmp_path / "in-001.tar", range(5, 9), "json")
    source = str(tmp_path / "in-{000..001}.tar")
    convert_to_striped(runtime, source, tmp_path / "set", stripes=2, block=4000)
    got = read(opened(tmp_path / "set"), 0, 9)
    assert got["label"].tolist() == [n % 7 for n in range(9)]
    for number in range(9):
        pixels = cv2.imdecode(np.frombuffer(image(number, ".jpg"), np.uint8), 1)
        assert (got["data"][number] == pixels.transpose(2, 0, 1)).all()


@pytest.mark.parametrize("ending", ["tar.gz", "tgz", "tar.bz2", "tar.xz"])
def test_compressed_shards_are_unpacked(
    tmp_path: Path, runtime: Any, opened: Callable[..., Any], read: Callable[..., Any], ending: str
) -> None:
    shard(tmp_path / "plain-0.tar", range(7))
    shard(tmp_path / "plain-1.tar", range(7, 12), "json")
    shard(tmp_path / f"in-0.{ending}", range(7))
    shard(tmp_path / f"in-1.{ending}", range(7, 12), "json")
    for name, last in (("plain", "tar"), ("in", ending)):
        source = str(tmp_path / f"{name}-*.{last}")
        convert_to_striped(runtime, source, tmp_path / name, stripes=2, block=4000, threads=2)
    right, got = (read(opened(tmp_path / name), 0, 12) for name in ("plain", "in"))
    assert (got["data"] == right["data"]).all() and (got["label"] == right["label"]).all()


def test_a_compressed_shard_that_is_cut_off_or_damaged_is_named(tmp_path: Path, runtime: Any) -> None:
    for ending in ("tar.gz", "tar.bz2", "tar.xz"):
        path = tmp_path / f"in.{ending}"
        shard(path, range(6))
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DataError, match=rf"in\.{ending}.*(cannot be read|not a readable tar file)"):
            convert_to_striped(runtime, path, tmp_path / "set")
        path.write_bytes(whole[:40] + bytes(64) + whole[104:])
        with pytest.raises(DataError, match=rf"in\.{ending}.*(cannot be read|not a readable tar file)"):
            convert_to_striped(runtime, path, tmp_path / "set")


def test_a_shard_that_is_none_or_has_no_image_is_named(tmp_path: Path, runtime: Any) -> None:
    (tmp_path / "a.tar").write_bytes(b"x" * 2000)
    with pytest.raises(DataError, match=r"a\.tar: is not a readable tar file"):
        convert_to_striped(runtime, tmp_path / "a.tar", tmp_path / "set")
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("lonely.cls"), io.BytesIO())
    with pytest.raises(DataError, match=r"b\.tar: .*'': is not a label|b\.tar: .*not a label"):
        convert_to_striped(runtime, tmp_path / "b.tar", tmp_path / "set")
    for text in (b'{"label": 1e999}', b"[" * 60_000):
        with tarfile.open(tmp_path / "c.tar", "w") as archive:
            about = tarfile.TarInfo("lonely.json")
            about.size = len(text)
            archive.addfile(about, io.BytesIO(text))
        with pytest.raises(DataError, match=r"c\.tar: lonely\.json is not a label"):
            convert_to_striped(runtime, tmp_path / "c.tar", tmp_path / "set")


@pytest.mark.parametrize("size", [1 << 60, (1 << 63) + 4096, 1 << 70])
@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_a_shard_whose_header_promises_more_than_there_can_be_is_named(
    tmp_path: Path, runtime: Any, kind: bytes, size: int
) -> None:
    about = tarfile.TarInfo("long")
    about.type, about.size = kind, size
    (tmp_path / "a.tar").write_bytes(about.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(DataError, match=r"a\.tar: is (damaged|no tar file)"):
        convert_to_striped(runtime, tmp_path / "a.tar", tmp_path / "set")


def test_labels_beyond_32_bits_are_told_with_their_sample(
    tmp_path: Path, runtime: Any, listed: Path
) -> None:
    for label in ("5000000000", '{"label": -3000000000}', "9" * 3000):
        ending = "json" if label.startswith("{") else "cls"
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            for name, content in ((f"7.{ending}", label.encode()), ("7.jpg", image(1, ".jpg"))):
                about = tarfile.TarInfo(name)
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
        told = r"a\.tar: 7\.jpg: its label does not fit 32 bits: [-0-9]{10,100}(\.\.\.|$)"
        with pytest.raises(DataError, match=told):
            convert_to_striped(runtime, tmp_path / "a.tar", tmp_path / "set")
    name = listed.read_text().split("\n")[0].rpartition(" ")[0]
    listed.write_text(f"{name} 5000000000\n")
    with pytest.raises(DataError, match=r":1: .* its label does not fit 32 bits: 5000000000"):
        convert_to_striped(runtime, listed, tmp_path / "set")


@pytest.mark.parametrize(
    "entry",
    [
        {"count": -1, "end": 0, "bytes": 0, "crc32": 0},
        {"count": 1e999, "end": 0, "bytes": 0, "crc32": 0},
    ],
    ids=["less than nothing", "without end"],
)
def test_an_entry_of_a_journal_that_cannot_be_ends_it(tmp_path: Path, entry: dict[str, float]) -> None:
    path, columns = tmp_path / JOURNAL, [("at", np.dtype("<i8"), (5,))]
    journals.begin(path, {"a": 1}, columns)
    before = path.read_bytes()
    path.write_bytes(before + json.dumps(entry).encode() + b"\n")
    found = journals.resume(path, columns)
    assert (found.done, found.end) == (0, 0)
    assert path.read_bytes() == before


def test_a_journal_that_is_nested_too_deep_is_told(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text("[" * 100_000 + "\n")
    with pytest.raises(
        DataError, match=r"the journal of a set .* cannot be read \(.*\); force starts over"
    ):
        journals.header_of(tmp_path / JOURNAL)


def test_an_image_that_cannot_be_decoded_is_a_fault_of_its_sample(
    tmp_path: Path, listed: Path, runtime: Any, opened: Callable[..., Any], read: Callable[..., Any]
) -> None:
    bad = tmp_path / "4 a.jpg"
    bad.write_bytes(bad.read_bytes()[:300])
    convert_to_striped(runtime, listed, tmp_path / "set", stripes=3, block=5000, height=9, width=9)
    assert len(check_set(tmp_path / "set").faults) == 0  # unchanged
    assert [f.sample for f in check_set(tmp_path / "set", images=True).faults] == [4]
    with pytest.raises(DataError, match="sample 4: its image is cut off"):
        read(opened(tmp_path / "set"), 0, 12)
    source = opened(tmp_path / "set", on_error="skip")
    read(source, 0, 12)
    assert list(source.faults.found) == [4]


def test_stripes_go_to_the_folders_that_are_named(
    tmp_path: Path, columns: Any, write: Any, opened: Any, read: Any
) -> None:
    disks = (tmp_path / "disk0", tmp_path / "disk1")
    given = columns(30)
    write(tmp_path / "set", given, stripes=4, block=2000, folders=disks)
    assert [len(list(disk.iterdir())) for disk in disks] == [2, 2]
    assert (read(opened(tmp_path / "set"), 0, 30)["data"] == given["data"]).all()


def test_a_set_that_was_moved_finds_its_stripes(
    tmp_path: Path, columns: Any, write: Any, opened: Any, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both those in separate folders, and those that are now in its own, as files or links."""
    given, making = columns(30), {"stripes": 4, "block": 2000}
    monkeypatch.chdir(tmp_path)
    inside = (Path("set/a"), Path("set/b"))
    write(Path("set"), given, folders=inside, **making)
    Path("set").rename("moved")
    assert (read(opened(tmp_path / "moved"), 0, 30)["data"] == given["data"]).all()
    index = write(Path("set"), given, folders=(Path("disk"),), **making)
    Path("disk").rename("other")
    with pytest.raises(DataError, match=r"stripe 0 of 4 is missing .*moved, put a link to it into set"):
        opened(Path("set"))
    for stripe in index.stripes[1:]:
        Path("set", stripe.name).symlink_to(tmp_path / "other" / stripe.name)
    Path("other", index.stripes[0].name).rename(Path("set", index.stripes[0].name))
    assert (read(opened(tmp_path / "set"), 0, 30)["data"] == given["data"]).all()


def test_a_set_is_replaced_only_by_force_and_only_when_the_new_one_is_whole(
    tmp_path: Path, columns: Any, write: Any, opened: Any, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = columns(20), columns(33)
    write(tmp_path / "set", before, stripes=2, block=2000)
    with pytest.raises(DataError, match=r"already exists; force \(--force\) overwrites it"):
        write(tmp_path / "set", after, stripes=2, block=2000)
    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_index", broken)
        with pytest.raises(DataError, match="No space left"):
            write(tmp_path / "set", after, force=True, stripes=2, block=2000)
    assert (read(opened(tmp_path / "set"), 0, 20)["data"] == before["data"]).all()
    write(tmp_path / "set", after, force=True, stripes=2, block=2000)
    assert (read(opened(tmp_path / "set"), 0, 33)["data"] == after["data"]).all()
    assert len(list((tmp_path / "set").iterdir())) == 4  # two stripes, table, index


def broken(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_named_and_the_conversion_goes_on_when_there_is_room(
    tmp_path: Path, columns: Any, write: Any, opened: Any, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, wrote = columns(60), [0]
    pwrite = os.pwrite

    def filling(file: int, data: Any, offset: int) -> int:
        if wrote[0] > 20_000:
            broken()
        wrote[0] += len(data)
        return pwrite(file, data, offset)

    making = {"stripes": 3, "block": 3000, "threads": 2}
    with monkeypatch.context() as patch:
        patch.setattr(writing, "CHUNK", 4 * 768)
        patch.setattr(writing, "KEPT_SAFE", 1)
        patch.setattr(writing.os, "pwrite", filling)
        with pytest.raises(
            DataError,
            match=r"stripe \d, block \d+, sample \d+: .*No space left on device; free some space; ",
        ):
            write(tmp_path / "set", given, **making)
    with pytest.raises(DataError, match="its writing was interrupted"):
        read_index(tmp_path / "set")
    write(tmp_path / "set", given, **making)
    assert (read(opened(tmp_path / "set"), 0, 60)["data"] == given["data"]).all()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_that_is_really_full(tmp_path: Path, columns: Any, write: Any) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], check=False)
    if mounted.returncode:
        pytest.skip("this system lets nobody mount a tmpfs")
    try:
        with pytest.raises(DataError, match=r"stripe \d, .*No space left on device; free some space"):
            write(tmp_path / "set", columns(600), stripes=2, block=50_000, folders=(disk,))
    finally:
        subprocess.run(["umount", disk], check=True)


KILLED = """
    import os, signal, sys
    from pathlib import Path
    import demitasse
    from demitasse_striped_io import writer
    from demitasse_striped_io.convert import convert_to_striped
    writer.CHUNK, writer.KEPT_SAFE = 10 * 784, 30 * 784
    def progress(done, size):
        if done >= 170:
            os.kill(os.getpid(), signal.SIGKILL)
    with demitasse.compose(plugins=["striped_io", "datasets"]) as runtime:
        convert_to_striped(
            runtime, sys.argv[1], sys.argv[2], stripes=4, block=9000, verify=False, progress=progress
        )
"""


def test_a_killed_writer_is_followed_by_one_that_goes_on(
    tmp_path: Path, runtime: Any, same: Callable[..., None]
) -> None:
    source, target = idx(tmp_path), tmp_path / "set"
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), source, target], check=False, timeout=250
    )
    assert killed.returncode == -signal.SIGKILL
    with (target / JOURNAL).open("ab") as journal:
        journal.write(b'{"count": 5, "end"')  # the remains of an entry after a kill
    with pytest.raises(DataError, match="writing was interrupted: convert again to continue"):
        runtime.open_source(demitasse.DataSpec(str(target)))
    with pytest.raises(DataError, match=r"another conversion was interrupted here \(stripes differ"):
        convert_to_striped(runtime, source, target, stripes=5, block=9000)
    done = convert_to_striped(runtime, source, target, stripes=4, block=9000)
    assert 90 <= done["resumed"] <= 170 and done["samples"] == 300
    same(str(source), target)
    assert not (target / JOURNAL).exists()


@pytest.mark.parametrize("header", ["", '{"source', "[1]\n", "{}\n", '{"tag": "*", "folders": 3}\n'])
def test_a_damaged_journal_is_told_and_force_begins_anew(
    tmp_path: Path, header: str, columns: Any, write: Any, opened: Any, read: Any
) -> None:
    given, making = columns(20), {"stripes": 2, "block": 2000}
    before = write(tmp_path / "set", columns(10), **making)
    (tmp_path / "set" / "stripe-00-abcdef.bin").touch()  # of the interrupted conversion
    (tmp_path / "set" / JOURNAL).write_text(header)
    with pytest.raises(DataError, match=r"the journal .*force starts over"):
        write(tmp_path / "set", given, **making)
    assert all(path.exists() for path in before.stripes)
    made = write(tmp_path / "set", given, force=True, **making)
    assert (read(opened(tmp_path / "set"), 0, 20)["data"] == given["data"]).all()
    names = {path.name for path in (tmp_path / "set").iterdir()}
    assert names == {INDEX, made.table, *(path.name for path in made.stripes)}


def test_a_disk_that_is_full_as_the_journal_begins_leaves_none(
    tmp_path: Path, columns: Any, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DataError, match="set: cannot be written: No space left on device"):
            write(tmp_path / "set", columns(20), stripes=2, block=2000)
    assert list((tmp_path / "set").iterdir()) == []
    (tmp_path / "set" / f".{JOURNAL}.1-12345678.partial").touch()  # as a kill would leave it
    write(tmp_path / "set", columns(20), stripes=2, block=2000)


def test_a_writer_that_died_once_the_set_was_whole_is_followed_by_one_that_keeps_it(
    tmp_path: Path, columns: Any, write: Any, opened: Any, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, making = columns(20), {"stripes": 2, "block": 2000}

    def died(folder: Path, index: Any) -> None:
        write_index(folder, index)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_index", died)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "set", given, **making)
    assert (tmp_path / "set" / JOURNAL).exists()
    write(tmp_path / "set", given, **making)
    assert not (tmp_path / "set" / JOURNAL).exists()
    assert (read(opened(tmp_path / "set"), 0, 20)["data"] == given["data"]).all()


def test_a_set_has_one_writer_at_a_time(
    tmp_path: Path, columns: Any, write: Any, opened: Any, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second writer would continue the first one's journal, and write the same stripes."""
    pytest.importorskip("fcntl")
    given, making = columns(20), {"stripes": 2, "block": 2000}

    def meanwhile(folder: Path, index: Any) -> None:
        with pytest.raises(DataError, match="set: is being written by another process"):
            write(folder, given, **making)
        write_index(folder, index)

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_index", meanwhile)
        write(tmp_path / "set", given, **making)
    assert (read(opened(tmp_path / "set"), 0, 20)["data"] == given["data"]).all()


def test_what_cannot_be_laid_out_is_refused(tmp_path: Path, columns: Any, write: Any) -> None:
    with pytest.raises(DataError, match="a sample has 768 bytes, but a block only 700"):
        write(tmp_path / "a", columns(3), block=700)
    with pytest.raises(DataError, match=r"-1 threads, .* .valid: 0, for the default, or more"):
        write(tmp_path / "a", columns(3), threads=-1)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="is a folder with other contents"):
        write(tmp_path / "b", columns(3), block=800, force=True)
