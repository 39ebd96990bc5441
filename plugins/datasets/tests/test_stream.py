"""Streams: the global order over workers, read-ahead, errors, and threads that end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import DataError, DataSpec, Field, permutation
from demitasse_datasets import stream as stream_module
from demitasse_datasets.order import Order
from demitasse_datasets.plugin import data_source
from demitasse_datasets.samples import ArraySamples
from demitasse_datasets.source import Source


class Numbered:
    """Samples that contain their own number; ``failing`` ones raise, and each waits for ``gate``."""

    name = "numbered"
    fields = {"data": Field((), "int64")}

    def __init__(self, size=100, failing=(), gate=None):
        self.size, self.failing, self.gate = size, failing, gate
        self.gathered = []

    def gather(self, numbers, out, first):
        if self.gate is not None:
            self.gate.acquire()
        for number in numbers:
            if number in self.failing:
                raise OSError(f"disk error at {number}")
        self.gathered.append(list(numbers))
        out["data"][...] = numbers


def read(stream, count):
    out = np.empty(count, np.int64)
    stream.read({"data": out})
    return out.tolist()


@st.composite
def divisions(draw):
    """A data size, a batch divided unevenly over workers, a number of steps, and where to kill."""
    size = draw(st.integers(1, 40))
    shares = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    steps = draw(st.integers(1, 12))
    return size, shares, steps, draw(st.integers(0, steps)), draw(st.integers(0, 2**32))


def in_an_array(size):
    """The same samples in an array, which are gathered when a batch is requested."""
    return ArraySamples("numbered", {"data": np.arange(size)})


@settings(max_examples=examples(100))
@given(divisions(), st.sampled_from([Numbered, in_an_array]))
def test_any_division_over_workers_killed_and_resumed_reads_the_same_global_order(division, samples):
    size, shares, steps, killed, seed = division
    batch = sum(shares)
    source = Source(samples(size), True, seed)
    offsets = [sum(shares[:worker]) for worker in range(len(shares))]
    streams = [source.stream(o, n, batch) for o, n in zip(offsets, shares, strict=True)]
    order = []
    for step in range(steps):
        if step == killed:
            cursors = [stream.cursor for stream in streams]
            source.close()
            source = Source(samples(size), True, seed)
            streams = [source.stream(c, n, batch) for c, n in zip(cursors, shares, strict=True)]
        for stream, count in zip(streams, shares, strict=True):
            order += read(stream, count)
    source.close()

    whole = Source(Numbered(size), True, seed)
    alone = read(whole.stream(0, steps * batch, steps * batch), steps * batch)
    whole.close()
    assert order == alone
    for start in range(0, len(order) - size + 1, size):
        assert sorted(order[start : start + size]) == list(range(size))


def test_epochs_are_permuted_differently_and_seeds_too():
    first, second = Order(50, True, 1).numbers(0, 100).reshape(2, 50).tolist()
    assert first != second
    assert first != Order(50, True, 2).numbers(0, 50).tolist()
    assert first != list(range(50))


def test_an_epoch_far_out_is_reached_at_once():
    order = Order(7, True, 3)
    far = 7 * 10**15
    assert sorted(order.numbers(far, 7).tolist()) == list(range(7))


def test_the_cursor_moves_by_the_step_and_may_be_set():
    source = Source(Numbered(), False, 0)
    stream = source.stream(4, 2, 10)
    assert read(stream, 2) == [4, 5]
    assert stream.cursor == 14
    assert read(stream, 2) == [14, 15]
    stream.cursor = 90
    assert read(stream, 2) == [90, 91]
    assert stream.cursor == 100
    source.close()


def test_runs_are_prepared_ahead_and_waiting_is_counted():
    gate = threading.Semaphore(0)
    samples = Numbered(gate=gate)
    source = Source(samples, False, 0)
    stream = source.stream(0, 1, 1)
    assert stream.waited == 0.0
    threading.Timer(0.05, gate.release).start()
    assert read(stream, 1) == [0]
    first = stream.waited
    assert 0.0 < first < 5.0
    gate.release(2)
    assert read(stream, 1) + read(stream, 1) == [1, 2]
    assert stream.waited >= first
    gate.release(100)
    source.close()


def test_the_read_ahead_stays_within_its_ring():
    samples = Numbered()
    source = Source(samples, False, 0)
    stream = source.stream(0, 10, 10)
    read(stream, 10)
    source.close()
    assert 1 <= len(samples.gathered) <= 4


def test_a_sample_that_cannot_be_read_is_named_where_it_is_read_and_runs_before_it_are_whole():
    source = Source(Numbered(size=10, failing={7}), False, 0)
    stream = source.stream(10, 3, 3)
    assert read(stream, 3) == [0, 1, 2]
    assert read(stream, 3) == [3, 4, 5]
    for _ in range(2):
        with pytest.raises(DataError) as caught:
            read(stream, 3)
        assert str(caught.value) == (
            "numbered: number 7 of epoch 1, sample 7 cannot be read: OSError: disk error at 7"
        )
        assert isinstance(caught.value.__cause__, OSError)
        assert stream.cursor == 16
    source.close()


def test_an_order_that_cannot_be_made_is_an_error_too(monkeypatch):
    def broken(seed, epoch, size):
        raise ValueError("no permutation")

    monkeypatch.setattr("demitasse_datasets.order.permutation", broken)
    source = Source(Numbered(size=10), True, 0)
    stream = source.stream(23, 3, 3)
    with pytest.raises(DataError, match=r"number 3 of epoch 2 cannot be read.*no permutation"):
        read(stream, 3)
    source.close()


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ({"image": np.empty(3)}, ["unknown field 'image'", "data"]),
        ({"data": np.empty(4)}, ["'data'", "(3,)", "(4,)"]),
        ({"data": np.empty((3, 1))}, ["'data'", "(3,)", "(3, 1)"]),
    ],
)
def test_what_is_read_into_must_fit_and_the_run_is_not_lost(out, words):
    source = Source(Numbered(), False, 0)
    stream = source.stream(0, 3, 3)
    with pytest.raises(DataError) as caught:
        stream.read(out)
    for word in words:
        assert word in str(caught.value)
    assert read(stream, 3) == [0, 1, 2]
    source.close()


def test_closing_ends_the_thread_when_it_waits_for_a_free_run():
    before = set(threading.enumerate())
    source = Source(Numbered(), False, 0)
    stream = source.stream(0, 1, 1)
    assert set(threading.enumerate()) - before
    stream.close()
    assert set(threading.enumerate()) == before
    stream.close()
    with pytest.raises(DataError, match="numbered: the stream is closed"):
        read(stream, 1)
    source.close()
    source.close()
    with pytest.raises(DataError, match="numbered: the source is closed"):
        source.stream(0, 1, 1)


def test_closing_wakes_a_reader_that_waits():
    gate = threading.Semaphore(0)
    source = Source(Numbered(gate=gate), False, 0)
    stream = source.stream(0, 1, 1)
    raised = []

    def reader():
        try:
            read(stream, 1)
        except DataError as error:
            raised.append(str(error))

    thread = threading.Thread(target=reader)
    thread.start()
    closer = threading.Thread(target=stream.close)
    closer.start()
    thread.join(10)
    assert raised == ["numbered: the stream is closed"]
    gate.release(10)
    closer.join(10)
    assert not closer.is_alive()


def test_a_stream_that_nobody_closes_is_collected_and_its_thread_ends():
    before = set(threading.enumerate())
    source = Source(Numbered(), False, 0)
    stream = source.stream(0, 1, 1)
    read(stream, 1)
    (thread,) = set(threading.enumerate()) - before
    gone = weakref.ref(stream)
    del stream
    gc.collect()
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()


def test_open_streams_do_not_keep_the_process_alive():
    program = (
        "import numpy as np\n"
        "from demitasse import Field\n"
        "from demitasse_datasets.source import Source\n"
        "class Zeros:\n"
        "    name, fields, size = 'zeros', {'data': Field((2,), 'float64')}, 4\n"
        "    def gather(self, numbers, out, first): out['data'][...] = 0\n"
        "stream = Source(Zeros(), True, 0).stream(0, 3, 3)\n"
        "stream.read({'data': np.empty((3, 2))})\n"
        "print('read')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "read\n", "")


def test_two_sources_of_the_same_arrays_shuffle_independently():
    array = np.arange(20)
    specs = [DataSpec({"data": array}, shuffle=True, seed=seed) for seed in (1, 1, 2)]
    sources = [data_source(spec=spec) for spec in specs]
    runs = [read(source.stream(0, 20, 20), 20) for source in sources]
    for source in sources:
        source.close()
    assert runs[0] == runs[1] != runs[2]


def test_what_is_in_memory_is_read_without_a_thread():
    before = threading.active_count()
    source = Source(in_an_array(10), False, 0)
    stream = source.stream(0, 4, 4)
    assert (read(stream, 4), stream.cursor, threading.active_count()) == ([0, 1, 2, 3], 4, before)
    stream.cursor = 8
    assert read(stream, 4) == [8, 9, 0, 1]
    with pytest.raises(DataError, match="of a run has shape"):
        read(stream, 3)
    source.close()
    with pytest.raises(DataError, match="the stream is closed"):
        read(stream, 4)


def test_what_is_cast_in_portions_is_all_there(monkeypatch):
    monkeypatch.setattr("demitasse_datasets.stream.PORTION", 100)
    columns = np.random.default_rng(0).integers(0, 256, (50, 30), np.uint8)
    source = Source(ArraySamples("bytes", {"data": columns}), True, 3)
    out = np.zeros((20, 30), np.float32)
    source.stream(7, 20, 20).read({"data": out})
    source.close()
    assert (out == columns[permutation(3, 0, 50)[7:27]]).all()


@pytest.mark.parametrize("kind", ["float32", "float64", "uint8"])
def test_what_several_threads_gather_is_all_there(kind, monkeypatch):
    monkeypatch.setattr(stream_module, "SHARE", 100)
    monkeypatch.setattr(stream_module, "PORTION", 50)
    monkeypatch.setattr(stream_module, "threads", lambda: 5)
    divided = []
    whole = stream_module.for_each
    monkeypatch.setattr(
        stream_module, "for_each", lambda *about: divided.append(about[1]) or whole(*about)
    )
    values = np.random.default_rng(2).integers(0, 200, (60, 3, 2)).astype(kind)
    stream = Source(ArraySamples("arrays", {"data": values}), shuffle=True, seed=4).stream(0, 23, 23)
    out = np.empty((23, 3, 2), np.float32)
    numbers = Order(60, True, 4)
    for first in range(0, 115, 23):
        stream.read({"data": out})
        assert np.array_equal(out, values[numbers.numbers(first, 23)])
    assert divided == [5] * 5
    stream.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_reads_on_without_the_threads_that_it_has_not():
    """In a separate process, which has no other threads that a fork might interrupt."""
    program = """
import os, signal, time
import numpy as np
from demitasse_datasets import decoders, stream
from demitasse_datasets.samples import ArraySamples
from demitasse_datasets.source import Source
stream.SHARE, stream.threads = 100, lambda: 4
values = np.arange(240.0).reshape(40, 6)
out = np.empty((20, 6))
samples = Source(ArraySamples("arrays", {"data": values}), False, 0).stream(0, 20, 20)
samples.read({"data": out})
list(decoders.decoders().map(time.sleep, [0.2] * decoders.threads()))  # all of its threads are there
time.sleep(0.2)  # and wait for more
child = os.fork()
if not child:
    signal.alarm(30)
    samples.read({"data": out})
    os._exit(0 if (out == values[20:]).all() else 3)
_, status = os.waitpid(child, 0)
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    assert subprocess.run(command, timeout=90, check=False).returncode == 0


def test_what_lies_in_a_file_is_read_ahead(tmp_path):
    np.save(tmp_path / "columns.npy", np.arange(10))
    mapped = np.load(tmp_path / "columns.npy", mmap_mode="r")
    source = Source(ArraySamples("a file", {"data": mapped[2:]}), False, 0)
    before = threading.active_count()
    stream = source.stream(0, 4, 4)
    assert threading.active_count() == before + 1
    assert read(stream, 4) == [2, 3, 4, 5]
    stream.close()
