"""Objects that can be copied and sent to another process, and errors of those that cannot."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from demitasse import Event, WorkerError

WAYS = [copy.copy, copy.deepcopy, pickle.dumps]


@pytest.mark.parametrize("way", WAYS)
def test_a_trainer_cannot_be_copied_and_goes_on(train: Any, way: Callable[[Any], Any]) -> None:
    trainer = train()
    with pytest.raises(WorkerError, match=r"<trainer of .*cannot be copied or pickled; .*resume="):
        way(trainer)
    assert trainer.step().iteration == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_net_cannot_be_copied_and_goes_on(
    toy: ModuleType, runtime: Callable[..., Any], way: Callable[[Any], Any]
) -> None:
    net = runtime().net(toy.classifier(phase="test"))
    net.forward()
    with pytest.raises(WorkerError, match=r"<net .*cannot be copied or pickled; .*weights="):
        way(net)
    net.forward()


@pytest.mark.parametrize("way", WAYS)
def test_what_shows_a_net_tells_how_its_numbers_are_copied(
    train: Any, way: Callable[[Any], Any]
) -> None:
    net = train().net
    with pytest.raises(WorkerError, match=r"<net .*cannot be copied or pickled; copy\.deepcopy\(net\.p"):
        way(net)
    with pytest.raises(WorkerError, match=r"<blob loss .*cannot be copied or pickled; numpy\.array"):
        way(net.blobs["loss"])
    kept = copy.deepcopy(net.params)
    next(iter(net.params.values()))[0][...] = 7.0
    assert not (next(iter(kept.values()))[0] == 7.0).any()


def test_the_events_of_a_run_can_be_sent_to_another_process(toy: ModuleType, train: Any) -> None:
    trainer = train(solver={"max_iterations": 2, "snapshot_last": False})
    events: list[Event] = []
    trainer.listeners.append(events.append)
    trainer.run()
    sent = pickle.loads(pickle.dumps(events))  # noqa: S301  made by this test
    assert [(event.kind, event.iteration) for event in sent] == [
        (event.kind, event.iteration) for event in events
    ]
    assert sent[1].values["loss"] == events[1].values["loss"]
    assert "spans" not in sent[1].values
