"""An interrupted conversion continues where it stopped, if its source and its stripes are unchanged."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse
import demitasse_striped_io.writer as writing
from demitasse import DataError
from demitasse_striped_io.convert import convert_to_striped
from demitasse_striped_io.index import INDEX, JOURNAL

Read = Callable[..., dict[str, np.ndarray]]
MAKING: dict[str, Any] = {"stripes": 3, "block": 3000}


@pytest.fixture
def break_off(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write until the disk is full, with what was written before that in the journal."""

    def until_full(work: Callable[[], object], room: int) -> None:
        wrote, pwrite = [0], os.pwrite

        def filling(file: int, data: Any, offset: int) -> int:
            if wrote[0] > room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            wrote[0] += len(data)
            return pwrite(file, data, offset)

        with monkeypatch.context() as patch:
            patch.setattr(writing, "CHUNK", 4 * 768)
            patch.setattr(writing, "KEPT_SAFE", 1)
            patch.setattr(writing, "MOST_IN_CHUNK", 4)
            patch.setattr(writing.os, "pwrite", filling)
            with pytest.raises(
                DataError, match="No space left on device; free some space; convert again"
            ):
                work()

    return until_full


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with demitasse.compose(plugins=["striped_io", "datasets"]) as made:
        yield made


@pytest.mark.parametrize("field", ["data", "label"])
def test_a_source_that_has_changed_is_not_gone_on_with(
    tmp_path: Path, columns: Any, write: Any, opened: Any, read: Read, break_off: Any, field: str
) -> None:
    given = columns(60)
    break_off(lambda: write(tmp_path / "set", given, **MAKING), 20_000)
    given[field] = given[field][::-1].copy()
    with pytest.raises(
        DataError, match="cannot continue: sample 0 of made up differs from the one that"
    ):
        write(tmp_path / "set", given, **MAKING)
    index = write(tmp_path / "set", given, force=True, **MAKING)
    assert (read(opened(tmp_path / "set"), 0, 60)[field] == given[field]).all()
    left = {path.name for path in (tmp_path / "set").iterdir()}
    assert left == {INDEX, index.table, *(path.name for path in index.stripes)}


def test_a_list_in_another_order_or_with_other_labels_is_not_gone_on_with(
    tmp_path: Path, runtime: Any, break_off: Any
) -> None:
    cv2 = pytest.importorskip("cv2", reason="images are decoded by OpenCV")
    for number in range(40):
        pixels = np.full((8, 8, 3), number, np.uint8)
        (tmp_path / f"{number}.png").write_bytes(bytes(cv2.imencode(".png", pixels)[1]))
    lines, listed = [f"{number}.png {number}" for number in range(40)], tmp_path / "list.txt"

    def convert(some: list[str], **force: bool) -> dict[str, Any]:
        listed.write_text("\n".join(some))
        return convert_to_striped(runtime, listed, tmp_path / "set", stripes=3, block=400, **force)

    break_off(lambda: convert(lines), 1500)
    for other in ([lines[0], *lines[:0:-1]], [*lines[:-1], "39.png 7"]):
        with pytest.raises(DataError, match=r"list differ: .*list\.txt lists other samples now"):
            convert(other)
    assert 0 < convert(lines)["resumed"] < 40
    assert convert([lines[0], *lines[:0:-1]], force=True)["resumed"] == 0


def test_a_stripe_that_was_lost_since_is_told(
    tmp_path: Path, columns: Any, write: Any, opened: Any, read: Read, break_off: Any
) -> None:
    given = columns(60)
    break_off(lambda: write(tmp_path / "set", given, **MAKING), 20_000)
    (lost,) = (tmp_path / "set").glob("stripe-01-*")
    for spoil in (lambda: os.truncate(lost, 100), lost.unlink):
        spoil()
        with pytest.raises(DataError, match=r"cannot continue: stripe 1, .*has (100|0) of the \d"):
            write(tmp_path / "set", given, **MAKING)
    write(tmp_path / "set", given, force=True, **MAKING)
    assert (read(opened(tmp_path / "set"), 0, 60)["data"] == given["data"]).all()


def test_where_the_journal_finds_no_room_the_set_is_named(
    tmp_path: Path, columns: Any, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stripes may be on other disks, which have room."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(writing.journals.Journal, "add", full)
        told = (
            rf"set: {JOURNAL}, samples 0 to 60: No space left on device; free some space; convert again"
        )
        with pytest.raises(DataError, match=told):
            write(tmp_path / "set", columns(60), **MAKING)


def test_what_an_index_names_beside_stripes_is_no_victim_of_force(
    tmp_path: Path, columns: Any, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set may come from a stranger, and its index may name files of the user who replaces it."""
    import demitasse_striped_io.index as indices

    index = write(tmp_path / "set", columns(20), folders=(tmp_path / "disk",), **MAKING)
    mine = tmp_path / "thesis.tex"
    mine.write_text("mine")
    body = json.loads((tmp_path / "set" / INDEX).read_text())
    body["stripes"][1]["path"] = str(mine)
    body.pop("crc32")
    body["crc32"] = f"{indices._crc(body):08x}"
    (tmp_path / "set" / INDEX).write_text(json.dumps(body))
    write(tmp_path / "set", columns(20), force=True, **MAKING)
    assert mine.read_text() == "mine"
    assert not index.stripes[0].exists() and not index.stripes[2].exists()
