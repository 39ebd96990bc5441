"""Layers with bottoms that run a user's code. Some can report the shapes of their tops only by running,
such as those that propose regions of an image, or make targets for each place of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from demitasse import DataError, ShapeError
from demitasse_training.own_shapes import SampleShapes, users

if TYPE_CHECKING:
    from demitasse_training.planned_net import PlannedNet

Run = Callable[[bool], None]
"""Runs the layers that the net is currently planned for; the argument is whether this is ``again`` on
the same samples."""


def run_through(net: PlannedNet, samples: SampleShapes, run: Run) -> None:
    """Run a forward pass on samples of these shapes. If a user's layer makes tops of other shapes than
    planned, the net is planned again, and the pass starts over with what such layers have made. Each
    such layer is called once, and what the pass changes in parameters, such as running means, changes
    once.

    Raises DataError for samples that the net does not support, and whatever a layer raises. If the net
    could not be planned, its plans and running means are as before.
    """
    parts, restore = [part for _, part in users(net.graph)], net.statistics_kept()
    try:
        again = plan_through(net, samples, run)
        for attempt in range(2 * len(parts) + 1):  # each may change shapes in reshape, then in forward
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
    """Plan for samples of these shapes. Returns whether layers were run for it; the next forward pass of
    these layers then gives what they made, until ``forget``. Raises as ``run_through`` does."""
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
    """Let the next forward pass call users' layers, whatever they made before."""
    for _, part in users(net.graph):
        part.forget()


def _plan_by_running(net: PlannedNet, samples: SampleShapes, run: Run, error: DataError) -> None:
    """Plan for samples of shapes that some layer does not support. To do so, run the layers up to a
    user's layer with bottoms, after which the shapes of its tops may be known; repeat for the next such
    layer. If that does not help, raises ``error``, or the error of the last attempt."""
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
        except DataError as later:  # another user's layer may also have to run
            error = later
    raise error


def _keep(parts: list[Any]) -> None:
    """Let the next pass use what users' layers have made."""
    for part in parts:
        part.keep()
