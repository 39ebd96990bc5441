"""Workers read parameters that are at most as old as the model allows, and each push is in them
once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import versions

ITERATIONS = 12

MODELS = {
    "bsp": {},
    "ssp, none ahead": {"model": "ssp", "staleness": 0},
    "ssp": {"model": "ssp", "staleness": 2},
    "asp": {"model": "asp"},
}

pytestmark = pytest.mark.timeout(300, method="thread")


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("model", MODELS)
def test_threads_read_what_is_new_enough_and_lose_no_push(model: str, workers: int) -> None:
    made, syncs = versions.threads(MODELS[model], workers)
    for turn in range(2):
        part = range(turn * ITERATIONS, (turn + 1) * ITERATIONS)
        running = [threading.Thread(target=worker.iterate, args=(part,)) for worker in made]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        for sync in syncs:
            sync.quiesce()
        assert made[0].counted((turn + 1) * ITERATIONS)
        for worker in reversed(made):  # the first one's are a user's
            worker.edit((turn + 1) * ITERATIONS)
    assert [worker.faults for worker in made] == [[]] * workers


def test_processes_read_what_is_new_enough_and_lose_no_push(
    across: Callable[..., list[dict[str, Any]]],
) -> None:
    """Two of three processes hold a shard; under ASP also all three."""
    options = [*MODELS.values(), {"model": "asp", "servers": 3}]
    told = across(json.dumps(options), ITERATIONS // 2, program="versions.py")
    assert [each["rank"] for each in told] == [0, 1, 2]
    for each in told:
        assert each["found"] == [{"faults": [], "whole": [True, True]}] * len(options)
