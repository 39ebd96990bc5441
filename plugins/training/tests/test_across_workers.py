"""Statistics over the samples of all workers: whatever their number, a net trains as with one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from joined_threads import Free

from demitasse import (
    CompositionError,
    DataError,
    NumericsError,
    PluginError,
    WorkerError,
    compose,
)
from demitasse.operations import VOCABULARY, extend
from demitasse_training.accord import Accord
from demitasse_training.across_workers import OPERATIONS, meetings

Train = Callable[..., Any]
ITERATIONS = 3
WORDS = extend(VOCABULARY, OPERATIONS)


def trained(trainer: Any, iterations: int = ITERATIONS) -> tuple[list[float], dict[str, Any]]:
    """The losses of some iterations, and all parameters after them."""
    losses = [trainer.step(1).loss for _ in range(iterations)]
    return losses, {k: [a.copy() for a in v] for k, v in trainer.net.params.items()}


@pytest.fixture
def alone(toy: ModuleType, train: Train) -> Callable[..., Any]:
    """What one worker with all samples gets."""

    def run(**solver: Any) -> Any:
        return trained(train(toy.normalised(), solver=solver))

    return run


def distance(ours: Any, theirs: Any, differ: Any) -> float:
    return max(np.abs(np.subtract(ours[0], theirs[0])).max(), differ(ours[1], theirs[1]))


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("counts", [(2,), (3,), (2, 2)], ids=str)
def test_workers_get_what_one_gets(
    toy: ModuleType, train: Train, alone: Any, differ: Any, counts: tuple[int, ...], passes: int
) -> None:
    """Seven samples, so shares are uneven; each has another number of ignored labels."""
    expected = alone(passes=passes)
    for statistics, same in (("global", True), ("local", False)):
        trainer = train(toy.normalised(), *counts, solver={"passes": passes}, statistics=statistics)
        found = trained(trainer)
        assert (distance(found, expected, differ) < 1e-10) is same
        kept = [[*map(np.array, worker.statistics.arrays)] for worker in trainer._workers]
        near = all(np.allclose(a, b, 1e-12) for k in kept for a, b in zip(k, kept[0], strict=True))
        assert near is same, "the running statistics of all workers"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [2, 3])
def test_processes_get_what_one_gets(
    toy: ModuleType, together: Any, alone: Any, differ: Any, size: int, threads: int
) -> None:
    def job(runtime: Any, rank: int) -> Any:
        with runtime.trainer(toy.solver(toy.normalised()), precision="f64") as trainer:
            return trained(trainer)

    expected = alone()
    for found in together(size, job, threads=threads):
        assert distance(found, expected, differ) < 1e-10


def convolved(x: Any, w: Any, b: Any) -> Any:
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w) + b[:, None, None]


def by_numpy(arrays: Any, parameters: Any) -> float:
    """The loss of ``normalised`` over the first seven samples, from its formulas."""
    x = arrays["data"][:7]

    def normalised(x: Any, name: str, epsilon: float = 1e-5) -> Any:
        w, b = (each.reshape(-1, *[1] * (x.ndim - 2)) for each in parameters[name][3:])
        axes = (0, *range(2, x.ndim))
        mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        return (x - mean) / np.sqrt(variance + epsilon) * w + b

    norm = np.maximum(normalised(convolved(x, *parameters["first"]), "norm"), 0)
    both = np.maximum(normalised(convolved(norm, *parameters["second"]), "again") + norm, 0)
    w, b = parameters["scores"]
    last = normalised(both.reshape(7, -1) @ w.T + b, "last", 0.01)
    labels = arrays["label"][:7].astype(int)
    losses = np.log(np.exp(last).sum(1)) - last[np.arange(7), labels]
    return float(losses[labels != 2].mean())


def test_the_loss_is_that_of_the_formulas(toy: ModuleType, train: Train) -> None:
    trainer = train(toy.normalised(), 3)
    first = {k: [a.copy() for a in v] for k, v in trainer.net.params.items()}
    assert trainer.step(1).loss == pytest.approx(by_numpy(toy.images(), first), rel=1e-12)


def test_what_is_kept_of_a_batch_is_of_all_samples(toy: ModuleType, train: Train) -> None:
    """Layer ``norm`` adds up the unbiased variance."""
    trainer = train(toy.normalised(), 3)
    made = convolved(toy.images()["data"][:7], *trainer.net.params["first"])
    trainer.step(1)
    mean, variance, factor, *_ = trainer.net.params["norm"]
    axes, n = (0, 2, 3), made.size / 4
    np.testing.assert_allclose(mean, made.mean(axes), rtol=1e-12)
    np.testing.assert_allclose(variance, made.var(axes) * n / (n - 1), rtol=1e-12)
    assert factor.tolist() == [1.0]


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("counts", [(2,), (2, 2)], ids=str)
@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_that_fails_wakes_those_that_wait_for_its_numbers(
    toy: ModuleType, train: Train, failing: Any, counts: tuple[int, ...], worker: int, differ: Any
) -> None:
    error = DataError("samples.bin: sample 17 is cut off")
    trainer = train(toy.normalised(), *counts, source=failing(worker, 3, error))
    before = trained(trainer, 2)[1]
    with pytest.raises(DataError) as caught:
        trainer.step(1)
    assert caught.value is error
    assert error.__context__ is None or error.__suppress_context__, "nothing of its siblings"
    after = {k: [a.copy() for a in v] for k, v in trainer.net.params.items()}
    assert differ(before, after) == 0.0, "also the running statistics"
    assert trainer.iteration == 2


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("victim", [0, 1])
def test_all_processes_stop_together_and_keep_what_they_have(
    toy: ModuleType,
    together: Any,
    failing: Any,
    tmp_path: Any,
    threads: int,
    passes: int,
    victim: int,
) -> None:
    """One cannot read, while others wait for its numbers in the middle of a pass."""
    error = DataError("samples.bin: sample 17 is cut off")

    def source(rank: int) -> Any:
        return failing(threads - 1 if rank == victim else -1, 3 * passes, error)

    def job(runtime: Any, rank: int) -> Any:
        fields = {"snapshot_prefix": str(tmp_path / "toy"), "max_iterations": 4, "passes": passes}
        trainer = runtime.trainer(toy.solver(toy.normalised(), **fields), precision="f64")
        with pytest.raises((DataError, WorkerError)) as caught:
            trainer.run()
        return caught.value, trainer.iteration

    found = together(2, job, threads=threads, source=source)
    told = (
        f"samples.bin: sample 17 is cut off; iteration 2 is saved in {tmp_path / 'toy_iter_2.demitasse'}"
    )
    assert found[victim][0] is error and str(error) == told
    assert str(found[1 - victim][0]).startswith(f"rank {victim}: {told}")
    assert [iteration for _, iteration in found] == [2, 2]


class Breaking:
    """A reference kernel that raises at its second call in one worker."""

    def __init__(self, operation: str, worker: int) -> None:
        self.operation, self.worker, self.bound = operation, worker, 0

    def offer(self, request: Any) -> Any:
        if request.operation.name != self.operation:
            return []
        from demitasse_reference.kernels import candidates

        (plain,) = candidates(request)
        return [type(plain)("breaking", partial(self._bind, plain))]

    def _bind(self, plain: Any, *given: Any) -> Any:
        work, number, calls = plain.bind(*given), self.bound, [0]
        self.bound += 1

        def run() -> None:
            calls[0] += 1
            if number == self.worker and calls[0] == 2:
                raise ZeroDivisionError("a bug")
            work()

        return run


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize(
    "operation", ["relu", "batch_norm_inference", "batch_norm_whole_backward", "softmax_loss_backward"]
)
@pytest.mark.parametrize("worker", [0, 1])
def test_a_kernel_that_fails_in_one_worker_ends_all(
    toy: ModuleType, operation: str, worker: int
) -> None:
    """Forward, and backward, where others wait for its sums."""
    kernels = Breaking(operation, worker)

    def offer(request: Any) -> Any:  # hooks are functions
        return kernels.offer(request)

    bad = toy.plugin("bad", roles={"kernels": {"spaces": ["host"]}}, kernels=offer)
    plugins = [bad, "reference", "training", "snapshots", toy.toy()]
    net = toy.net(
        toy.layer("samples", "Samples", "", "data label", batch=4),
        toy.layer("norm", "Normalised", "data", "norm"),
        toy.layer("positive", "ReLU", "norm", "positive"),
        toy.layer("both", "Sum", "positive norm", "both"),
        toy.layer("again", "Normalised", "both", "again"),
        toy.layer("scores", "InnerProduct", "again", "scores", outputs=3),
        toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
    )
    with compose(toy.machine(2), plugins) as runtime:
        trainer = runtime.trainer(toy.solver(net), precision="f64")
        with pytest.raises(PluginError, match=r"ZeroDivisionError.*a bug"):
            trainer.step(3)
        trainer.close()


@pytest.mark.timeout(60, method="thread")
def test_others_are_told_where_a_number_that_is_none_comes_from(
    toy: ModuleType, train: Train, failing: Any, together: Any
) -> None:
    trainer = train(toy.normalised(), 2, source=failing(1, 2, None))
    with pytest.raises(NumericsError) as caught:
        trainer.step(2)
    assert "'first' (convolution, computed by reference)" in str(caught.value)
    assert "another's" not in str(caught.value)

    def job(runtime: Any, rank: int) -> Any:
        trainer = runtime.trainer(toy.solver(toy.normalised()), precision="f64")
        with pytest.raises(NumericsError) as caught:
            trainer.step(2)
        return str(caught.value)

    healthy, ill = together(2, job, source=lambda rank: failing(rank - 1, 2, None))
    assert "'first' (convolution, computed by reference)" in ill
    assert "not from this worker's own samples, but from another's" in healthy


@pytest.mark.timeout(60, method="thread")
def test_outside_of_an_iteration_a_worker_has_its_own(
    toy: ModuleType, train: Train, alone: Any, differ: Any
) -> None:
    """To profile the first worker, nobody else runs."""
    trainer = train(toy.normalised(), 2)
    trainer.profile(2)
    assert distance(trained(trainer), alone(), differ) < 1e-10
    trainer.profile(1)


def test_the_time_of_an_exchange_is_synchronisation(
    toy: ModuleType, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Accord.add

    def slow(self: Any, worker: int, numbers: Any) -> Any:
        time.sleep(0.02)
        return real(self, worker, numbers)

    monkeypatch.setattr(Accord, "add", slow)
    trainer = train(toy.normalised(), 2)
    trainer.step(1)
    phases = trainer.step(1).phases
    exchanges = sum(entry.operation == "sum_across_workers" for entry in trainer.plan.entries)
    assert exchanges == 7  # of four statistics forward, and of three gradients
    assert phases["synchronise"] >= exchanges * 0.02
    assert phases["forward"] < 0.04 and phases["backward"] < 0.04


def test_an_iteration_resumes_with_the_same_bits(toy: ModuleType, train: Train, differ: Any) -> None:
    first = train(toy.normalised(), 2)
    first.step(2)
    weights = first.weights()
    expected = trained(first)[1]
    again = train(toy.normalised(), 2, resume=weights)
    assert differ(trained(again)[1], expected) == 0.0


def test_with_all_blobs_kept_it_is_the_same(
    toy: ModuleType, train: Train, alone: Any, differ: Any
) -> None:
    trainer = train(toy.normalised(), 2, retain="all")
    assert distance(trained(trainer), alone(), differ) < 1e-10


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "demitasse.training"]


def test_statistics_that_stay_a_workers_own_are_told(
    toy: ModuleType, together: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """At an asynchronous level, and where no kernel computes the sums. Who asks for them is not told."""

    def job(runtime: Any, rank: int) -> Any:
        runtime.trainer(toy.solver(toy.normalised()), precision="f64").close()

    together(2, job, sync=Free)
    why = "each worker is at an iteration of its own"
    told = "layer 'norm' (and 3 more): each of the 2 workers has statistics of its own samples, as with "
    assert messages(caplog) == [f"{told}Caffe, because {why}; results depend on the number of workers"]
    caplog.clear()
    together(2, job)
    assert messages(caplog) == []


class Elastic(Free):
    """Workers take steps together, from parameters of their own."""

    asynchronous, apart = False, True


def test_where_parameters_differ_each_has_its_own(
    toy: ModuleType, together: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def job(runtime: Any, rank: int) -> Any:
        with runtime.trainer(toy.solver(toy.normalised()), precision="f64") as trainer:
            return [entry.operation for entry in trainer.plan.entries]

    for words in together(2, job, sync=Elastic):
        assert "sum_across_workers" not in words
    assert "because workers' parameters differ" in "".join(messages(caplog))


def test_siblings_that_are_not_joined_meet_all_the_same(
    toy: ModuleType, alone: Any, differ: Any
) -> None:
    """Each worker would go on to the next iteration by itself."""

    def loose(group: Any) -> Any:
        made = toy.installed("reference").gradient_sync(group=group)
        made.joined = False
        return made

    plugins = ["reference", "training", "snapshots", toy.toy()]
    machine = toy.machine(2, sync=("loose",))
    with compose(machine, [*plugins, toy.plugin("loose", gradient_sync=loose)]) as runtime:
        trainer = runtime.trainer(toy.solver(toy.normalised()), precision="f64")
        assert distance(trained(trainer), alone(), differ) < 1e-10
        trainer.close()


def test_without_a_label_that_counts_the_loss_is_zero(toy: ModuleType, train: Train) -> None:
    arrays = toy.images()
    arrays["label"][:] = 2
    trainer = train(toy.normalised(), 2, arrays=arrays)
    assert trainer.step(2).loss == 0.0


def test_where_no_kernel_computes_the_sums_each_has_its_own(
    toy: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    from demitasse_reference.kernels import candidates

    def kernels(request: Any) -> Any:
        return [] if request.operation.name == "channel_moments" else candidates(request)

    some = toy.plugin("some", roles={"kernels": {"spaces": ["host"]}}, kernels=kernels)
    allocator = {"allocator": toy.installed("reference").allocator}
    sync = toy.installed("reference").gradient_sync
    host = toy.plugin("host", roles={"allocator": {"spaces": ["host"]}}, gradient_sync=sync, **allocator)
    machine = toy.machine(2, sync=("host",))
    with compose(machine, [some, host, "training", "snapshots", toy.toy()]) as runtime:
        trainer = runtime.trainer(toy.solver(toy.normalised()), precision="f64")
        trainer.step(1)
        words = [entry.operation for entry in trainer.plan.entries]
        trainer.close()
    assert "because no composed plugin computes channel_moments" in "".join(messages(caplog))
    assert words.count("batch_norm") == 3
    assert words.count("sum_across_workers") == 1, "the labels of all are counted"


def test_a_choice_that_is_none_is_an_error(train: Train) -> None:
    with pytest.raises(CompositionError, match=r"unknown statistics 'lokal'.*local"):
        train(None, 2, statistics="lokal")


def test_meetings_are_those_up_to_the_last_forward_pass(toy: ModuleType, train: Train) -> None:
    plan = train(toy.normalised(), 2).plan
    forward, backward = [9, 9, 7, 1], [6, 8, 8]  # two sums of each channel, and how many numbers
    assert meetings(plan, 1) == forward
    assert meetings(plan, 3) == [*forward, *backward, *forward, *backward, *forward]


@pytest.mark.parametrize("shape", [(6, 3, 4, 5), (1, 2, 3, 3), (8, 5), (5, 1)], ids=str)
@pytest.mark.parametrize("relu", [True, False])
def test_parts_of_a_batch_are_normalised_as_the_whole(
    toy: ModuleType, shape: tuple[int, ...], relu: bool
) -> None:
    """The reference's own operations, against the whole batch's formulas."""
    from demitasse_reference.kernels import KERNELS

    random = np.random.default_rng(5)
    x, dy = 3 + random.normal(size=shape), random.normal(size=shape)
    w, b, zero = random.uniform(0.5, 2, shape[1]), random.normal(size=shape[1]), np.zeros(shape[1])
    about = {"keep": 0.9, "averaged": False, "epsilon": 0.01}
    whole = KERNELS["batch_norm"](x, zero, zero, np.zeros(1), w, b, relu=relu, **about)
    cuts = [slice(0, shape[0] // 3), slice(shape[0] // 3, None)]
    moments = sum(KERNELS["channel_moments"](x[cut]) for cut in cuts if len(x[cut]))
    *kept, average, spread, inverse = KERNELS["settle_moments"](
        moments, zero, zero, np.zeros(1), **about
    )
    axes = (0, *range(2, x.ndim))
    np.testing.assert_allclose(average, x.mean(axes), rtol=1e-12)
    np.testing.assert_allclose(spread, x.var(axes), rtol=1e-10)
    for ours, theirs in zip([*kept, average, inverse], [*whole[:3], *whole[4:]], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    expected = KERNELS["batch_norm_backward"](dy, x, w, b, average, inverse, relu=relu)
    sums = np.concatenate(expected[1:])
    limits = {"least": -np.inf, "most": np.inf}
    for cut in cuts:
        operands = dy[cut], x[cut], w, b, average, inverse, sums, moments
        dx = KERNELS["batch_norm_whole_backward"](*operands, relu=relu, **limits)
        np.testing.assert_allclose(dx, expected[0][cut], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "shapes", "told"),
    [
        ("channel_moments", {"x": (4,)}, "has no channels"),
        (
            "settle_moments",
            {"moments": (6,), "mean": (3,), "variance": (3,), "factor": (1,)},
            "do not fit moments (6,)",
        ),
        (
            "batch_norm_whole_backward",
            {"x": (2, 3), "average": (3,), "sums": (5,), "dy": (2, 3)},
            "sums (5,) do not fit x (2, 3)",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_errors(name: str, shapes: Any, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        WORDS[name].shapes(shapes, {})
