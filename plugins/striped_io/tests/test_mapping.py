"""Records copied from mapped stripes: their contents, and a stripe that is truncated while it is
read."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import DataError
from demitasse_striped_io import loops, mapping
from demitasse_striped_io.mapping import Mapped
from demitasse_striped_io.source import Source
from demitasse_striped_io.store import Store

Opened = Callable[..., Source]
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux's signal is handled")


@given(
    numbers=st.lists(st.integers(0, 59), min_size=1, max_size=40),
    size=st.sampled_from([1, 64, 100, 255, 256, 300, 3072, 20_000]),
    in_block=st.integers(1, 7),
    stripes=st.integers(1, 5),
)
@settings(max_examples=examples(60))
def test_mapped_records_are_those_of_their_numbers(
    numbers: list[int], size: int, in_block: int, stripes: int
) -> None:
    block = in_block * size + 37
    turns = -(-60 // (in_block * stripes))
    held = np.random.default_rng(size).integers(0, 256, (stripes, turns * block), np.uint8)
    geometry = np.array([size, in_block, block, stripes])
    wanted, out = np.array(numbers), np.zeros(len(numbers) * size, np.uint8)
    tally, seen = np.zeros((stripes, 4), np.int64), np.ones(60, np.uint8)
    maps = np.array([row.ctypes.data for row in held])
    assert loops.gather_mapped(maps, geometry, seen, wanted, out, tally)
    for i, number in enumerate(numbers):
        turn, stripe = divmod(number // in_block, stripes)
        at = turn * block + number % in_block * size
        assert (out[i * size : (i + 1) * size] == held[stripe, at : at + size]).all()
    assert tally[:, [0, 1, 3]].sum(0).tolist() == [len(numbers), len(out), len(numbers)]


def test_what_was_not_read_before_is_not_copied() -> None:
    held, out = np.ones(30, np.uint8), np.zeros(20, np.uint8)
    geometry, seen = np.array([10, 3, 30, 1]), np.array([1, 0, 1], np.uint8)
    maps, tally = np.array([held.ctypes.data]), np.zeros((1, 4), np.int64)
    assert not loops.gather_mapped(maps, geometry, seen, np.array([0, 1]), out, tally)
    assert not out.any() and not tally.any()


@pytest.fixture
def large(tmp_path: Path, columns: Callable[..., Any], write: Callable[..., Any]) -> Any:
    """Samples of 6 pages in blocks of 4 on 3 stripes: truncating a stripe removes whole pages."""
    given = columns(48, (3, 64, 128))
    index = write(tmp_path / "large", given, stripes=3, block=4 * 24576, run=4)
    return tmp_path / "large", given, index


def cut(path: Path, length: int) -> None:
    os.truncate(path, length)


# Stripe 1 has blocks 1, 4, 7 and 10: the samples 4 to 7, 16 to 19, 28 to 31 and 40 to 43.
KEPT = 6 * 24576
"""Bytes of stripe 1 after truncation: samples 4 to 7, 16 and 17."""


@linux
@pytest.mark.parametrize("threads", [1, 3])
def test_a_stripe_cut_off_while_mapped_is_named_and_the_process_lives(
    large: Any, opened: Opened, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "CHECKED_EVERY", 1e9)  # only the signal shows it
    path, given, index = large
    source = opened(path, memory=1, threads=threads)
    stream = source.stream(0, 48, 48)
    out = {"data": np.zeros((48, 3, 64, 128), np.uint8)}
    for _ in range(3):  # read and checked, then from the map
        stream.read(out)
        assert (out["data"] == given["data"]).all()
    assert source.store.announced is False
    cut(index.stripes[1], KEPT)
    with pytest.raises(
        DataError, match=rf"stripe 1, block 4, sample 18: .*is cut off: it has {KEPT:,} of"
    ):
        stream.read(out)
    stream.close()


@linux
def test_what_is_cut_off_is_skipped_and_counted(large: Any, opened: Opened) -> None:
    path, given, index = large
    source = opened(path, memory=1, on_error="skip")
    stream = source.stream(0, 48, 48)
    out = {"data": np.zeros((48, 3, 64, 128), np.uint8), "label": np.zeros(48, np.int32)}
    for _ in range(2):
        stream.read(out)
    cut(index.stripes[1], KEPT)
    for _ in range(2):
        stream.read(out)
        assert (out["data"] == given["data"][out["label"]]).all()
    assert sorted(source.faults.found) == [18, 19, 28, 29, 30, 31, 40, 41, 42, 43]
    stream.close()


@linux
def test_a_cut_within_a_page_is_found_by_the_next_look_at_the_lengths(
    made: Any, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "CHECKED_EVERY", 0.0)
    source = opened(made.path, memory=1)
    stream = source.stream(0, 101, 101)
    out = {"data": np.zeros((101, 3, 16, 16), np.uint8)}
    for _ in range(2):
        stream.read(out)
    length = made.index.lengths[2]
    cut(made.stripe(2), length - 5)
    with pytest.raises(
        DataError, match=rf"stripe 2, block \d+, sample \d+: .*is cut off: it has {length - 5:,}"
    ):
        stream.read(out)
    stream.close()


@linux
def test_it_may_happen_in_the_midst_of_copying_in_any_thread(large: Any, opened: Opened) -> None:
    path, given, index = large
    source = opened(path, memory=1)
    told: list[str] = []
    reading = threading.Barrier(3)

    def work(worker: int) -> None:
        stream = source.stream(worker * 24, 24, 48)
        out = {"data": np.zeros((24, 3, 64, 128), np.uint8)}
        mine = given["data"][worker * 24 : worker * 24 + 24]
        for _ in range(3):
            stream.read(out)
        reading.wait()
        try:
            for _ in range(10**6):
                stream.read(out)
                assert (out["data"] == mine).all()
        except DataError as error:
            told.append(str(error))
        finally:
            stream.close()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    reading.wait()
    cut(index.stripes[1], KEPT)
    for thread in threads:
        thread.join()
    assert sorted("sample 18" in line or "sample 28" in line for line in told) == [True, True]


@linux
def test_a_signal_for_another_address_ends_the_process_as_before(tmp_path: Path, made: Any) -> None:
    program = f"""
import mmap, os, resource
import numpy as np
from demitasse_striped_io.mapping import Mapped
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
files = [os.open({str(made.stripe(0))!r}, os.O_RDONLY)]
maps = Mapped(files, [{made.index.lengths[0]}])
with open({str(tmp_path / "other")!r}, "w+b") as file:
    file.write(bytes(8192))
    file.flush()
    other = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
    print("before", flush=True)
    print(other[4096])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "before\n", done.stderr
    assert done.returncode == -7


@linux
def test_slots_are_free_again_and_a_set_with_too_many_stripes_is_not_mapped(
    made: Any, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [os.open(made.stripe(i), os.O_RDONLY) for i in range(4)]
    try:
        used = int((mapping._slots[:, 1] != 0).sum())
        maps = Mapped(files, made.index.lengths)
        assert int((mapping._slots[:, 1] != 0).sum()) == used + 4
        assert maps.whole()
        del maps
        assert int((mapping._slots[:, 1] != 0).sum()) == used
        with pytest.raises(OSError, match="cut off"):
            Mapped(files, [length + 1 for length in made.index.lengths])
        monkeypatch.setattr(mapping, "_slots", np.ones((3, 3), np.int64))
        with pytest.raises(OSError, match="maps are in use"):
            Mapped(files, made.index.lengths)
    finally:
        for file in files:
            os.close(file)


@pytest.mark.parametrize(
    "way", [{"verify": "always"}, {"verify": "never"}, {"memory": 0}, {"io": "direct"}, {"rate": 1e9}]
)
def test_only_what_was_checked_once_is_mapped(made: Any, opened: Opened, way: dict[str, Any]) -> None:
    store: Store = opened(made.path, **{"memory": 1, **way}).store
    store.read(np.arange(101), np.zeros(101 * 768, np.uint8))
    assert store._maps is None
