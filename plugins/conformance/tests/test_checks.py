"""Each check passes plugins that keep their promises, and finds those that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import mish
import numpy as np
import pytest
from remote_memory import Giver, Remote

import demitasse
from demitasse import Algorithm, GradientSync, Group, Weights, compose
from demitasse.operations import define, same_as
from demitasse_conformance import (
    BrokenPromiseError,
    check_allocator,
    check_collective,
    check_layer,
    check_source,
    check_streams,
    check_sync,
    check_training,
    check_weights,
)

PRODUCT = (
    'layer { name: "p" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 3 } }'
)


def test_gradients_of_inputs_and_parameters_are_slopes() -> None:
    assert check_layer([*mish.BASE, mish.Mish()], mish.LAYER, (2, 5)) == ["x"]
    assert check_layer(mish.BASE, PRODUCT, (2, 3, 2, 2)) == ["p 0", "p 1", "x"]


def test_a_loss_has_slopes_and_its_labels_are_not_moved(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }\n'
        'layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 4 } } }\n'
        + PRODUCT
        + 'layer { name: "l" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" top: "l" }\n'
    )
    assert check_layer(mish.BASE, net, values={"t": [0, 2, 1, 0]}) == ["p 0", "p 1", "x"]


def test_a_gradient_that_is_no_slope_is_told_with_its_place() -> None:
    wrong = define(
        "activation",
        "mish",
        "y = x * tanh(log(1 + exp(x)))",
        inputs="x",
        outputs="y",
        shapes=same_as("x"),
        gradients=["x = relu_backward(dy, y)"],
    )
    with pytest.raises(BrokenPromiseError, match=r"the gradient of x at \[0, 0\] is .*, the slope is"):
        check_layer([*mish.BASE, mish.Mish((wrong, mish.BACKWARD))], mish.LAYER, (2, 5))


def test_what_has_no_gradient_is_told_of() -> None:
    layer = 'layer { name: "t" type: "Threshold" bottom: "x" top: "y" }'
    with pytest.raises(BrokenPromiseError, match="none has a gradient"):
        check_layer(mish.BASE, layer, (2, 5))


class Odd:
    """An allocator whose blocks are what ``given`` returns for a number of bytes."""

    space = "host"
    allocations = bytes = 0

    def __init__(self, given: Callable[[int], Any]) -> None:
        self.given = given

    def allocate(self, nbytes: int) -> Any:
        self.allocations, self.bytes = self.allocations + 1, self.bytes + nbytes
        return self.given(nbytes)


def host(nbytes: int) -> Any:
    return demitasse.HostMemory(demitasse.zeroed(nbytes))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda nbytes: demitasse.HostMemory(np.full(nbytes, 255, np.uint8)), "is not zero"),
        (lambda nbytes: host(nbytes // 2), "were asked for"),
        (lambda nbytes: demitasse.HostMemory(demitasse.zeroed(nbytes + 1)[1:]), "not aligned"),
        (lambda nbytes: host(min(nbytes, 200_000)), "bytes were given"),
    ],
    ids=["not zero", "too small", "not aligned", "without end"],
)
def test_allocators(given: Callable[[int], Any], told: str) -> None:
    with compose(plugins=["reference"]) as runtime:
        check_allocator(runtime.allocator("host"))
    with pytest.raises(BrokenPromiseError, match=told):
        check_allocator(Odd(given))


def test_a_block_that_was_used_is_zero_again() -> None:
    kept: dict[int, Any] = {}
    odd = Odd(lambda n: demitasse.HostMemory(kept.setdefault(n, demitasse.zeroed(n))))
    with pytest.raises(BrokenPromiseError, match="a block of 1 bytes that was used before is not zero"):
        check_allocator(odd)


def test_arrays_of_a_device() -> None:
    class Wrong(Remote):
        def __setitem__(self, part: Any, value: Any) -> None:
            if isinstance(value, np.ndarray):
                self.inside[part] = 3
            else:
                super().__setitem__(part, value)

    class Counted(Giver):
        def allocate(self, nbytes: int) -> Any:
            if nbytes > 1 << 40:
                raise MemoryError(f"{nbytes} bytes were asked for")
            self.allocations, self.bytes = self.allocations + 1, self.bytes + nbytes
            return super().allocate(nbytes)

    check_allocator(Counted("npu:0"))
    with pytest.raises(BrokenPromiseError, match="after slices were assigned"):
        check_allocator(Counted("npu:0", Wrong))


class Stream:
    """Runs of samples, each of which is its own number; ``fault`` says what is wrong with it."""

    def __init__(self, size: int, first: int, count: int, step: int, fault: str) -> None:
        self.size, self.cursor, self.count, self.step, self.fault = size, first, count, step, fault
        if fault == "from the start":
            self.cursor = 0

    def read(self, out: Mapping[str, np.ndarray]) -> None:
        rows = np.arange(self.cursor, self.cursor + self.count)
        out["number"][...] = rows % self.size if self.fault != "runs" else np.arange(self.count)
        self.cursor += self.step if self.fault != "stays" else 0

    def close(self) -> None:
        """Nothing is open."""


class Source:
    """Thirty numbers."""

    size = 30
    fields: Mapping[str, Any] = {"number": demitasse.Field((), "float32")}

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def stream(self, first: int, count: int, step: int) -> Stream:
        return Stream(self.size, first, count, step, self.fault)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("from the start", "a stream from 3 has cursor 0"),
        ("runs", "number of samples 0 to 7 differs where two streams share each run"),
        ("stays", "after 1 runs a stream from 0 has cursor 0, not 7"),
    ],
)
def test_sources(fault: str, told: str) -> None:
    check_source(Source(), 7)
    with pytest.raises(BrokenPromiseError, match=told):
        check_source(Source(fault), 7)


class Sum(GradientSync):
    """Each sibling sums all gradients, from copies that all have made; ``fault`` says what is wrong with
    it."""

    def __init__(self, group: Group) -> None:
        team = group.team
        assert team is not None
        self.team, self.index, self.size = team, group.index, team.size
        self.fault = str(group.options.get("fault", ""))
        self.kept: dict[int, Any] = {}

    def reduce(self, bucket: Any, span: Any) -> Callable[[], None]:
        stop = span.stop - (len(span) // 2 if self.fault == "a part" else 0)
        part, wait = slice(span.start, stop), self.team.barrier.wait

        def add() -> None:
            wait()
            total = sum(memory.gradients[part] for memory in self.team.memory)
            if self.fault == "mean":
                total /= self.size
            if self.fault == "signs":
                total = np.sign(total) * 0.01
            if self.fault == "forgets":
                total *= 0
            if self.fault in ("keeps", "saves"):
                whole = total + self.kept.get(span.start, 0)
                total = np.round(whole, 2)
                self.kept[span.start] = whole - total
            wait()
            self.team.memory[self.index].gradients[part] = total

        return add

    def saved(self) -> Any:
        told = {start: left.tolist() for start, left in self.kept.items()}
        return told if self.fault == "saves" else None

    def restore(self, saved: Any) -> None:
        self.kept = {start: np.array(left) for start, left in saved.items()}

    def quiesce(self) -> None:
        """Nothing is under way, but it may wait for siblings nevertheless."""
        if self.fault == "waits":
            self.team.barrier.wait()


class Summing:
    manifest = {
        "name": "summing",
        "api": ">=0.1,<0.2",
        "options": ["fault"],
        "roles": {"gradient_sync": {}},
    }

    @demitasse.hookimpl
    def gradient_sync(self, group: Group) -> GradientSync:
        return Sum(group)


PLUGINS = [*mish.BASE, Summing()]


@pytest.mark.parametrize("workers", [2, 3])
def test_a_sum_has_the_parameters_of_one_worker(workers: int) -> None:
    assert check_sync(PLUGINS, "summing", workers=workers) < 1e-12


def test_siblings_that_train_apart_are_found() -> None:
    for promise in ("exact", "agreeing"):
        with pytest.raises(BrokenPromiseError, match=r"a parameter of sibling 1 is .* from sibling 0's"):
            check_sync(PLUGINS, "summing", promise=promise, fault="a part")


@pytest.mark.parametrize("fault", ["mean", "signs"])
def test_siblings_that_agree_on_something_else_are_found_unless_that_is_promised(fault: str) -> None:
    with pytest.raises(BrokenPromiseError, match="from what one worker has"):
        check_sync(PLUGINS, "summing", fault=fault)
    assert check_sync(PLUGINS, "summing", promise="agreeing", fault=fault) > 1e-3
    assert check_sync(PLUGINS, "summing", promise="learning", fault=fault) > 1e-3


def test_what_is_kept_and_not_in_snapshots_is_found() -> None:
    with pytest.raises(BrokenPromiseError, match=r"half of them from a snapshot on, .* never stopped"):
        check_sync(PLUGINS, "summing", promise="agreeing", fault="keeps")
    check_sync(PLUGINS, "summing", promise="agreeing", fault="saves")


@pytest.mark.timeout(60, method="thread")
def test_siblings_that_wait_for_each_other_when_they_are_quiesced_are_found() -> None:
    with pytest.raises(demitasse.PluginError, match="in quiesce: siblings are called one after the"):
        check_sync(PLUGINS, "summing", workers=2, fault="waits")


def test_siblings_that_do_not_learn_are_found() -> None:
    with pytest.raises(BrokenPromiseError, match=r"the loss is [\d.]+ at first and 1\.\d+ after 40"):
        check_sync(PLUGINS, "summing", promise="learning", fault="forgets")
    with pytest.raises(ValueError, match=r"promise 'exactly' \(valid: exact, agreeing, learning\)"):
        check_sync(PLUGINS, "summing", promise="exactly")


def test_a_servers_workers_learn_at_their_own_pace() -> None:
    plugins = [*mish.BASE, "parameter_server"]
    assert check_sync(plugins, "parameter_server") < 1e-12
    check_sync(plugins, "parameter_server", promise="learning", model="asp")


def test_streams_of_the_host_and_none() -> None:
    assert check_streams([*mish.BASE, "host_streams"], "host_streams") == "accelerator:0"
    with pytest.raises(BrokenPromiseError, match="has no streams in 'host'"):
        check_streams([*mish.BASE, mish.Mish()], "mish")


def ring(schedule: Any, program: Any) -> Iterable[demitasse.Round]:
    """Each rank sends everything that it has to the next one, again and again."""
    ranks = np.arange(schedule.ranks)
    start, stop = np.zeros(len(ranks), int), np.full(len(ranks), schedule.size)
    for _ in range(1 if schedule.ranks == 2 else schedule.ranks - 1):
        yield demitasse.Round(ranks, (ranks + 1) % len(ranks), start, stop, True)


def test_collectives() -> None:
    with compose(plugins=["allreduce"]) as runtime:
        made = runtime.composition.offered("collectives")
    assert check_collective(made["ring"]) > 100
    with pytest.raises(demitasse.PlanError, match=r"ring of all: .*"):
        check_collective(Algorithm("ring of all", "wrong for more than two", ring))


@pytest.mark.parametrize("suffix", [".caffemodel", ".solverstate.h5", ".demitasse"])
def test_files_are_read_as_they_were_written(suffix: str) -> None:
    has = check_weights([*mish.BASE, "snapshots"], suffix)
    assert has[0] == "parameters"
    assert ("state 'history'" in has) == (suffix != ".caffemodel")


class Forgetful:
    """Keeps files in memory, as changed by ``spoil``."""

    manifest = {
        "name": "forgetful",
        "api": ">=0.1,<0.2",
        "roles": {"model_reader": {"suffixes": [".kept"]}, "model_writer": {"suffixes": [".kept"]}},
    }

    def __init__(self, spoil: Callable[[Weights], Any]) -> None:
        self.spoil, self.kept = spoil, Weights()

    @demitasse.hookimpl
    def model_writer(self, path: Path, weights: Weights) -> None:
        path.touch()
        parameters = {layer: [a.copy() for a in row] for layer, row in weights.parameters.items()}
        self.kept = Weights(parameters, weights.iteration, dict(weights.state))
        self.spoil(self.kept)

    @demitasse.hookimpl
    def model_reader(self, path: Path) -> Any:
        return self

    net = solver = None

    def weights(self) -> Weights:
        return self.kept


def no_more(weights: Weights) -> None:
    weights.parameters.clear()
    weights.state.clear()
    weights.iteration = None


def early(weights: Weights) -> None:
    weights.iteration = 999


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda w: w.parameters["ip1"][0].fill(0), "parameter 0 of layer 'ip1' is not what was written"),
        (lambda w: w.parameters["conv1"].pop(), "layer 'conv1': 2 arrays were written, but 1 are read"),
        (lambda w: w.parameters.pop("scale"), "layer 'scale' was written, but is not read"),
        (early, "iteration 1000 was written, but 999 is read"),
        (no_more, "no parameters, iteration or state"),
    ],
    ids=["zeros", "no bias", "no layer", "early", "nothing"],
)
def test_files_that_are_read_as_something_else(spoil: Callable[[Weights], Any], told: str) -> None:
    with pytest.raises(BrokenPromiseError, match=told):
        check_weights([Forgetful(spoil), *mish.BASE], ".kept")


class Shifted:
    """The reference's kernels, except that the first output of ``word`` is a tenth too large."""

    manifest = {"name": "shifted", "api": ">=0.1,<0.2", "roles": {"kernels": {"spaces": ["host"]}}}

    def __init__(self, word: str) -> None:
        self.word = word

    @demitasse.hookimpl
    def kernels(self, request: demitasse.Request) -> Any:
        from dataclasses import replace

        from demitasse_reference import plugin as reference

        def bind(inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
            work = candidate.bind(inputs, outputs, workspace)
            return lambda: (work(), np.multiply(outputs[0], 1.1, out=outputs[0]))[0]

        found = list(reference.kernels(request=request))
        if request.operation.name != self.word:
            return found
        (candidate,) = found
        return [replace(candidate, bind=bind)]


@pytest.mark.parametrize("word", ["", "lrn_across_channels_backward", "pooling_average", "batch_norm"])
def test_a_net_is_trained_as_the_references(word: str) -> None:
    plugins = [Shifted(word), *mish.BASE]
    if not word:
        assert check_training(plugins, "shifted", "f64") == 0
        assert 0 < check_training(plugins, "shifted", "f32") < 1e-5
        return
    with pytest.raises(BrokenPromiseError, match=r"the loss of iteration \d is|of its change"):
        check_training(plugins, "shifted")
