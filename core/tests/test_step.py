"""A step runs its plan: no allocation in the steady state, and little overhead over the kernels."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import (
    Bucket,
    DataSpec,
    Field,
    GradientSync,
    NetDefinition,
    NumericsError,
    Span,
    Stream,
    Work,
    compose,
    discover,
)

OF_A_STEP, OF_AN_OPERATION = 2000, 30
"""The most instructions of the interpreter; a step takes 1,140, and 21 for each of its operations."""


class Silence:
    """Samples that are there already, so that reading does nothing."""

    fields: Mapping[str, Field]
    size, cursor = 1, 0

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.fields = {"data": Field(shape, "float32"), "label": Field((), "float32")}

    def stream(self, first: int, count: int, step: int) -> Stream:
        return self

    def read(self, out: Mapping[str, np.ndarray]) -> None:
        pass

    def close(self) -> None:
        pass


def counted(allocators: list[Any], allocator: Callable[..., Any]) -> Callable[..., Any]:
    """Return an allocator hook that remembers what it returned."""

    def hook(space: str, options: Mapping[str, Any]) -> Any:
        allocators.append(allocator(space=space, options=options))
        return allocators[-1]

    return hook


def affine(toy: ModuleType, layers: int, width: int) -> NetDefinition:
    """Return a net of affine layers with a rectifier after each, dropout and a loss: about five
    operations per layer forward and backward, with a bucket of parameters each."""
    chain = [toy.layer("samples", "Samples", "", "data label", batch=128)]
    for i in range(layers):
        below = f"a{i - 1}" if i else "data"
        last = i == layers - 1
        chain.append(toy.layer(f"w{i}", "InnerProduct", below, f"a{i}", outputs=3 if last else width))
        kind = "Dropout" if last else "ReLU"
        chain.append(toy.layer(f"r{i}", kind, f"a{i}", f"a{i}"))
    chain.append(toy.layer("loss", "SoftmaxLoss", f"a{layers - 1} label", "loss"))
    return toy.net(*chain)  # type: ignore[no-any-return]


@pytest.fixture
def stepping(toy: ModuleType) -> Iterator[Callable[..., Any]]:
    """Yield ``stepping(kernels)``, which makes a trainer of affine layers on one worker, warmed up."""
    runtimes = []

    def make(name: str, allocators: Any = None, layers: int = 20, width: int = 64, **solver: Any) -> Any:
        allocator = counted([] if allocators is None else allocators, toy.installed(name).allocator)
        plugins = [
            toy.plugin("counted", allocator=allocator),
            name,
            "reference",
            "training",
            toy.toy(source=lambda spec: Silence((width,))),
        ]
        runtimes.append(compose(toy.machine(), plugins))
        trainer = runtimes[-1].trainer(toy.solver(affine(toy, layers, width), **solver))
        trainer.step(5)
        return trainer

    yield make
    for runtime in runtimes:
        runtime.close()


def instructions(run: Callable[[], object]) -> int:
    """Return how many instructions the interpreter executes, whatever else the machine does."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def test_an_operation_costs_a_step_few_instructions_besides_its_kernel(
    stepping: Callable[..., Any],
) -> None:
    costs = dict[int, float]()
    for layers in (5, 25):
        trainer = stepping("null", layers=layers)
        assert len(trainer.plan.buckets) == layers
        few, many = (instructions(partial(trainer.step, count)) for count in (1, 11))
        costs[len(trainer.plan.entries)] = (many - few) / 10
    (small, its), (large, all_of_them) = costs.items()
    each = (all_of_them - its) / (large - small)
    assert each < OF_AN_OPERATION, f"an operation takes {each:.0f} instructions"
    assert its - each * small < OF_A_STEP


@pytest.mark.parametrize("name", ["null", "cpu"])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_steady_step_allocates_no_tensor(stepping: Callable[..., Any], name: str, passes: int) -> None:
    """Activations take 128 KiB here and weights 256: a step that makes one of them anew shows it in
    the peak (where NumPy's own buffers, 32 KiB, do not count), one that keeps anything in the growth.
    """
    if next((m.problem for m in discover() if m.name == name), "not installed"):
        pytest.skip(f"plugin {name!r} cannot be used here")
    allocators: list[Any] = []
    trainer = stepping(name, allocators, layers=2, width=256, passes=passes)
    given = [(a.allocations, a.bytes) for a in allocators]
    assert sum(count for count, _ in given) > 0
    windows = []
    gc.collect()
    tracemalloc.start()
    try:
        trainer.step(80)  # until the interpreter's free lists are full
        for _ in range(4):
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            trainer.step(20)
            after, peak = tracemalloc.get_traced_memory()
            windows.append((after - before, peak - before))
    finally:
        tracemalloc.stop()
    # What steps keep, they keep every time; threads that fall behind hold memory only for a while.
    growth, most = (min(numbers) for numbers in zip(*windows, strict=True))
    assert growth < 8 * 1024, f"{growth} bytes more after every 20 steps"
    assert most < 64 * 1024, f"{most} bytes at once in a step"
    assert [(a.allocations, a.bytes) for a in allocators] == given


@pytest.mark.parametrize("passes", [1, 2])
def test_memory_is_allocated_once_for_each_region(stepping: Callable[..., Any], passes: int) -> None:
    """Arena, fixed memory, parameters, the momentum's history, and gradients where they add up over
    several passes: otherwise they share the arena with activations until they are used. Before that
    all of it is taken and given back once, to see that it fits."""
    allocators: list[Any] = []
    plan = stepping("null", allocators, passes=passes).plan
    assert sum(a.allocations for a in allocators) == 1 + 3 + passes
    flat = plan.parameters + passes * plan.trainable
    needed = plan.arena_bytes + plan.fixed_bytes + 4 * flat
    assert sum(a.bytes for a in allocators) == 2 * needed
    assert bool(plan.brief) == (passes == 1)


def test_works_get_ready_together_once_all_are_bound(toy: ModuleType) -> None:
    """Works that can do so prepare before the first of them is called, in one call for all of a kind."""
    happened: list[str] = []
    reference = toy.installed("reference")

    def ready() -> None:
        happened.append("ready")

    class Ready:
        def __init__(self, work: Work) -> None:
            self.work, self.prepare = work, ready
            happened.append("bound")

        def __call__(self) -> None:
            happened.append("called")
            self.work()

    def kernels(request: Any) -> Iterator[Any]:
        for candidate in reference.kernels(request):
            bind = candidate.bind
            yield replace(candidate, bind=lambda *given, bind=bind: Ready(bind(*given)))

    preparing = toy.plugin("preparing", kernels=kernels)
    with compose(toy.machine(), [preparing, toy.toy(), "reference", "training"]) as runtime:
        runtime.trainer(toy.solver(toy.classifier())).step()
    start = happened.index("ready")
    assert set(happened[:start]) == {"bound"}
    assert set(happened[start + 1 :]) == {"called"}


def test_brief_gradients_never_lie_where_something_else_does(stepping: Callable[..., Any]) -> None:
    """From the first entry that writes one of a bucket's gradients to the one after which they are
    used, no other buffer of the arena overlaps them."""
    plan = stepping("null", layers=6).plan
    for bucket, start, final in zip(plan.buckets, plan.brief, plan.final, strict=True):
        stop = start + 4 * len(bucket.span)
        inside = [
            (i, buffer)
            for i, entry in enumerate(plan.entries)
            for buffer in (*entry.inputs, *entry.outputs, entry.workspace)
            if buffer is not None and buffer.region == "arena"
            if buffer.offset < stop and start < buffer.offset + buffer.spec.nbytes
        ]
        gradients = {f"d{owner}[{k}]" for owner in bucket.layers for k in (0, 1)}
        first = min(i for i, buffer in inside if buffer.name in gradients)
        during = {buffer.name for i, buffer in inside if first <= i <= final}
        assert during <= gradients


def test_a_result_tells_the_seconds_of_each_phase(stepping: Callable[..., Any]) -> None:
    trainer = stepping("null")
    result = trainer.step(50)
    assert result.iteration == trainer.iteration == 55
    assert {*result.phases} == {"read", "forward", "backward", "synchronise"}
    assert all(result.phases[phase] > 0 for phase in ("read", "forward", "backward"))
    assert result.phases["synchronise"] == 0  # there are no siblings to agree with
    assert sum(result.phases.values()) <= result.seconds


def test_waiting_for_siblings_is_a_phase_of_its_own(toy: ModuleType) -> None:
    """It happens before the forward pass, and in the backward pass."""
    waited = 0.002

    class Waiting(GradientSync):
        def __init__(self, group: Any) -> None:
            self.index, self.size = group.index, group.team.size

        def before_forward(self, bucket: Bucket) -> Work | None:
            return wait

        def reduce(self, bucket: Bucket, span: Span) -> Work | None:
            return wait

    def wait() -> None:
        until = time.perf_counter() + waited
        while time.perf_counter() < until:
            pass

    def gradient_sync(group: Any) -> GradientSync:
        return Waiting(group)

    stranger = toy.plugin("stranger", gradient_sync=gradient_sync)
    machine = toy.machine(2, sync=["stranger"])
    with compose(machine, [stranger, "reference", "training", toy.toy()]) as runtime:
        result = runtime.trainer(toy.solver(toy.classifier())).step()
    phases = result.phases
    assert phases["synchronise"] >= 2 * waited
    assert sum(phases.values()) <= result.seconds


def test_every_pass_reads_and_only_the_last_synchronises(toy: ModuleType) -> None:
    """Three passes of four samples are read in order; parameters change once an iteration."""
    read: list[int] = []

    class Counted:
        fields = {"data": Field((1, 6, 6), "float32"), "label": Field((), "float32")}
        size = 12

        def stream(self, first: int, count: int, step: int) -> Stream:
            stream: Stream = toy.ArrayStream(toy.ArraySource(toy.images(12)), first, count, step)
            original = stream.read

            def watched(out: Mapping[str, np.ndarray]) -> None:
                read.append(stream.cursor)
                original(out)

            stream.read = watched  # type: ignore[method-assign]
            return stream

        def close(self) -> None:
            pass

    def source(spec: DataSpec) -> Any:
        return Counted()

    solver = toy.solver(toy.classifier(4), passes=3)
    with compose(toy.machine(), ["reference", "training", toy.toy(source=source)]) as runtime:
        trainer = runtime.trainer(solver, precision="f64")
        assert trainer.batch == 12
        trainer.step(2)
    assert read == [0, 4, 8, 12, 16, 20]


def test_passes_over_parts_of_a_batch_are_one_pass_over_the_batch(
    toy: ModuleType, train: Callable[..., Any]
) -> None:
    """Gradients add up: 2 x 6 samples make the step that 12 samples make, dropout included."""
    whole = train(toy.classifier(12))
    parts = train(toy.classifier(6), solver={"passes": 2})
    for _ in range(5):
        assert parts.step(1).loss == pytest.approx(whole.step(1).loss, abs=1e-12)
    for layer, arrays in whole.net.params.items():
        for ours, theirs in zip(parts.net.params[layer], arrays, strict=True):
            assert np.allclose(ours, theirs, rtol=0, atol=1e-12)


def test_a_loss_that_is_not_finite_stops_before_the_backward_pass(
    toy: ModuleType, train: Callable[..., Any]
) -> None:
    arrays = toy.images(8)
    arrays["data"][5, 0, 0, 0] = np.inf
    trainer = train(toy.classifier(4), arrays=arrays)
    trainer.step(1)
    before = {k: [a.copy() for a in v] for k, v in trainer.net.params.items()}
    with pytest.raises(NumericsError, match="iteration 1: the loss is nan"):
        trainer.step(1)
    for layer, values in trainer.net.params.items():
        for ours, theirs in zip(before[layer], values, strict=True):
            assert np.array_equal(ours, theirs)
