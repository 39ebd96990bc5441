"""Processes train together; here each is a thread with its own runtime."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from joined_threads import Free, HalfSum, Rounded, Sum

from demitasse import (
    NumericsError,
    WorkerError,
)
from demitasse_training import agreement
from demitasse_training.beginning import in_common

Job = Callable[[Any, int], Any]


def trained(toy: ModuleType, iterations: int = 5, **options: Any) -> Job:
    """Return a job that trains; it returns the losses, the scores after them, and the parameters."""

    def job(runtime: Any, rank: int) -> Any:
        net = toy.classifier()
        tests = toy.classifier(phase="test"), toy.classifier(batch=7, phase="test")
        solver = toy.solver(net, *tests, test_iterations=(4, 2))
        with runtime.trainer(solver, precision="f64", **options) as trainer:
            losses = [trainer.step().loss for _ in range(iterations)]
            params = {k: [a.copy() for a in v] for k, v in trainer.net.params.items()}
            return losses, trainer.test(), params, trainer.batch

    return job


@pytest.mark.parametrize("size", [2, 3, 7])
def test_processes_compute_what_one_does(toy: ModuleType, together: Any, differ: Any, size: int) -> None:
    (alone,) = together(1, trained(toy))
    losses, tested, parameters, whole = alone
    for theirs, scores, params, batch in together(size, trained(toy)):
        assert theirs == pytest.approx(losses, rel=1e-12)
        assert scores == pytest.approx(tested, rel=1e-12)
        assert differ(params, parameters) < 1e-12
        assert batch == whole


def test_under_weak_scaling_the_batch_grows_with_the_processes(toy: ModuleType, together: Any) -> None:
    (_, _, _, batch), _, _ = together(3, trained(toy, scaling="weak"))
    assert batch == 3 * 10


def test_a_process_with_another_solver_is_named_with_what_differs(
    toy: ModuleType, together: Any
) -> None:
    def job(runtime: Any, rank: int) -> Any:
        solver = toy.solver(toy.classifier(), passes=2 if rank == 1 else 1)
        runtime.trainer(solver, precision="f64")

    for error in together(3, job):
        assert isinstance(error, WorkerError)
        assert "rank 1 of 3: the solver's passes is 2, but on the others 1" in str(error)


def test_a_process_with_another_layer_is_named_with_it(toy: ModuleType, together: Any) -> None:
    def job(runtime: Any, rank: int) -> Any:
        net = toy.classifier()
        if rank == 2:
            layers = [
                replace(layer, parameters={"outputs": 5}) if layer.name == "scores" else layer
                for layer in net.layers
            ]
            net = replace(net, layers=tuple(layers))
        runtime.trainer(toy.solver(net), precision="f64")

    errors = together(3, job)
    assert all("rank 2 of 3: layer 'scores'" in str(error) for error in errors), errors


LONG = "num_output: 20 pad: 1 kernel_size: 5 weight_filler { type: 'xavier' } bias { type: 'zero' }"
DESCRIBED = (
    """cores = 1 memory = [{space = "host", bandwidth = "20 GB/s (paper)"}] sync = {plugin = "numa"}"""
)
WORDS = " ".join(f"layer{number}" for number in range(40))


@pytest.mark.parametrize(
    ("usual", "other", "told"),
    [
        ("19", "20", "20, but on the others 19;"),
        (LONG, LONG.replace("20", "200"), "num_output: 200 ..., but on the others num_output: 20 ...;"),
        (
            LONG,
            LONG.replace("pad: 1 ", ""),
            "num_output: 20 ..., but on the others num_output: 20 pad: 1 ...;",
        ),
        (
            LONG,
            f"{LONG} axis: 2",
            "... type: 'zero' } axis: 2, but on the others ... type: 'zero' };",
        ),
        (
            DESCRIBED,
            DESCRIBED.replace("20", "30"),
            '... bandwidth = "30 GB/s (paper)"}] ..., but on the others ... bandwidth = "20 GB/s ',
        ),
        (WORDS, WORDS.replace("er30", "er99"), "... layer99 ..., but on the others ... layer30 ...;"),
        (WORDS, WORDS.removesuffix(" layer39"), "... layer38, but on the others ... layer38 layer39;"),
        (
            f"path: {'a' * 99}",
            f"path: {'a' * 98}b",
            f"... {'a' * 30}b, but on the others ... {'a' * 31};",
        ),
        (WORDS, "no", "no, but on the others layer0 layer1 layer2 "),
    ],
)
def test_of_long_facts_what_differs_is_told(together: Any, usual: str, other: str, told: str) -> None:
    def job(runtime: Any, rank: int) -> Any:
        agreement.agree(
            runtime.processes, {"it": "same" * 99, "layer 'a'": other if rank == 1 else usual}
        )

    for error in together(3, job):
        assert f"rank 1 of 3: layer 'a' is {told}" in str(error), error


def test_a_process_with_another_test_net_or_other_samples_is_named(
    toy: ModuleType, together: Any
) -> None:
    """Its scores, or its share of each gradient, would belong to something else."""

    def job(runtime: Any, rank: int) -> Any:
        solver = toy.solver(toy.classifier())
        test = toy.classifier()
        if rank == 1:
            test = replace(test, layers=test.layers[:-1])
        runtime.trainer(replace(solver, tests=(test,), test_iterations=(1,)), precision="f64")

    def fewer(runtime: Any, rank: int) -> Any:
        images = {name: part[: 31 if rank == 2 else None] for name, part in toy.images().items()}
        data = {"train": images}
        runtime.trainer(toy.solver(toy.classifier()), precision="f64", data=data)

    for error in together(2, job):
        assert "rank 1 of 2: test net 0's list of layers is " in str(error), error
    for error in together(3, fewer):
        assert "rank 2 of 3: what layer 'samples' reads is 31 samples, " in str(error), error


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ({"scale": 0.063}, "rank 1 of 2: layer 'samples'"),
        ({"source": "/scratch/images"}, ""),  # they may be elsewhere on a host
    ],
)
def test_settings_of_a_layer_that_reads_samples_are_alike_but_for_its_places(
    toy: ModuleType, together: Any, setting: Any, found: str
) -> None:
    def job(runtime: Any, rank: int) -> Any:
        net = toy.classifier()
        given = {"scale": 0.0625, "source": "/data/images", **(setting if rank == 1 else {})}
        layers = [replace(each, parameters=given) if not each.bottoms else each for each in net.layers]
        solver = toy.solver(replace(net, layers=tuple(layers)))
        facts = agreement.composition(runtime, solver, "f64", "strong", "global", 1)
        agreement.agree(runtime.processes, facts)

    for error in together(2, job):
        assert found in str(error) if found else error is None, error


def test_a_process_with_other_parameters_is_named(toy: ModuleType, together: Any) -> None:
    def job(runtime: Any, rank: int) -> Any:
        solver = toy.solver(toy.classifier())
        read = runtime.trainer(solver, precision="f64")
        read.net.params["scores"][1][...] += rank == 1
        mine = in_common(read._workers[0], read.batch, read.iteration)
        agreement.agree(runtime.processes, mine)

    errors = together(3, job)
    assert all("rank 1 of 3: parameter 1 of layer 'scores'" in str(error) for error in errors), errors


def test_a_loss_that_is_no_number_in_one_process_ends_all(toy: ModuleType, together: Any) -> None:
    def job(runtime: Any, rank: int) -> Any:
        images = toy.images()
        if rank == 1:  # the first batch of 10 has 5 samples for each process
            images["data"][5:10] = np.nan
        with runtime.trainer(
            toy.solver(toy.classifier()), precision="f64", data={"train": images}
        ) as trainer:
            before = {k: [a.copy() for a in v] for k, v in trainer.net.params.items()}
            try:
                trainer.step()
            finally:
                after = trainer.net.params
                for name, arrays in before.items():
                    for array, now in zip(arrays, after[name], strict=True):
                        assert np.array_equal(array, now)

    first, second = together(2, job)
    assert isinstance(second, NumericsError)
    assert isinstance(first, WorkerError) and "rank 1: iteration 0: the loss is nan" in str(first)


@pytest.mark.parametrize("kind", [Sum, HalfSum, Rounded, Free])
def test_processes_that_train_apart_are_told_of_once(
    kind: type[Sum], toy: ModuleType, together: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def job(runtime: Any, rank: int) -> None:
        with runtime.trainer(toy.solver(toy.classifier()), precision="f64") as trainer:
            trainer.step(3)

    assert together(3, job, sync=kind) == [None] * 3
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (kind is HalfSum)
    for message in told:
        assert re.fullmatch(
            r"processes 0 and 1 train apart: after an iteration parameter \d of layer "
            r"'\w+' differs \(synchronised by \w+; see demitasse check \w+\)",
            message,
        )


def test_at_its_own_pace_each_process_does_all_its_iterations_and_the_first_tests(
    toy: ModuleType, together: Any
) -> None:
    results = together(2, trained(toy, iterations=4), Free)
    (losses, scores, *_), (theirs, none, *_) = results
    assert len(losses) == len(theirs) == 4
    assert scores["accuracy"] >= 0 and none == {}
