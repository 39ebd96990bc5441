"""Writing databases of images: an existing database, the remains of a failure, names of any bytes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import lmdb
import numpy as np
import pytest

from demitasse import DataError
from demitasse_datasets.convert import from_files, write_lmdb
from demitasse_datasets.image_list import read_list

ENTRIES = [(f"{number:08d}".encode(), bytes([number])) for number in range(5)]


def records(path):
    with lmdb.open(str(path), lock=False, readonly=True) as database, database.begin() as transaction:
        return list(transaction.cursor())


def test_only_the_database_is_written_and_nothing_is_mapped_for_locks(tmp_path):
    seen = []

    def watch(count):
        seen.extend(file.name for file in tmp_path.rglob("*") if file.is_file())

    assert write_lmdb(tmp_path / "db", iter(ENTRIES), watch) == 5
    assert set(seen) == {"data.mdb"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["db"]
    assert records(tmp_path / "db") == ENTRIES


def test_a_database_that_was_there_stays_until_the_new_one_is_whole(tmp_path):
    write_lmdb(tmp_path / "db", iter(ENTRIES))

    def broken():
        yield b"00000000", b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lmdb(tmp_path / "db", broken())
    assert records(tmp_path / "db") == ENTRIES
    assert [entry.name for entry in tmp_path.iterdir()] == ["db"]
    write_lmdb(tmp_path / "db", iter(ENTRIES[:2]))
    assert records(tmp_path / "db") == ENTRIES[:2]
    assert [entry.name for entry in tmp_path.iterdir()] == ["db"]


def test_a_folder_of_other_things_is_never_overwritten(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match=r"more in it than a database \(thesis\.tex\)"):
        write_lmdb(tmp_path, iter(ENTRIES))
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_place_where_nothing_can_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/db: cannot be written: .*file is not a folder"):
        write_lmdb(tmp_path / "file" / "db", iter(ENTRIES))


def test_a_database_that_does_not_fit_is_an_error_and_leaves_nothing(tmp_path):
    program = (
        "import sys, signal\nfrom pathlib import Path\nfrom demitasse import DataError\n"
        "from demitasse_datasets.convert import write_lmdb\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "entries = ((f'{i:08d}'.encode(), bytes(5000)) for i in range(1000))\n"
        "try:\n    write_lmdb(Path(sys.argv[1]), entries)\n"
        "except DataError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18)),
    )
    assert f"{tmp_path / 'db'}: cannot be written: " in done.stdout
    assert not list(tmp_path.iterdir())


def test_names_that_are_no_utf8_become_keys_of_the_same_bytes(tmp_path):
    cv2 = pytest.importorskip("cv2")
    from demitasse_datasets.convert import Form

    name = "mäuse.png".encode("latin-1")
    data = cv2.imencode(".png", np.zeros((2, 2, 3), np.uint8))[1].tobytes()
    with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:  # noqa: PTH118, PTH123  bytes
        file.write(data)
    path = tmp_path / "list.txt"
    path.write_bytes(name + b" 1\n")
    entries = from_files(read_list(path), "", path, Form(), shuffle=False, seed=0)
    assert write_lmdb(tmp_path / "db", entries) == 1
    assert [key for key, _ in records(tmp_path / "db")] == [b"00000000_" + name]
