"""The null backend offers every operation, computes none, and keeps nobody waiting."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import numpy as np
import pytest

from demitasse import (
    PLAIN,
    Bucket,
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
from demitasse_null import plugin

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
    with pytest.raises(ValueError, match="reshape"):
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
