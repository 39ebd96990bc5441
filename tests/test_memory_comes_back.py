"""Memory goes when what has it is dropped, and not when Python next looks for cycles: no lack of memory
makes it look, and between two nets of a search over settings hardly anything else is made."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse
import demitasse_caffe.pycaffe as caffe
from demitasse import DataSpec
from demitasse_host.memory import HostMemory

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "digits"
SOLVER, NET = str(FOLDER / "digits_solver.prototxt"), str(FOLDER / "digits_train_test.prototxt")


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with demitasse.compose() as made:
        yield made


@pytest.mark.parametrize("closed", [False, True])
def test_a_trainers_goes_with_it(runtime: Any, closed: bool) -> None:
    trainer = runtime.trainer(SOLVER)
    trainer.step(2)
    trainer.test()
    net, worker = weakref.ref(trainer.net), weakref.ref(trainer._workers[0])
    if closed:
        trainer.close()
    trainer = weakref.ref(trainer)
    assert (trainer(), net(), worker()) == (None, None, None)


def solver() -> Any:
    made = caffe.get_solver(SOLVER)
    made.step(1)
    made.test_nets[0].forward()
    return made


def train_net() -> Any:
    made = caffe.Net(NET, caffe.TRAIN)
    made.forward()
    made.backward()
    return made


def scoring_net() -> Any:
    made = caffe.Net(NET, caffe.TEST)
    made.forward()
    return made


def memories() -> int:
    """How many pieces of memory are held for nets, by whomever."""
    return sum(issubclass(type(each), HostMemory) for each in gc.get_objects())


@pytest.mark.parametrize("make", [solver, train_net, scoring_net])
def test_pycaffes_goes_with_it(make: Callable[[], Any]) -> None:
    """The net that its user has holds another, which has the memory."""
    make()  # the first has kernels tried, in memory that is kept for the next
    before = memories()
    made = make()
    during, made = memories(), weakref.ref(made)
    assert (made(), memories()) == (None, before)
    assert during > before


def test_a_trainers_goes_with_what_synchronises_it() -> None:
    with demitasse.compose(ROOT / "hwdesc" / "two-accelerators.toml") as made:
        trainer = made.trainer(SOLVER)
        trainer.step(2)
        gradients = [weakref.ref(each.flat.gradients) for each in trainer._workers]
        del trainer
        assert [each() is None for each in gradients] == [True, True]


def test_the_arrays_that_samples_are_cast_into_go_with_their_stream(runtime: Any) -> None:
    stream = runtime.open_source(DataSpec("digits:train")).stream(0, 2, 2)
    out = {"data": np.empty((2, 1, 8, 8), np.float64), "label": np.empty((2,), np.float64)}
    array = weakref.ref(out["data"])
    stream.read(out)
    del out, stream
    assert array() is None


def test_a_blob_keeps_its_values_when_the_net_is_gone() -> None:
    blobs, params = (lambda net: (net.blobs, net.params))(train_net())
    before = blobs["loss"].data.copy(), params["ip2"][0].diff.copy()
    gc.collect()
    assert blobs["loss"].data == before[0] > 0
    assert (params["ip2"][0].diff == before[1]).all()
    assert before[1].any()
