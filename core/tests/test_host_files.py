"""Files that plugins keep: where they are, and that they are complete or unchanged."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from demitasse import cache_folder, folder_beside, locked, matching, open_plain, replacing, write_text


def test_the_cache_lies_where_the_system_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("toy") == tmp_path / "demitasse" / "toy"


@pytest.mark.parametrize("given", ["", "relative"])
def test_the_cache_lies_at_home_where_the_system_says_nothing_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder("toy") == tmp_path / ".cache" / "demitasse" / "toy"


def test_a_file_is_replaced_at_the_end_with_the_rights_of_any_new_one(tmp_path: Path) -> None:
    path, other = tmp_path / "kept", tmp_path / "other"
    path.write_text("old")
    with replacing(path) as partial:
        assert partial.parent == path.parent
        partial.write_text("new")
        assert path.read_text() == "old"
    other.touch()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)
    assert {each.name for each in tmp_path.iterdir()} == {"kept", "other"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_file_stays_as_it_was_where_its_writing_fails(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "kept"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as partial:
        partial.write_text("ne")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_where_the_empty_file_cannot_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, close: Any = os.close) -> None:
        close(descriptor)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "close", full)
    with pytest.raises(OSError, match="quota"), replacing(tmp_path / "kept"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_one_and_its_target_is_replaced(tmp_path: Path) -> None:
    path, link = tmp_path / "there" / "kept", tmp_path / "link"
    path.parent.mkdir()
    path.write_text("old")
    link.symlink_to(path)
    with replacing(link) as partial:
        partial.write_text("new")
    assert link.is_symlink()
    assert path.read_text() == "new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_file_stays_what_it_is_and_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with replacing(pipe) as path:
        path.write_text("new")
    assert os.read(reader, 9) == b"new"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_long_name_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    with replacing(path) as partial:
        partial.write_text("new")
    assert path.read_text() == "new"


def test_a_folder_that_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "nowhere" / "kept"):
        pass


def test_a_long_name_of_many_bytes_a_letter_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("日" * 85)
    with replacing(path) as partial:
        partial.write_text("new")
    assert path.read_text() == "new"


# Files that a killed process has left.

KILLED = """
import sys
from pathlib import Path
from demitasse import replacing
with replacing(Path(sys.argv[1])) as partial:
    partial.write_text("half of it")
    print(partial, flush=True)
    sys.stdin.read()
"""


@contextmanager
def writing(path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Yield another process in the middle of replacing a file, and the path to which it writes."""
    words = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(words, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def replace(path: Path) -> None:
    """Replace a file in this process."""
    with replacing(path) as partial:
        partial.write_text("new")


def test_what_a_killed_process_has_left_goes_with_the_next_file(tmp_path: Path) -> None:
    with writing(tmp_path / "iteration 3") as (process, left):
        process.kill()
        process.wait()
        assert left.read_text() == "half of it"
        replace(tmp_path / "iteration 2")
    assert [each.name for each in tmp_path.iterdir()] == ["iteration 2"]


def test_so_it_does_where_nobody_has_heard_yet_that_its_process_has_ended(tmp_path: Path) -> None:
    with writing(tmp_path / "kept") as (process, left):
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        replace(tmp_path / "other")
        assert not left.exists()


def test_what_a_process_is_writing_stays_however_old_it_looks(tmp_path: Path) -> None:
    with writing(tmp_path / "kept") as (_, left):
        os.utime(left, (0, 0))
        replace(tmp_path / "other")
        assert left.read_text() == "half of it"


def test_what_another_process_of_the_same_number_left_goes(tmp_path: Path) -> None:
    """This process has the number now, but was started at another time."""
    with replacing(tmp_path / "kept") as partial:
        number, start, *rest = partial.name.split(".")[2].split("-")
    left = tmp_path / f".old.{number}-{int(start) - 1}-{'-'.join(rest)}.partial"
    left.touch()
    replace(tmp_path / "kept")
    assert not left.exists()


@pytest.mark.parametrize(
    "name",
    [".kept.999999-5-00000000-00c0ffee.partial", ".kept.999999-00c0ffee.partial"],
    ids=["another host's", "a host's that tells nothing"],
)
def test_what_a_process_elsewhere_left_goes_when_it_was_not_written_for_a_day(
    tmp_path: Path, name: str
) -> None:
    left = tmp_path / name
    left.touch()
    for hours, there in ((23, True), (25, False)):
        past = time.time() - hours * 3600
        os.utime(left, (past, past))
        replace(tmp_path / "kept")
        assert left.exists() == there


def test_what_others_call_partial_stays(tmp_path: Path) -> None:
    theirs = [tmp_path / name for name in ("a.partial", ".a.partial", ".a.12-zz.partial", "x-00c0ffee")]
    for path in theirs:
        path.touch()
        os.utime(path, (0, 0))
    replace(tmp_path / "kept")
    assert all(path.exists() for path in theirs)


FOLDER = """
import sys
from pathlib import Path
from demitasse import folder_beside
with folder_beside(Path(sys.argv[1])) as folder:
    (folder / sys.argv[2]).mkdir()
    (folder / sys.argv[2] / "data").write_text("half of it")
    print(flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(("part", "stays"), [("new", False), ("old", True)])
def test_a_killed_process_s_folder_goes_unless_it_has_what_was_there_before(
    tmp_path: Path, part: str, stays: bool
) -> None:
    words = [sys.executable, "-c", FOLDER, str(tmp_path / "kept"), part]
    with subprocess.Popen(words, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (left,) = tmp_path.iterdir()
        process.kill()
        process.wait()
    replace(tmp_path / "other")
    assert left.exists() == stays


def test_what_was_moved_aside_is_put_back_where_nothing_took_its_place(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "data").write_text("precious")
    with pytest.raises(ValueError, match="no more"), folder_beside(kept) as folder:
        kept.replace(folder / "old")
        raise ValueError("no more")
    assert (kept / "data").read_text() == "precious"
    assert list(tmp_path.iterdir()) == [kept]


# Text.


def test_text_is_there_whole_in_a_folder_that_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kept.json"
    write_text(path, "é")
    assert path.read_bytes() == "é".encode()
    assert list(path.parent.iterdir()) == [path]


def test_a_name_in_text_that_is_no_text_is_escaped(tmp_path: Path) -> None:
    write_text(str(tmp_path / "kept"), os.fsdecode(b"net-\xff"))
    assert (tmp_path / "kept").read_text() == r"net-\udcff"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is full")
def test_a_device_stays_one_and_its_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "full"
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=f"^{path} could not be written: No space left on device$"):
        write_text(path, "text")
    assert list(tmp_path.iterdir()) == [path] and path.is_symlink()


def test_a_file_is_opened_without_waiting_at_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("seven..")
    os.mkfifo(tmp_path / "pipe")
    file, about = open_plain(tmp_path / "file")
    assert os.read(file, 100) == b"seven.." and about.st_size == 7
    os.close(file)
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208  the numbers alone
    for name in ("pipe", "/dev/zero"):
        with pytest.raises(ValueError, match=r"^it is a pipe or a device; a file is needed here"):
            open_plain(tmp_path / name)
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        open_plain(tmp_path)
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_pattern_is_of_two_parts_at_most(tmp_path: Path) -> None:
    for name in ("a/1.x", "a/2.x", "b/c/3.x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(matching(tmp_path / "*" / "[12].?")) == [
        tmp_path / "a" / "1.x",
        tmp_path / "a" / "2.x",
    ]
    assert list(matching(tmp_path / "**" / "3.x")) == []  # no whole tree
    with pytest.raises(ValueError, match="at most 2 parts of a path may be patterns"):
        matching(tmp_path / "*" / "*" / "*")


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends removes the file; one that opened it before would lock what no other finds."""
    fcntl = pytest.importorskip("fcntl", reason="this system has no locks")
    path, real = tmp_path / "lock", fcntl.flock
    with ExitStack() as first:
        assert first.enter_context(locked(path, wait=False))

        def ended_before(file: Any, kind: int) -> None:
            if path.exists():
                path.unlink()
                first.close()
                monkeypatch.setattr(fcntl, "flock", real)
            real(file, kind)

        monkeypatch.setattr(fcntl, "flock", ended_before)
        with locked(path, wait=False) as second, locked(path, wait=False) as third:
            assert second
            assert not third
