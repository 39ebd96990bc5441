"""The timeline file, as Chrome's trace viewer reads it."""

from __future__ import annotations

import json
import math
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from demitasse import Event
from demitasse_cli.main import main
from demitasse_cli.timeline import Timeline


def test_a_run_is_drawn_with_its_phases_and_one_iteration_s_operations(
    runtime: Any, tmp_path: Path
) -> None:
    assert main(["train", "s.prototxt", "--timeline", "t.json"]) == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    drawn = [event for event in events if event["ph"] == "X"]
    assert [e["name"] for e in drawn if e["cat"] == "iteration"] == [
        f"iteration {number}" for number in range(1, 5)
    ]
    phases = [e for e in drawn if e["cat"] == "phase"]
    assert [e["name"] for e in phases[:4]] == ["read", "forward", "backward", "synchronise"]
    for before, after in pairwise(phases[:4]):
        assert abs(before["ts"] + before["dur"] - after["ts"]) < 0.01
    assert [e["name"] for e in drawn if e["cat"] in ("test", "snapshot")] == [
        "test",
        "test",
        "snapshot",
    ]
    operations = [e for e in drawn if e["cat"] in ("forward", "backward")]
    assert [(e["name"], e["dur"]) for e in operations] == [
        ("conv1", 2000.0),
        ("relu1", 1000.0),
        ("relu1", 1000.0),
        ("conv1", 3000.0),
        ("conv1", 3000.0),
    ]
    assert operations[0]["args"]["kernel"] == "direct"
    assert runtime.made.profiled == 1


@pytest.mark.parametrize("uptime", [0.1, 66_601.3, 9e6 + 0.7])
def test_neighbours_do_not_overlap_by_rounding(uptime: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Perfetto reads whole nanoseconds, and omits an event that overlaps the one before. This must also
    work after days of uptime, when the clock's numbers are large."""
    monkeypatch.setattr(time, "perf_counter", lambda: uptime)
    entry: Any = SimpleNamespace(
        kernel="direct", plugin="cpu", operation="convolution", flops=1.0, bytes=1.0,
        layer="conv1", phase="forward",
    )  # fmt: skip
    timeline = Timeline()
    timeline.profile([(entry, 1.00000051e-6 / 3)] * 200)
    drawn = [event for event in timeline.events if event["ph"] == "X"]
    ends = [(round(e["ts"] * 1e3), round((e["ts"] + e["dur"]) * 1e3)) for e in drawn]
    assert len(drawn) == 200 and all(before[1] == after[0] for before, after in pairwise(ends))


def test_synchronisations_that_go_on_at_once_have_a_row_each() -> None:
    """Broadcasts may all be posted first: a viewer would omit events that overlap in a row."""
    timeline = Timeline()
    now = time.perf_counter()
    spans = [
        ("c", now + 3, now + 4),
        ("a", now, now + 2),
        ("b", now + 1, now + 3),
        ("d", now + 4, now + 5),
    ]
    values = {"seconds": 5.0, "loss": 0.0, "rate": 0.1, "phases": {}, "spans": lambda: spans}
    timeline(Event("iteration", 1, values))
    rows = {e["name"]: e["tid"] for e in timeline.events if e.get("cat") == "synchronisation"}
    assert rows == {"a": 3, "b": 4, "c": 3, "d": 3}
    named = [e for e in timeline.events if e["name"] == "thread_name" and e["pid"] == 1]
    assert {e["tid"]: e["args"]["name"] for e in named} == {
        1: "iterations", 2: "phases", 3: "synchronisation", 4: "synchronisation",
    }  # fmt: skip


def test_without_the_option_nothing_is_profiled(runtime: Any) -> None:
    assert main(["train", "s.prototxt"]) == 0
    assert runtime.made.profiled == 0


def test_a_timeline_is_json_whatever_a_loss_is(tmp_path: Path) -> None:
    """NaN, where no loss is known, is no JSON; scores are numbers, not a text of them."""
    timeline = Timeline()
    values = {"seconds": 1.0, "loss": math.nan, "rate": 0.1, "phases": {}}
    timeline(Event("iteration", 1, values))
    timeline(Event("test", 1, {"scores": {"accuracy": 0.5}}))
    timeline.write(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text(), parse_constant=pytest.fail)["traceEvents"]
    told = {event["name"]: event["args"] for event in events if event["ph"] == "X"}
    assert told["iteration 1"] == {"loss": None, "rate": 0.1}
    assert told["test"] == {"scores": {"accuracy": 0.5}}
