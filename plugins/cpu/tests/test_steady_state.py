"""What holds for every kernel, step after step: the same bits, no memory allocated, concurrent
threads."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fused_words import FUSED

from demitasse.operations import VOCABULARY
from demitasse_cpu.kernels import FACTORIES

pytestmark = pytest.mark.all_cores

Samples = dict[str, tuple[list[Any], dict[str, Any]]]
BOOKKEEPING = 4096  # bytes: queues and counters of a call


def bits(buffers: list[Any]) -> list[bytes]:
    return [b"" if buffer is None else buffer.tobytes() for buffer in buffers]


def test_the_samples_are_all_that_is_served(samples: Samples) -> None:
    """These are the core's operations. Those that plugins add are tested where the plugins meet."""
    assert set(samples) == set(FACTORIES) & {*VOCABULARY, *FUSED}


def test_every_run_gives_the_same_bits(samples: Samples, bound: Callable[..., Any]) -> None:
    for name, (inputs, attributes) in samples.items():
        runs = []
        for _ in range(3):
            work, given, outputs = bound(name, inputs, attributes)
            work()
            runs.append(bits([*given, *outputs]))
        assert runs[0] == runs[1] == runs[2], name


def test_a_second_call_gives_the_same_bits(samples: Samples, bound: Callable[..., Any]) -> None:
    for name, (inputs, attributes) in samples.items():
        work, _, outputs = bound(name, inputs, attributes)
        work()
        first = bits(outputs)
        work()
        assert bits(outputs) == first, name


def test_no_call_takes_memory(samples: Samples, bound: Callable[..., Any]) -> None:
    for name, (inputs, attributes) in samples.items():
        work, _, _ = bound(name, inputs, attributes)
        work()
        tracemalloc.start()
        try:
            for _ in range(3):
                before, _ = tracemalloc.get_traced_memory()
                tracemalloc.reset_peak()
                work()
                _, peak = tracemalloc.get_traced_memory()
                assert peak - before < BOOKKEEPING, name
        finally:
            tracemalloc.stop()


def test_two_threads_compute_at_once(samples: Samples, bound: Callable[..., Any]) -> None:
    expected = {}
    for name, (inputs, attributes) in samples.items():
        work, given, outputs = bound(name, inputs, attributes)
        work()
        expected[name] = bits([*given, *outputs])
    found: list[dict[str, list[bytes]]] = [{}, {}]
    together = threading.Barrier(2)

    def worker(mine: dict[str, list[bytes]]) -> None:
        for name, (inputs, attributes) in samples.items():
            work, given, outputs = bound(name, inputs, attributes)
            together.wait(60)
            work()
            mine[name] = bits([*given, *outputs])

    workers = [threading.Thread(target=worker, args=(mine,)) for mine in found]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join(60)
    assert found[0] == expected
    assert found[1] == expected


def test_operands_may_lie_in_an_arena(
    samples: Samples, bound: Callable[..., Any], asked: Callable[..., Any]
) -> None:
    """Views at offsets of 64 bytes, as a plan provides them, instead of separate arrays."""
    for name, (inputs, attributes) in samples.items():
        work, given, outputs = bound(name, inputs, attributes)
        work()
        expected = bits([*given, *outputs])
        request, candidate = asked(name, inputs, attributes)
        sizes = [s.nbytes for s in (*request.inputs, *request.outputs) if s is not None]
        arena = np.full(sum(sizes) + candidate.workspace + 64 * (len(sizes) + 3), 85, np.uint8)
        at = -arena.ctypes.data % 64
        views = []
        for spec in (*request.inputs, *request.outputs):
            assert spec is not None
            view = arena[at : at + spec.nbytes].view(spec.dtype).reshape(spec.shape)
            at += -(-spec.nbytes // 64) * 64
            views.append(view)
        for view, x in zip(views, inputs, strict=False):
            view[...] = x
        room = arena[at : at + candidate.workspace] if candidate.workspace else None
        candidate.bind(views[: len(inputs)], views[len(inputs) :], room)()
        assert bits(views) == expected, name
