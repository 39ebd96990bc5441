"""The report of a training that waited for samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import Event
from demitasse_striped_io import advice
from demitasse_striped_io.advice import remedies
from demitasse_striped_io.listener import LEAST, WARMING, Listener
from demitasse_striped_io.options import cores
from demitasse_striped_io.source import Source

Opened = Callable[..., Source]


def run(
    listener: Listener, waited: float, iterations: int = WARMING + LEAST, first: float = 0.0
) -> None:
    """Run iterations of a second each, of which ``waited`` is for samples, plus ``first`` in the first
    ones."""
    listener(Event("start", 0))
    for i in range(iterations):
        phases = {"read": waited + (first if i < WARMING else 0.0), "forward": 0.1}
        listener(Event("iteration", i + 1, {"seconds": 1.0, "phases": phases}))
    listener(Event("end", iterations))


@pytest.mark.parametrize(
    ("waited", "iterations", "said"),
    [(0.04, 50, False), (0.06, 50, True), (0.9, WARMING + LEAST - 1, False)],
)
def test_it_speaks_above_5_percent_of_enough_iterations(
    waited: float, iterations: int, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener()
    run(listener, waited, iterations)
    assert bool(listener.lines) == said
    assert caplog.messages == listener.lines


def test_a_try_of_less_than_a_second_is_told_nothing() -> None:
    listener = Listener()
    for i in range(50):
        listener(Event("iteration", i + 1, {"seconds": 0.01, "phases": {"read": 0.009}}))
    listener(Event("end", 50))
    assert listener.lines == []


def test_the_first_iterations_count_for_nothing() -> None:
    listener = Listener()
    run(listener, 0.01, first=0.9)
    assert listener.lines == []


def test_for_samples_of_other_plugins_it_names_what_measures_and_converts_them() -> None:
    listener = Listener()
    run(listener, 0.25)
    (line,) = listener.lines
    assert "waited for samples 25.0% of the time (2.5 of 10.0 s)" in line
    assert "data convert SOURCE SET" in line and "data measure SOURCE" in line


def test_it_names_the_set_that_was_waited_for_most(
    made: Any, opened: Opened, read: Callable[..., Any]
) -> None:
    source, other = opened(made.path, verify="always"), opened(made.path)
    before = other.stream(0, 4, 4)
    before.waited = 9.0  # by something before this training
    listener = Listener()
    listener(Event("start", 0))
    stream = source.stream(0, 4, 4)
    stream.waited = 3.0
    for i in range(20):
        listener(Event("iteration", i, {"seconds": 1.0, "phases": {"read": 0.2}}))
    listener(Event("end", 20))
    assert f"20.0% of the time (3.6 of 18.0 s), most for {made.path}" in listener.lines[0]
    assert "verify=first does it once" in listener.lines[1]
    stream.close()
    before.close()


def test_what_was_asked_for_comes_first(made: Any, opened: Opened) -> None:
    (line,) = remedies(opened(made.path, rate=1000.0))
    assert "rate=1000 limits each stripe to 1000 B/s" in line
    if cores() > 1:
        assert any("threads=1 read" in line for line in remedies(opened(made.path, threads=1)))
    (line,) = remedies(opened(made.path, io="direct", ahead=4))
    assert "ahead=8" in line


def test_a_slow_stripe_is_named_with_its_file(made: Any, opened: Opened) -> None:
    source = opened(made.path, memory=1)
    source.store.tally[:, 1], source.store.tally[:, 2] = 1 << 23, 10**6
    source.store.tally[2, 2] = 10**8
    assert f"stripe 2 ({made.stripe(2)}) delivers 80.00 MiB/s" in remedies(source)[0]


def test_a_set_on_disk_may_lie_in_memory_in_runs_and_on_several_disks(
    made: Any, opened: Opened, tmp_path: Path, write: Callable[..., Any]
) -> None:
    memory, order, folders = remedies(opened(made.path, shuffle=True, memory=1))
    assert f"memory={101 * 768} keeps the set in memory" in memory
    assert "order=block" in order and f"all stripes are in {made.path}" in folders
    lines = remedies(opened(made.path, order="block", memory=1))
    assert not any("order=block" in line for line in lines)


def test_images_that_are_decoded_each_time_can_be_decoded_once(
    tmp_path: Path, write: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Any = type("Images", (), {})()
    source.options = type(
        "Asked", (), {"rate": 0, "verify": "first", "threads": 0, "height": 0, "ahead": 3}
    )
    source.store = type("Stored", (), {"index": type("Index", (), {"form": "encoded"})})
    source.store.tally = np.zeros((2, 4), np.int64)
    source.records = type("Records", (), {"direct": False, "seconds": {"reading": 1.0, "decoding": 9.0}})
    source.options.width = 0
    (line,) = advice.remedies(source)
    assert "takes 90% of the reading time" in line and "--raw --height H --width W" in line


def test_what_was_skipped_is_told_at_the_end(made: Any, opened: Opened, read: Any) -> None:
    """The log names each fault once, but does not show how much of the training lacked samples."""
    for stripe, at in ((0, 5), (0, 800), (2, 5)):
        data = bytearray(made.stripe(stripe).read_bytes())
        data[at] ^= 1
        made.stripe(stripe).write_bytes(data)
    source, whole = opened(made.path, on_error="skip", memory=0), opened(made.path, on_error="stop")
    listener = Listener()
    run(listener, 0.0)
    assert listener.lines == [] and whole.faults.skipped == 0
    listener(Event("start", 0))
    read(source, 0, 101)
    read(source, 101, 101)
    listener(Event("end", 2))
    assert listener.lines == [
        f"{made.path}: 3 of 101 samples could not be read (2 on stripe 0, 1 on stripe 2); others took "
        f"their place 6 times"
    ]
    run(listener, 0.0)
    assert listener.lines == []


def test_a_training_that_waits_is_told_what_to_change(
    tmp_path: Path,
    made: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However long a busy machine computes meanwhile, some of the reading is waited for.
    for name in ("SHORTEST", "LIMIT"):
        monkeypatch.setattr(f"demitasse_striped_io.listener.{name}", 0.0)
    net = tmp_path / "net.prototxt"
    net.write_text("""
        layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TRAIN }
                data_param { source: "set?rate=50000&memory=1" batch_size: 10 } }
        layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
                inner_product_param { num_output: 101 weight_filler { type: "xavier" std: 0.0001 } } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
    """)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(
        'net: "net.prototxt" base_lr: 1e-9 lr_policy: "fixed" max_iter: 16 snapshot_after_train: false'
    )
    plugins = ["striped_io", "caffe", "reference", "training", "snapshots"]
    with demitasse.compose(plugins=plugins) as runtime:
        runtime.trainer(solver).run()
    said = caplog.messages
    assert any(line.startswith("waited for samples") and str(made.path) in line for line in said)
    assert any("rate=50000 limits each stripe to 48.83 KiB/s" in line for line in said)
