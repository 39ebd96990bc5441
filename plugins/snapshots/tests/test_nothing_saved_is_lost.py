"""Nothing that was saved is lost: by full disks, interrupts, kills and folders that are not writable."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from snapshot_files import bits, read, small, write

from demitasse import SnapshotError, Weights


def test_writing_leaves_no_file_open(tmp_path):
    opened = Path("/proc/self/fd")
    before = len([*opened.iterdir()])
    write(tmp_path / "a.demitasse", small())
    assert len([*opened.iterdir()]) == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failing_disk_leaves_the_previous_snapshot(number, tmp_path, monkeypatch):
    path = tmp_path / "a.demitasse"
    write(path, small())
    before = path.read_bytes()

    def failing(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(SnapshotError) as caught:
        write(path, Weights({"b": [np.ones(99)]}))
    monkeypatch.undo()
    assert str(path) in str(caught.value)
    assert os.strerror(number) in str(caught.value)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_leaves_no_partial_file(tmp_path, monkeypatch):
    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a.demitasse", small())
    assert list(tmp_path.iterdir()) == []


def test_a_filesystem_that_cannot_synchronise_folders_is_served(tmp_path, monkeypatch):
    real, calls = os.fsync, []

    def second_fails(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", second_fails)
    write(tmp_path / "a.demitasse", small())
    assert len(calls) == 2
    assert read(tmp_path / "a.demitasse").iteration == 3


LIMITED = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from demitasse import SnapshotError, Weights
from demitasse_snapshots.plugin import model_writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    model_writer(path=Path(sys.argv[1]), weights=Weights({"a": [np.zeros(1_000_000)]}))
except SnapshotError as error:
    print(error)
"""


def test_a_file_that_may_not_grow_leaves_the_previous_snapshot(tmp_path):
    path = tmp_path / "a.demitasse"
    write(path, small())
    before = path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert str(path) in done.stdout and os.strerror(errno.EFBIG) in done.stdout
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, sys
from pathlib import Path
import numpy as np
from demitasse import Weights
from demitasse_snapshots.plugin import model_writer

def wait(*arguments):
    print("here", flush=True)
    sys.stdin.read()

if sys.argv[2] == "flushing":
    os.fsync = wait
elif sys.argv[2] == "renaming":
    Path.replace = wait
else:
    real, written = Path.open, []
    class Slow:
        def __init__(self, file): self.file = file
        def __enter__(self): return self
        def __exit__(self, *error): self.file.close()
        def write(self, data):
            self.file.write(data)
            self.file.flush()
            written.append(len(data))
            if sum(written) > 100_000:
                wait()
    def slowly(path, mode="r", **given):
        file = real(path, mode, **given)
        return Slow(file) if mode == "wb" else file
    Path.open = slowly
model_writer(path=Path(sys.argv[1]), weights=Weights({"a": [np.zeros(99_999)] * 3}))
"""


@pytest.mark.parametrize("moment", ["writing", "flushing", "renaming"])
def test_a_kill_while_writing_leaves_the_previous_snapshot_whole(moment, tmp_path):
    path = tmp_path / "a.demitasse"
    write(path, small())
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path), moment],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert bits(vars(read(path))) == bits(vars(small()))
    (partial,) = set(tmp_path.iterdir()) - {path}
    assert partial.name.startswith(".a.demitasse.") and partial.name.endswith(".partial")
    write(path, Weights(iteration=4))
    assert read(path).iteration == 4
    assert set(tmp_path.iterdir()) == {path}


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    for path in (tmp_path / "no" / "a.demitasse", tmp_path):
        with pytest.raises(SnapshotError) as caught:
            write(path, small())
        assert str(path) in str(caught.value)
    (tmp_path / "file").touch()
    with pytest.raises(SnapshotError, match="Not a directory"):
        write(tmp_path / "file" / "a.demitasse", small())
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_link_stays_a_link_and_long_names_fit(tmp_path):
    (tmp_path / "link.demitasse").symlink_to(tmp_path / "real.demitasse")
    write(tmp_path / "link.demitasse", small())
    assert (tmp_path / "link.demitasse").is_symlink()
    assert read(tmp_path / "real.demitasse").iteration == 3
    long = tmp_path / f"{'n' * 240}.demitasse"
    write(long, small())
    assert read(long).iteration == 3
