"""Files that plugins keep: where, and so that they are there whole or as they were."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from demitasse import cache_folder, replacing


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
