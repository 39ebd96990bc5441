"""Every fault is identified by stripe, block and sample, and either stops the run, or is skipped and
counted."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import DataError
from demitasse_striped_io.checking import check_set
from demitasse_striped_io.index import INDEX, _crc, read_index
from demitasse_striped_io.measuring import slow_stripes
from demitasse_striped_io.source import Source
from demitasse_striped_io.stripe_queues import RateLimit

Opened = Callable[..., Source]
WAYS = [{}, {"memory": 0}, {"memory": 1}, {"memory": 0, "io": "direct"}, {"memory": 0, "patience": 60}]
"""Kept in memory; through the page cache, without and with a map; bypassing it; by stripe queues."""


def flip(path: Any, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))


def epoch(source: Source, count: int = 101) -> dict[str, np.ndarray]:
    out = {"data": np.zeros((count, 3, 16, 16), np.uint8), "label": np.zeros(count, np.int32)}
    stream = source.stream(0, count, count)
    try:
        stream.read(out)
    finally:
        stream.close()
    return out


# Sample 32 is the third of block 5, which is the second block of stripe 1.
PLACE, WHERE = 6 * 768 + 100 + 2 * 768, "stripe 1, block 5, sample 32"


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_flipped_bit_is_named_and_stops(made: Any, opened: Opened, way: dict[str, Any]) -> None:
    flip(made.stripe(1), PLACE + 700)
    with pytest.raises(DataError, match=f"{WHERE}: .*checksum is wrong; on_error=skip"):
        epoch(opened(made.path, **way))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_flipped_bit_is_skipped_and_counted(
    made: Any, opened: Opened, way: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    flip(made.stripe(1), PLACE)
    source = opened(made.path, on_error="skip", **way)
    with caplog.at_level(logging.WARNING, "demitasse.striped_io"):
        out = epoch(source)
        epoch(source)
    assert [str(fault)[: len(WHERE)] for fault in source.faults.found.values()] == [WHERE]
    # Once in each epoch's batch, and in those of the next epoch that are prepared by then.
    most = 2 if source.records.direct else 2 * (1 + source.options.ahead)
    assert 2 <= source.faults.skipped <= most and source.faults.by_stripe() == {1: 1}
    assert sum(WHERE in message for message in caplog.messages) == 1
    # Another complete sample, with its own label, replaced it; all others are where they were.
    assert out["label"][32] != 32
    assert (np.delete(out["label"], 32) == np.delete(np.arange(101), 32)).all()
    assert (out["data"] == made.columns["data"][out["label"]]).all()


def test_what_takes_a_samples_place_is_the_same_for_any_workers(made: Any, opened: Opened) -> None:
    flip(made.stripe(1), PLACE)
    whole = epoch(opened(made.path, shuffle=True, on_error="skip", memory=0))["label"]
    source = opened(made.path, shuffle=True, on_error="skip", memory=0)
    for first, count in ((0, 40), (40, 61)):
        stream = source.stream(first, count, 101)
        out = {"data": np.zeros((count, 3, 16, 16), np.uint8), "label": np.zeros(count, np.int32)}
        stream.read(out)
        stream.close()
        assert (out["label"] == whole[first : first + count]).all()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_stripe_that_is_cut_off_is_named(made: Any, opened: Opened, way: dict[str, Any]) -> None:
    with made.stripe(2).open("r+b") as file:
        file.truncate(file.seek(0, 2) - 10)
    last = "stripe 2, block 14, sample 89"
    with pytest.raises(DataError, match=f"{last}: .*cut off: it has [0-9,]+ of [0-9,]+ bytes"):
        epoch(opened(made.path, **way))
    source = opened(made.path, on_error="skip", **way)
    assert (epoch(source)["label"] != np.arange(101)).sum() == 1


def test_a_missing_stripe_stops_when_the_set_is_opened(made: Any, opened: Opened) -> None:
    made.stripe(3).unlink()
    with pytest.raises(
        DataError, match=r"stripe 3 of 4 is missing: .*No such file.*blocks 3, 7, 11, 15 with 24 samples"
    ):
        opened(made.path)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_missing_stripe_is_skipped_and_its_replacements_differ(
    made: Any, opened: Opened, way: dict[str, Any]
) -> None:
    made.stripe(3).unlink()
    source = opened(made.path, on_error="skip", **way)
    out = epoch(source)
    gone = made.columns["label"][np.arange(101) // 6 % 4 == 3]
    assert not set(out["label"]) & set(gone)
    assert len(source.faults.found) == len(gone) == 24
    assert 24 <= source.faults.skipped <= 24 * (1 + source.options.ahead)
    assert len(set(out["label"][gone])) > len(gone) // 2
    assert (out["data"] == made.columns["data"][out["label"]]).all()


@pytest.mark.parametrize("count", [2, 4, 6, 9, 10])
def test_as_long_as_one_sample_can_be_read_it_takes_the_others_places(
    tmp_path: Path, columns: Any, write: Any, opened: Opened, count: int
) -> None:
    """A stride of 2 among 4 samples would try only every second one, and find none."""
    given = columns(count)
    index = write(tmp_path / "set", given, stripes=1, block=count * 768)
    data = bytearray(index.stripes[0].read_bytes())
    for number in range(count - 1):
        data[768 * number] ^= 1
    index.stripes[0].write_bytes(data)
    source = opened(tmp_path / "set", on_error="skip")
    assert set(epoch(source)["label"].tolist()) == {count - 1}
    source.close()


def test_when_nothing_can_be_read_skipping_ends_too(made: Any, opened: Opened) -> None:
    for stripe in range(4):
        made.stripe(stripe).unlink()
    with pytest.raises(DataError, match="none of its 101 samples can be read"):
        epoch(opened(made.path, on_error="skip", memory=0))


def test_a_stripe_that_cannot_be_read_has_the_systems_words(made: Any, opened: Opened) -> None:
    made.stripe(0).unlink()
    made.stripe(0).mkdir()
    with pytest.raises(
        DataError, match=r"stripe 0, block 0, sample 0: .*cannot be read: Is a directory"
    ):
        epoch(opened(made.path, memory=0))


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_without_files_to_open_nothing_is_missing(
    made: Any, opened: Opened, monkeypatch: pytest.MonkeyPatch, on_error: str
) -> None:
    """A process that may open few files must not skip the samples of all further stripes."""
    os_open, files = os.open, list[int]()

    def few(path: Any, flags: int, *mode: int) -> int:
        if len(files) == 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        files.append(os_open(path, flags, *mode))
        return files[-1]

    with monkeypatch.context() as patch:
        patch.setattr("demitasse_striped_io.store.os.open", few)
        told = r"stripe-02-.*: Too many open files; a set on 4 stripes needs 4 open files at a time"
        with pytest.raises(DataError, match=told):
            opened(made.path, on_error=on_error)
    for file in files:
        with pytest.raises(OSError):
            os.fstat(file)


def test_a_pipe_in_a_stripes_place_is_waited_for_by_nobody(made: Any, opened: Opened) -> None:
    made.stripe(1).unlink()
    os.mkfifo(made.stripe(1))
    with pytest.raises(DataError, match=r"stripe 1 of 4 is missing: .*is a pipe or a device"):
        opened(made.path)
    assert {fault.stripe for fault in check_set(made.path).faults} == {1}


def test_a_slow_stripe_is_given_up_and_skipped_or_stops(made: Any, opened: Opened) -> None:
    def stall(source: Source) -> None:
        # Its disk stands still: a read from it waits until the source is closed.
        queues = source.store._queues
        take = queues.limit.take
        queues.limit.take = lambda stripe, count: (  # type: ignore[method-assign]
            queues.limit._stop.wait() and None if stripe == 2 else take(stripe, count)
        )

    patient = {"memory": 0, "patience": 0.05}
    source = opened(made.path, **patient)
    stall(source)
    with pytest.raises(DataError, match=r"stripe 2, block 2, sample 12: .*the stripe is slow"):
        epoch(source)
    source = opened(made.path, on_error="skip", **patient)
    stall(source)
    out = epoch(source)
    assert source.faults.by_stripe() == {2: 24}
    assert (out["data"] == made.columns["data"][out["label"]]).all()


def test_a_stripe_that_gives_less_than_the_others_is_told_by_what_was_counted() -> None:
    tally = np.array([[9, 10_000_000, 10_000_000, 9]] * 5)
    tally[3, 2] = 90_000_000
    assert slow_stripes(tally) == {3: (pytest.approx(10e9 / 90), pytest.approx(1e9))}
    tally[3, 1] = 1000  # too few bytes to judge
    assert slow_stripes(tally) == {}
    tally[3] = (9, 10_000_000, 49_000_000, 9)  # one or two time slices could make it as slow
    tally[:3, 2] = tally[4, 2] = 5_000_000
    assert slow_stripes(tally) == {}


def test_a_rate_is_kept_to_by_letting_wait_for_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = RateLimit(2, 1000.0)
    waits: list[float] = []
    monkeypatch.setattr("demitasse_striped_io.stripe_queues.time.perf_counter", lambda: 50.0)
    monkeypatch.setattr(limit._stop, "wait", waits.append)
    for stripe, count in ((0, 500), (0, 250), (1, 100)):
        limit.take(stripe, count)
    assert waits == pytest.approx([0.5, 0.75, 0.1])


def test_a_check_of_a_set_finds_every_fault(made: Any) -> None:
    assert check_set(made.path).faults == ()
    flip(made.stripe(1), PLACE)
    made.stripe(3).unlink()
    with made.stripe(0).open("ab") as file:
        file.write(b"more")
    found = check_set(made.path)
    assert {fault.stripe for fault in found.faults} == {1, 3} and len(found.faults) == 25
    assert "stripe 0" in found.notes[0] and "longer" in found.notes[0]


@pytest.mark.parametrize("name", [INDEX, "table"])
def test_a_damaged_index_or_table_is_not_believed(made: Any, opened: Opened, name: str) -> None:
    path = made.path / (INDEX if name == INDEX else made.index.table)
    flip(path, path.stat().st_size // 2)
    with pytest.raises(DataError, match=r"is damaged|is not a complete index"):
        opened(made.path)


def test_an_index_that_is_nested_too_deep_is_damaged(made: Any) -> None:
    (made.path / INDEX).write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"index.json: is damaged: it is not JSON"):
        read_index(made.path)


@pytest.mark.parametrize("key", ["samples", "block", "record", "run"])
def test_an_index_of_numbers_without_end_is_no_whole_one(made: Any, key: str) -> None:
    body = json.loads((made.path / INDEX).read_text())
    body.pop("crc32")
    body[key] = math.inf
    body["crc32"] = f"{_crc(body):08x}"
    (made.path / INDEX).write_text(json.dumps(body))
    with pytest.raises(DataError, match=r"index.json: is not a complete index: OverflowError"):
        read_index(made.path)


def test_an_index_of_another_version_is_refused(made: Any) -> None:
    body = json.loads((made.path / INDEX).read_text())
    (made.path / INDEX).write_text(json.dumps({**body, "version": 2}))
    with pytest.raises(DataError, match=r"is of version 2 .supported: 1"):
        read_index(made.path)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"order": "blok"}, "unknown order 'blok'; did you mean 'block'"),
        ({"ordr": "block"}, "unknown option of a striped set 'ordr'; did you mean 'order'"),
        ({"run": -1}, "run is -1 .valid: 0 or more"),
        ({"patience": "long"}, "patience is 'long' .valid: a number.$"),
        ({"run": "1e3"}, "run is '1e3' .valid: a whole number"),
        ({"random": "maybe"}, "random is 'maybe' .valid: true or false"),
        ({"memory": "64Q"}, "memory is '64Q' .valid: a number of bytes such as 64M"),
        ({"rate": "nan"}, "rate is nan .valid: 0 or more"),
        ({"transform": "crop"}, "transform is 'crop' .valid: a mapping"),
        ({"transform": {"crop": 17}}, "too small for a crop of 17"),
        ({"transform": {"mean": [1, 2]}}, "valid: a number, 3 of them"),
        ({"transform": {"flip": 1}}, "unknown part of transform 'flip'"),
    ],
)
def test_a_wrong_option_says_what_is_valid(
    made: Any, opened: Opened, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        opened(made.path, **options)


def test_bytes_may_have_units(made: Any, opened: Opened) -> None:
    source = opened(made.path, memory="64M", rate="1.5k", striping_unit="4MiB")
    options = source.options
    assert (options.memory, options.rate, options.striping_unit) == (64 << 20, 1536.0, 4 << 20)
    assert opened(made.path, memory="-1").options.memory == -1


def test_a_batch_of_another_shape_is_refused(made: Any, opened: Opened) -> None:
    stream = opened(made.path).stream(0, 5, 5)
    with pytest.raises(
        DataError, match=r"has shape \(5, 3, 16, 16\), but the array .* has \(4, 3, 16, 16\)"
    ):
        stream.read({"data": np.zeros((4, 3, 16, 16), np.uint8)})
    with pytest.raises(DataError, match="unknown field 'dat'; did you mean 'data'"):
        stream.read({"dat": np.zeros(5)})
    stream.close()
    with pytest.raises(DataError, match="the stream is closed"):
        stream.read({"label": np.zeros(5)})
