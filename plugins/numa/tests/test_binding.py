"""Threads that compute with a domain's memory are bound to the domain, and get their processors back at
the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import demitasse
from demitasse_numa import machine, pages
from demitasse_numa.binding import bound
from demitasse_numa.topology import Domain

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind a thread"),
    pytest.mark.skipif(
        hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) < 2,
        reason="of one processor nothing is left out",
    ),
]
ROOT = Path(__file__).parents[3]
LEVELS = """schema = 1
name = "one"
fingerprint = "any"
plugins = ["caffe", "training", "datasets", "reference", "snapshots", "numa"]
[[level]]
name = "numa"
memory = [{ space = "host", at = "numa:0" }]
"""


@pytest.fixture
def one() -> Domain:
    """A domain with the first of this thread's processors."""
    return Domain(0, 0, frozenset([min(os.sched_getaffinity(0))]), frozenset(), (0,))


@pytest.mark.skipif(pages.why_not() is not None, reason=str(pages.why_not()))
def test_an_application_has_its_thread_back_when_the_runtime_is_closed(
    one: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = machine.this_machine("auto")
    alone = type(real)(**{**vars(real), "domains": (one,)})
    monkeypatch.setattr(machine, "this_machine", lambda library="auto": alone)
    path = tmp_path / "one.toml"
    path.write_text(LEVELS)
    before = os.sched_getaffinity(0)
    with demitasse.compose(path) as runtime:
        trainer = runtime.trainer(ROOT / "examples/digits/digits_solver.prototxt")
        trainer.step(1)
        assert os.sched_getaffinity(0) == one.cpus
    assert os.sched_getaffinity(0) == before
    with demitasse.compose(path) as runtime:
        net = runtime.net(ROOT / "examples/digits/digits_train_test.prototxt", phase="test")
        net.forward()
        assert os.sched_getaffinity(0) == one.cpus
        net.close()
        assert os.sched_getaffinity(0) == before


def test_the_last_who_had_a_thread_bound_gives_its_processors_back(one: Domain) -> None:
    before = os.sched_getaffinity(0)
    first, second = bound(one), bound(one)
    first()
    assert os.sched_getaffinity(0) == one.cpus
    second()
    assert os.sched_getaffinity(0) == before


def test_processors_that_the_application_chose_meanwhile_stay(one: Domain) -> None:
    before = os.sched_getaffinity(0)
    other = {max(before)}
    undo = bound(one)
    try:
        os.sched_setaffinity(0, other)
        undo()
        assert os.sched_getaffinity(0) == other
    finally:
        os.sched_setaffinity(0, before)
