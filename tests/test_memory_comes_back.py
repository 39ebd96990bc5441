"""Memory goes when what has it is dropped, and not when Python next looks for cycles: no lack of memory
makes it look, and between two nets of a search over settings hardly anything else is made."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import demitasse
import demitasse_caffe.pycaffe as caffe

FOLDER = Path(__file__).parents[1] / "examples" / "digits"
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


@pytest.mark.parametrize("make", [solver, train_net, scoring_net])
def test_pycaffes_goes_with_it(make: Callable[[], Any]) -> None:
    made = weakref.ref(make())
    assert made() is None


def test_a_blob_keeps_its_values_when_the_net_is_gone() -> None:
    blobs, params = (lambda net: (net.blobs, net.params))(train_net())
    before = blobs["loss"].data.copy(), params["ip2"][0].diff.copy()
    gc.collect()
    assert blobs["loss"].data == before[0] > 0
    assert (params["ip2"][0].diff == before[1]).all()
    assert before[1].any()
