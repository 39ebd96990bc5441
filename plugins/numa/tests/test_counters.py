"""Memory controllers' counters and triads: what the system's files mean, and what is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from demitasse_numa import pages
from demitasse_numa.bandwidth import matrix, table
from demitasse_numa.counters import Counter, counters
from demitasse_numa.diagnosis import findings
from demitasse_numa.machine import this_machine
from demitasse_numa.topology import topology

Make = Callable[..., Path]
IMC = "sys/bus/event_source/devices/uncore_imc_{}"


def test_intels_memory_controllers_are_found(machine: Make) -> None:
    about = {}
    for i in range(2):
        unit = IMC.format(i)
        about |= {
            f"{unit}/type": f"{12 + i}",
            f"{unit}/cpumask": "0,14",
            f"{unit}/format/event": "config:0-7",
            f"{unit}/format/umask": "config:8-15",
            f"{unit}/events/cas_count_read": "event=0x04,umask=0x03",
            f"{unit}/events/cas_count_read.scale": "6.103515625e-5",
            f"{unit}/events/cas_count_read.unit": "MiB",
            f"{unit}/events/cas_count_write": "event=0x04,umask=0x0c",
        }
    about["sys/bus/event_source/devices/cpu/type"] = "4"
    found = counters(machine(["0-13", "14-27"], more=about))
    assert len(found.events) == 8
    assert found.events[0] == Counter("uncore_imc_0", 12, 0x304, 0, True, 64.0)
    assert found.events[2] == Counter("uncore_imc_0", 12, 0xC04, 0, False, 64.0)
    assert {event.cpu for event in found.events} == {0, 14}


def test_a_machine_without_counters_says_so(machine: Make) -> None:
    found = counters(machine(["0"]))
    assert found.events == ()
    assert "no counters of memory controllers" in found.reason


@pytest.mark.skipif(not pages.available(), reason=str(pages.why_not()))
def test_a_triad_is_measured_for_each_pair_of_domains() -> None:
    here = this_machine()
    rates = matrix(here, 2**20, 1)
    every = len(here.domains) + len(here.others)
    assert len(rates) == len(here.domains) * every
    assert all(rate > 0 for rate in rates.values())
    rows = table(rates)
    assert rows[0][:2] == ["GB/s", "numa:0"]
    assert len(rows) == len(here.domains) + 1


def test_the_diagnosis_says_what_keeps_threads_and_memory_away(
    machine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_PROC_BIND", "spread")
    root = machine(["0", "1"], more={"proc/self/status": "Mems_allowed_list:\t0"})
    texts = [(f.level, f.subject, f.message) for f in findings(machine=topology(root))]
    assert texts[0][2].startswith("2 with processors")
    if pages.available():
        assert any(level == "note" and "uses node 0's" in text for level, _, text in texts)
        assert any(subject == "OMP_PROC_BIND" for _, subject, _ in texts)
