"""Layers that run a user's code and have bottoms: one may tell the shapes of its tops only as it runs,
as those do that propose regions of an image, or make targets for each place of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from demitasse import DataError, ShapeError
from demitasse_training.own_shapes import SampleShapes, users

if TYPE_CHECKING:
    from demitasse_training.planned_net import PlannedNet

Run = Callable[[bool], None]
"""Runs the layers that a net is planned for at the time; it is told whether that is ``again`` on the
same samples."""


def run_through(net: PlannedNet, samples: SampleShapes, run: Run) -> None:
    """A forward pass on samples of these shapes: where a user's layer has made tops of other shapes, the
    net is planned again, and the pass begun again on what such layers have made. Each is called once,
    and what the pass changes of parameters, as running means, is changed once.

    Raises DataError for samples that the net cannot take, and what a layer raises; the net's plans and
    running means are then as they were, where it could not be planned.
    """
    parts, restore = [part for _, part in users(net.graph)], net.statistics_kept()
    try:
        again = plan_through(net, samples, run)
        for attempt in range(2 * len(parts) + 1):  # each may tell by reshape, then by forward
            try:
                run(again or attempt > 0)
                return
            except ShapeError:
                changed = next((n for n, part in enumerate(parts) if part.unplanned), None)
                if changed is None or attempt == 2 * len(parts):
                    raise
                restore()
                _keep(parts[: changed + (parts[changed].unplanned == "forward")])
                net.plan_again()
    finally:
        forget(net)


def plan_through(net: PlannedNet, samples: SampleShapes, run: Run) -> bool:
    """Plan for samples of these shapes; whether some layers were run for it, whose next forward gives
    what they made, until they are told to ``forget``. Raises as ``run_through``."""
    for _, part in users(net.graph):
        part.hold()
    try:
        net.follow(samples)
        return False
    except DataError as error:
        try:
            with net.or_as_it_was():
                _plan_by_running(net, samples, run, error)
        except BaseException:
            forget(net)
            raise
        return True


def forget(net: PlannedNet) -> None:
    """Have the next forward of users' layers call them, whatever they made before."""
    for _, part in users(net.graph):
        part.forget()


def _plan_by_running(net: PlannedNet, samples: SampleShapes, run: Run, error: DataError) -> None:
    """Plan for samples of shapes that some layer cannot take: run what is before it, as far as a user's
    layer with bottoms, which may tell the shapes of its tops then. Raises the ``error``, or what is
    wrong after that, where it does not help."""
    parts, restore = list(users(net.graph)), net.statistics_kept()
    names = [layer.name for layer in net.definition.layers]
    made = [part for _, part in parts if not part.bottoms]
    behind = [(layer, part) for layer, part in parts if part.bottoms]
    for number, (layer, part) in enumerate(behind):
        net.follow_first(samples, names.index(layer) + 1)
        try:
            run(number > 0)
        except ShapeError:
            if part.unplanned != "forward":
                raise
        restore()
        made.append(part)
        _keep(made)
        try:
            net.follow_first(samples, None)
            return
        except DataError as later:  # of what another layer may tell, too
            error = later
    raise error


def _keep(parts: list[Any]) -> None:
    """Have the next pass take what users' layers have made."""
    for part in parts:
        part.keep()
