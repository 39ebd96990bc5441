"""Where pages are: which are counted as near and far, compared with the system's report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from demitasse import Event
from demitasse_numa import pages
from demitasse_numa.allocator import DomainAllocator
from demitasse_numa.listener import Listener
from demitasse_numa.machine import this_machine
from demitasse_numa.report import placement, process_pages
from demitasse_numa.topology import Domain, topology

Make = Callable[..., Path]
placed = pytest.mark.skipif(not pages.available(), reason=str(pages.why_not()))


@placed
def test_pages_are_near_in_their_solvers_domain_and_remote_in_another() -> None:
    machine = this_machine()
    here = machine.domains[0]
    elsewhere = Domain(9, 9, frozenset(), frozenset(), (9,))
    block = DomainAllocator("numa:0", here).allocate(10 * pages.PAGE)
    whole = block.view(0, (10 * pages.PAGE,), "uint8")
    arrays = [
        (0, "a", whole[: 4 * pages.PAGE]),
        (0, "b", whole[2 * pages.PAGE : 6 * pages.PAGE]),
        (0, "empty", whole[:0]),
        (1, "c", whole[6 * pages.PAGE :]),
    ]
    found = placement(arrays, machine, {0: here, 1: elsewhere})
    assert [(blob.name, blob.pages, blob.remote) for blob in found.blobs] == [
        ("a", 4, 0.0),
        ("b", 4, 0.0),
        ("empty", 0, 0.0),
        ("c", 4, 1.0),
    ]
    assert found.workers == {0: (6, 6), 1: (0, 4)}  # memory that blobs share counts once
    assert found.remote == pytest.approx(0.4)
    assert "60.0% of 10 pages" in found.line()
    assert found.to_dict()["workers"]["1"] == {"domain": 9, "near": 0, "pages": 4}


@placed
def test_pages_that_nobody_touched_lie_nowhere() -> None:
    import mmap

    raw = np.frombuffer(mmap.mmap(-1, 4 * pages.PAGE), np.uint8)
    assert pages.nodes_of(raw) == {-1: 4}
    found = placement([(0, "new", raw)], this_machine(), {})
    assert found.pages == 0
    assert found.remote == 0.0


def test_a_processs_pages_are_summed_by_node(tmp_path: Path) -> None:
    (tmp_path / "numa_maps").write_text(
        "55bd8922000 default file=/bin/x anon=1 dirty=1 N2=1 kernelpagesize_kB=4\n"
        "7f0000000000 bind:0 anon=600 dirty=600 N0=500 N1=100 kernelpagesize_kB=4\n"
        "7f1000000000 default anon=2 dirty=2 N1=2 kernelpagesize_kB=2048\n"
        "7f2000000000 default file=/lib/y mapped=9 N3=9 kernelpagesize_kB=4\n"
    )
    assert process_pages(tmp_path) == {0: 500, 1: 100 + 2 * 512, 2: 1}


@placed
def test_the_listener_reports_trainings_in_several_domains_only(
    machine: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    array = np.ones(5000)
    event = Event("end", 3, {"arrays": lambda: iter([(0, "x", array), (1, "y", array)])})
    listener = Listener()
    listener(Event("iteration", 1, {}))
    one = topology(machine(["0-1"]))
    monkeypatch.setattr("demitasse_numa.listener.this_machine", lambda: one)
    listener(event)
    assert listener.found is None
    two = topology(machine(["0", "1"]))
    monkeypatch.setattr("demitasse_numa.listener.this_machine", lambda: two)
    listener(event)
    assert listener.found is not None
    assert "pages" in caplog.text
