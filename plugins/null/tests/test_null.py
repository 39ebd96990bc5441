"""The null backend offers every operation, computes none, and takes no time."""

from __future__ import annotations

import importlib.metadata
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import (
    PLAIN,
    Bucket,
    DescriptionError,
    FlatMemory,
    Group,
    Layout,
    Place,
    Request,
    Span,
    Team,
    TensorSpec,
    chain,
    hookimpl,
)
from demitasse.operations import VOCABULARY, Operation
from demitasse_null import pace, plugin

BLOCKED = Layout("NCHW8c", blocks=((1, 8),))


def test_the_entry_point_loads_the_plugin() -> None:
    (point,) = importlib.metadata.entry_points(group="demitasse.plugins", name="null")
    assert point.load() is plugin


def test_the_manifest_declares_the_hooks_and_is_used_only_when_named() -> None:
    manifest = tomllib.loads((Path(plugin.__file__).parent / "plugin.toml").read_text())
    marker = f"{hookimpl.project_name}_impl"
    hooks = {name for name, value in vars(plugin).items() if hasattr(value, marker)}
    assert set(manifest["roles"]) == hooks == {"kernels", "allocator", "gradient_sync"}
    assert not manifest["automatic"]


@pytest.mark.parametrize(
    "operation",
    [*VOCABULARY.values(), Operation("fold", "", (), (), lambda shapes, attributes: ())],
    ids=lambda operation: operation.name,
)
def test_every_operation_is_offered_in_the_layouts_that_its_tensors_have(
    operation: Operation,
) -> None:
    inputs = (TensorSpec((1, 8, 2, 2), "float32", BLOCKED), None)
    outputs = (TensorSpec((1, 8, 2, 2), "float32"), None)
    request = Request(operation, inputs, outputs, {}, Place("machine"))
    (candidate,) = plugin.kernels(request)
    assert candidate.kernel == "nothing"
    assert candidate.input_layouts == (BLOCKED, PLAIN)
    assert candidate.output_layouts == (PLAIN, PLAIN)
    assert (candidate.workspace, candidate.seconds) == (0, 0.0)


def test_nothing_is_computed() -> None:
    spec = TensorSpec((3,), "float32")
    request = Request(VOCABULARY["relu"], (spec,), (spec,), {}, Place("machine"))
    (candidate,) = plugin.kernels(request)
    x, y = np.ones(3, np.float32), np.zeros(3, np.float32)
    work = candidate.bind([x], [y], None)
    work()
    assert x.tolist() == [1, 1, 1]
    assert y.tolist() == [0, 0, 0]
    (other,) = plugin.kernels(request)
    assert other.bind([y], [x], None) is work, "one function serves all"


def test_with_a_peak_kernels_take_the_time_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's clock advances only during sleeps, each of which is 10 us too long."""
    now, slept = 0.0, list[float]()

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds + 10e-6

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(pace.CLOCK, "owed", 0.0)
    request = product(5, 20, 10)
    (candidate,) = plugin.kernels(request, {"peak": "100 MFLOP/s"})
    assert (candidate.kernel, candidate.seconds) == ("waiting", pytest.approx(2000 / 100e6, rel=0.1))
    work = candidate.bind([], [], None)
    for _ in range(100):
        work()
    assert now == pytest.approx(100 * candidate.seconds, abs=pace.SHORTEST), "lateness does not add up"
    assert len(slept) <= 100
    (short,) = plugin.kernels(request, {"peak": "1 GFLOP/s"})
    assert short.seconds is not None
    assert short.seconds < pace.SHORTEST
    slept.clear()
    start, work = now, short.bind([], [], None)
    for _ in range(100):
        work()
    assert now - start == pytest.approx(100 * short.seconds, abs=2 * pace.SHORTEST)
    assert 0 < len(slept) < 50, "short waits are made together"


def product(n: int, inputs: int, outputs: int) -> Request:
    """Return a request for a matrix product without biases."""
    x, w, y = (TensorSpec(s, "float32") for s in ((n, inputs), (outputs, inputs), (n, outputs)))
    return Request(VOCABULARY["inner_product"], (x, w, None), (y,), {}, Place("machine"))


@pytest.mark.parametrize("name", ["inner_product", "convolution", "concat", "momentum_update"])
def test_flops_are_the_vocabularys(name: str) -> None:
    """Each rule receives shapes by operand: None if absent, and lists for variadic operands."""
    operation = VOCABULARY[name]
    given: list[Any] = []
    watched = replace(operation, flops=lambda shapes, attributes: given.append(shapes) or 3.0)
    four = TensorSpec((2, 3, 4, 5), "float32")
    inputs = (four, four, None) if name != "concat" else (four, four, four)
    assert pace.flops(Request(watched, inputs, (four,), {}, Place("machine"))) == 3.0
    (shapes,) = given
    names = [operand.name for operand in operation.inputs]
    if name == "concat":
        assert shapes[names[0]] == [four.shape] * 3
    else:
        assert [shapes[n] for n in names[:3]] == [four.shape, four.shape, None]
    without = replace(operation, flops=None)
    assert pace.flops(Request(without, inputs, (four, None), {}, Place("machine"))) == 120


@pytest.mark.parametrize(
    ("options", "named"),
    [({"peek": "1 TFLOP/s"}, "peak"), ({"peak": 4e12}, "4 TFLOP/s"), ({"peak": "4 GB/s"}, "peak")],
)
def test_options_that_are_none_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(DescriptionError, match=named):
        plugin.kernels(product(1, 1, 1), options)


def test_memory_is_zeroed_aligned_bounded_and_counted() -> None:
    assert plugin.allocator("ldm", {}) is None
    allocator = plugin.allocator("host", {})
    assert allocator is not None
    memory = allocator.allocate(100)
    view = memory.view(64, (3, 3), "float32")
    assert view.ctypes.data % 64 == 0
    assert not view.any()
    view[...] = 1
    assert memory.view(64, (9,), "float32").sum() == 9
    with pytest.raises(ValueError, match="40 bytes at 64 do not fit in a block of 100"):
        memory.view(64, (10,), "float32")
    memory.close()
    assert (allocator.space, allocator.allocations, allocator.bytes) == ("host", 1, 100)


def test_siblings_update_without_each_other() -> None:
    team = Team(2, [FlatMemory(np.zeros(4), np.full(4, i + 1.0)) for i in range(2)])
    sync = plugin.gradient_sync(Group(("thread",), 1, team, "float64", {}))
    memory = team.memory[1]
    sync.bind(memory)
    assert (sync.index, sync.size) == (1, 2)

    def update(span: Span):  # type: ignore[no-untyped-def]
        def work() -> None:
            memory.parameters[span.start : span.stop] += memory.gradients[span.start : span.stop]

        return work

    work = chain([sync], Bucket(0, Span(1, 3), ("layer",)), update)
    assert work is not None
    work()
    assert memory.parameters.tolist() == [0, 2, 2, 0]
    assert team.memory[0].parameters.tolist() == [0, 0, 0, 0]


def test_processes_need_no_team() -> None:
    sync = plugin.gradient_sync(Group(("node",), 3, None, "float32", {}))
    assert (sync.index, sync.size) == (3, 1)
