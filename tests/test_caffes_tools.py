"""Caffe's own tools by name: convert_imageset and compute_image_mean, with their flags."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lmdb
import numpy as np
import pytest

import demitasse
from demitasse import DataError, DataSpec
from demitasse_cli.main import main
from demitasse_datasets.datum import parse

cv2 = pytest.importorskip("cv2", reason="OpenCV, which reads images, is not installed")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "demitasse_cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def pictures(tmp_path: Path) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    made = [random.integers(0, 256, (6, 8, 3), dtype=np.uint8) for _ in range(5)]
    (tmp_path / "images").mkdir()
    for number, picture in enumerate(made):
        cv2.imwrite(str(tmp_path / "images" / f"{number}.png"), picture)
    (tmp_path / "list.txt").write_text("".join(f"{n}.png {n % 2}\n" for n in range(5)))
    return made


def test_an_imageset_becomes_a_database_and_its_mean_a_file(
    tmp_path: Path, pictures: list[np.ndarray]
) -> None:
    root, database, mean = f"{tmp_path}/images/", tmp_path / "set_lmdb", tmp_path / "mean.binaryproto"
    done = run(
        "convert_imageset",
        "-resize_height=6",
        "--resize_width",
        8,
        root,
        tmp_path / "list.txt",
        database,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"wrote {database}: 5 records")
    with demitasse.compose() as runtime:
        source = runtime.open_source(DataSpec(str(database), "lmdb"))
        out = {"data": np.empty((5, 3, 6, 8), np.uint8), "label": np.empty(5, np.int32)}
        source.stream(0, 5, 5).read(out)
    stacked = np.stack([picture.transpose(2, 0, 1) for picture in pictures])
    assert np.array_equal(out["data"], stacked)
    assert out["label"].tolist() == [0, 1, 0, 1, 0]
    done = run("compute_image_mean", database, mean)
    assert (done.returncode, done.stderr) == (0, "")
    blue = stacked[:, 0].astype(np.float64).mean()
    assert f"mean of channel 0: {blue:.6g}" in done.stdout
    from demitasse_caffe.weights import read_blob

    np.testing.assert_allclose(read_blob(mean).reshape(3, 6, 8), stacked.mean(axis=0), rtol=1e-6)


def test_switches_may_have_values_as_in_batch_files(
    tmp_path: Path, pictures: list[np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"{tmp_path}/images/", tmp_path / "list.txt"]
    done = run("convert_imageset", *words, tmp_path / "grey", "--gray=true", "-shuffle=false")
    assert (done.returncode, done.stderr) == (0, "")
    with demitasse.compose() as runtime:
        source = runtime.open_source(DataSpec(str(tmp_path / "grey"), "lmdb"))
        out = {"data": np.empty((5, 1, 6, 8), np.uint8), "label": np.empty(5, np.int32)}
        source.stream(0, 5, 5).read(out)
    weights = np.array([0.114, 0.587, 0.299])  # of blue, green and red
    grey = np.stack([picture @ weights for picture in pictures])
    assert np.abs(out["data"][:, 0] - grey).max() <= 1
    assert out["label"].tolist() == [0, 1, 0, 1, 0]
    for word, said in (
        ("--gray=perhaps", "--gray: 'perhaps' (valid: true, false); see demitasse convert_imageset"),
        ("--force=yes", "--force takes no value; see demitasse convert_imageset"),
    ):
        assert main(["convert_imageset", word, *map(str, words), str(tmp_path / "none")]) == 2
        assert capsys.readouterr().err == f"demitasse: {said} --help\n"


def test_mistakes_are_one_line(tmp_path: Path, pictures: list[np.ndarray]) -> None:
    (tmp_path / "bad.txt").write_text("0.png 0\nnothing.png 1\n")
    done = run("convert_imageset", f"{tmp_path}/images/", tmp_path / "bad.txt", tmp_path / "out")
    assert done.returncode == 2
    assert f"{tmp_path / 'bad.txt'}:2" in done.stderr
    assert "nothing.png" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
    again = run("convert_imageset", f"{tmp_path}/images", tmp_path)
    assert (again.returncode, "already exists" in again.stderr) == (2, True)


def test_damaged_images_are_left_out_where_it_is_asked(
    tmp_path: Path, pictures: list[np.ndarray]
) -> None:
    (tmp_path / "images/cut.png").write_bytes((tmp_path / "images/2.png").read_bytes()[:70])
    (tmp_path / "list.txt").write_text("0.png 5\nnothing.png 6\ncut.png 7\n1.png 8\n")
    given = f"{tmp_path}/images/", tmp_path / "list.txt"
    refused = run("convert_imageset", *given, tmp_path / "a")
    assert refused.returncode == 2 and not (tmp_path / "a").exists()
    assert refused.stderr.strip().endswith("skip_damaged leaves such images out")
    done = run("convert_imageset", "-skip_damaged", *given, tmp_path / "b")
    assert (done.returncode, "b: 2 records" in done.stdout) == (0, True)
    told = done.stderr.splitlines()
    assert [line.split("list.txt:")[1][0] for line in told] == ["2", "3"]
    assert all(line.endswith(": left out") for line in told)
    with (
        lmdb.open(str(tmp_path / "b"), readonly=True, lock=False) as database,
        database.begin() as transaction,
    ):
        records = [(key, parse(value).label) for key, value in transaction.cursor()]
    assert records == [(b"00000000_0.png", 5), (b"00000003_1.png", 8)]


def test_images_of_other_sizes_are_refused_where_it_is_asked(
    tmp_path: Path, pictures: list[np.ndarray]
) -> None:
    cv2.imwrite(str(tmp_path / "images/3.png"), pictures[3][:5])
    given = f"{tmp_path}/images", tmp_path / "list.txt"  # a folder, with or without a slash
    done = run("convert_imageset", "-check_size", *given, tmp_path / "a")
    assert done.returncode == 2 and not (tmp_path / "a").exists()
    assert f"{tmp_path}/list.txt:4: {tmp_path}/images/3.png: 5 x 8 pixels of 3 channels" in done.stderr
    assert "the first one is 6 x 8 pixels of 3 channels" in done.stderr
    assert run("convert_imageset", *given, tmp_path / "b").returncode == 0
    resized = "-check_size", "-resize_height=4", "-resize_width=4"
    assert run("convert_imageset", *resized, *given, tmp_path / "c").returncode == 0


def test_images_are_encoded_in_formats_that_caffe_reads(
    tmp_path: Path, pictures: list[np.ndarray]
) -> None:
    given = f"{tmp_path}/images/", tmp_path / "list.txt", tmp_path / "db"
    done = run("convert_imageset", "-encode_type", "gif", *given)
    assert "unknown format of encoded images 'gif'; did you mean 'tif'? (valid: bmp, " in done.stderr
    assert run("convert_imageset", "-encode_type", "webp", *given).returncode == 0


def test_the_mean_of_a_list_of_images_needs_no_backend(
    tmp_path: Path, pictures: list[np.ndarray]
) -> None:
    (tmp_path / "images/list.txt").write_text((tmp_path / "list.txt").read_text())
    done = run("compute_image_mean", tmp_path / "images/list.txt")
    blue = np.mean([picture[..., 0] for picture in pictures])
    assert f"mean of channel 0: {blue:.6g}" in done.stdout, done.stderr


def test_a_long_conversion_tells_how_far_it_is(tmp_path: Path, pictures: list[np.ndarray]) -> None:
    told = list[int]()
    with demitasse.compose() as runtime:
        runtime.program(
            "convert_samples",
            tmp_path / "list.txt",
            tmp_path / "db",
            root=f"{tmp_path}/images/",
            progress=told.append,
        )
    assert told == [5]


def test_a_full_disk_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lmdb = pytest.importorskip("lmdb")
    import shutil
    from types import SimpleNamespace

    from demitasse_datasets.convert import write_lmdb

    def entries() -> Iterator[tuple[bytes, bytes]]:
        yield b"key", b"value"
        raise lmdb.DiskError("mdb_txn_commit: Input/output error")

    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=4096))
    with pytest.raises(DataError, match=r"cannot be written: .*error.* \(the disk is full\)"):
        write_lmdb(tmp_path / "db", entries())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told_in_the_systems_words_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    from demitasse_datasets.convert import write_lmdb

    def refuse(folder: Path, *given: object, **options: object) -> None:
        if folder.name.startswith("."):
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DataError, match=r"db: cannot be written: Permission denied$"):
        write_lmdb(tmp_path / "db", iter([(b"key", b"value")]))


def test_an_empty_folder_has_no_samples(tmp_path: Path) -> None:
    (tmp_path / "empty_lmdb").mkdir()
    (tmp_path / "broken_lmdb").mkdir()
    (tmp_path / "broken_lmdb/lock.mdb").touch()
    with demitasse.compose() as runtime:
        for name, held in (
            ("empty_lmdb", "the folder is empty"),
            ("broken_lmdb", "it has the lock.mdb of a database, but no data.mdb"),
        ):
            with pytest.raises(DataError, match=f"{name} has no samples: {held}"):
                runtime.open_source(DataSpec(str(tmp_path / name)))
    done = run("compute_image_mean", tmp_path / "broken_lmdb")
    assert done.returncode == 2
    assert f"{tmp_path / 'broken_lmdb'} has no samples: it has the lock.mdb of a database" in done.stderr


def test_a_net_that_reads_no_samples_is_timed_without_a_rate_of_samples(tmp_path: Path) -> None:
    net = tmp_path / "deploy.prototxt"
    net.write_text(
        'layer { name: "data" type: "Input" top: "data" '
        "input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } } "
        'layer { name: "relu" type: "ReLU" bottom: "data" top: "relu" }'
    )
    done = run("time", "-model", net, "-iterations", 1)
    assert done.returncode == 0, done.stderr
    assert "inputs are given, not read" in done.stdout
    assert "samples/s" not in done.stdout


def test_a_mean_of_many_images_tells_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from demitasse_caffe import mean_command

    monkeypatch.setattr(mean_command, "PATIENCE", 0.0)
    mean_command.command.main(["digits:train"], standalone_mode=False)
    captured = capsys.readouterr()
    counts = [int(line.split()[0].replace(",", "")) for line in captured.err.splitlines()]
    assert counts == [256, 512, 768, 1024, 1280, 1438]
    assert captured.err.splitlines()[-1] == "1,438 of 1,438 images"
    assert captured.out.startswith("mean of channel 0: ")


def test_an_annoset_becomes_a_database(tmp_path: Path, pictures: list[np.ndarray]) -> None:
    """With the flags that create_annoset.py of SSD's fork gives."""
    for number in range(5):
        (tmp_path / "images" / f"{number}.txt").write_text("3 0 0 2 3\n" * number)
    (tmp_path / "list.txt").write_text("".join(f"{n}.png {n}.txt\n" for n in range(5)))
    flags = "--anno_type=detection --label_type=txt --label_map_file= --check_label=True --min_dim=0"
    flags += " --max_dim=0 --resize_height=0 --resize_width=0 --backend=lmdb --shuffle=False"
    flags += " --check_size=False --encode_type=png --encoded=True --gray=False"
    given = [f"{tmp_path}/images/", tmp_path / "list.txt", tmp_path / "db"]
    done = run("convert_annoset", *flags.split(), *given)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"wrote {tmp_path / 'db'}: 5 records")
    with demitasse.compose() as runtime:
        spec = DataSpec(str(tmp_path / "db"), "annotated", options={"objects": 4})
        source = runtime.open_source(spec)
        out = {n: np.empty((5, *f.shape), f.dtype) for n, f in source.fields.items()}
        source.stream(0, 5, 5).read(out)
    assert np.array_equal(out["data"], np.stack([picture.transpose(2, 0, 1) for picture in pictures]))
    rows = out["label"][:, 0]
    assert [(each[:, 1] == 3).sum() for each in rows] == [0, 1, 2, 3, 4]
    height, width = pictures[0].shape[:2]
    np.testing.assert_allclose(rows[4, 3], [0, 3, 3, 0, 0, 2 / width, 3 / height, 0], rtol=1e-6)
    done = run("convert_annoset", "-anno_type", "classification", *given)
    assert done.returncode == 2 and "use demitasse convert_imageset" in done.stderr
    done = run("convert_annoset", "--lable_type=xml", *given)
    assert done.returncode == 2 and "did you mean '--label_type'?" in done.stderr
