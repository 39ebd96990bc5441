"""Objects that can be copied and sent to another process, and objects that say that they cannot."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import Plan, Weights, WorkerError, compose

WAYS = [copy.copy, copy.deepcopy, pickle.dumps]


@pytest.mark.parametrize("way", WAYS)
def test_a_runtime_and_its_composition_stay_in_their_process(
    toy: ModuleType, way: Callable[[Any], Any]
) -> None:
    with compose(toy.machine(1), ["reference", "training"]) as runtime:
        with pytest.raises(
            WorkerError, match=r"<Runtime on .*cannot be copied or pickled; compose anot"
        ):
            way(runtime)
        with pytest.raises(WorkerError, match=r"^Composition.*cannot be copied or pickled; .*to_dict"):
            way(runtime.composition)
        sent = pickle.loads(pickle.dumps(runtime.machine))  # noqa: S301  what this test has made itself
        with compose(sent, ["reference", "training"]) as other:
            assert str(other.composition) == str(runtime.composition)


@pytest.mark.parametrize("way", WAYS)
def test_a_plan_stays_in_its_process(toy: ModuleType, way: Callable[[Any], Any]) -> None:
    with compose(toy.machine(1), ["reference", "training", toy.toy()]) as runtime:
        plan: Plan = runtime.net(toy.classifier(phase="test")).plan
    with pytest.raises(WorkerError, match=r"^Plan\(.*cannot be copied or pickled; its kernels"):
        way(plan)


def test_weights_are_sent_and_copied_and_are_the_same_only_as_themselves() -> None:
    weights = Weights({"ip": [np.arange(6.0), np.zeros(2)]}, 3)
    sent = pickle.loads(pickle.dumps(weights))  # noqa: S301  what this test has made itself
    np.testing.assert_array_equal(sent.parameters["ip"][0], np.arange(6.0))
    assert sent.iteration == 3
    assert weights == weights and weights != sent
