"""Choosing the quickest of several ways to compute the same, by measuring them where they will run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from demitasse import DemitasseError

if TYPE_CHECKING:
    from demitasse_gpu.device import Device

ROUNDS = 5


def quickest(device: Device, ways: Sequence[Callable[[int], None]]) -> int:
    """The position of the way that takes least, of the best of some rounds; what a way writes is
    overwritten later. One that fails is not taken; raises its error where all do."""
    if len(ways) == 1:
        return 0
    times, failure = list[float](), None
    for way in ways:
        try:
            times.append(_measured(device, way))
        except DemitasseError as error:
            failure = error
            times.append(math.inf)
    best = min(range(len(ways)), key=times.__getitem__)
    if failure is not None and times[best] == math.inf:
        raise failure
    return best


def _measured(device: Device, way: Callable[[int], None]) -> float:
    driver, stream = device.driver, device.stream
    events = [driver.event() for _ in range(ROUNDS + 1)]
    try:
        way(stream)  # loads its code
        driver.record(events[0], stream)
        for event in events[1:]:
            way(stream)
            driver.record(event, stream)
        driver.wait(events[-1])
        return min(driver.seconds_between(*events[i : i + 2]) for i in range(ROUNDS))
    finally:
        for event in events:
            driver.end_event(event)
