"""Parameters in flat memory: filling, reading and writing them in logical order, by layer name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import Graph, ModelError, Plan, RandomStream, ShapeError, Slot, Weights, nearest


def view(slot: Slot, flat: Any) -> np.ndarray:
    """A parameter in logical order: a live view of ``flat`` (elements) where its layout has no blocks,
    else a copy, which is read-only, so that nobody writes to it in vain."""
    size = int(np.prod(slot.spec.physical, dtype=np.int64))
    physical = flat[slot.span.start : slot.span.start + size].reshape(slot.spec.physical)
    array = slot.spec.layout.unpack(physical, slot.spec.shape)
    if not np.may_share_memory(array, flat):
        array.flags.writeable = False
    return array


def assign(slot: Slot, flat: Any, value: np.ndarray) -> None:
    """Write a parameter given in logical order."""
    packed = slot.spec.layout.pack(np.asarray(value, dtype=slot.spec.dtype))
    flat[slot.span.start : slot.span.start + packed.size] = packed.reshape(-1)


def by_layer(plan: Plan, flat: Any, *, trainable: bool = False) -> dict[str, list[np.ndarray]]:
    """Every layer's parameters by name, shared ones under each of their owners."""
    found: dict[tuple[str, int], np.ndarray] = {}
    for slot in plan.slots:
        if slot.trainable or not trainable:
            found.update((owner, view(slot, flat)) for owner in slot.owners)
    result: dict[str, list[np.ndarray]] = {}
    for layer, number in sorted(found, key=lambda owner: owner[1]):
        result.setdefault(layer, []).append(found[layer, number])
    return result


def fill(graph: Graph, plan: Plan, flat: Any, seed: int) -> None:
    """Fill parameters as their layers ask: each from a random stream of its own, so that the result
    does not depend on the number of workers or the order of memory."""
    slots = {owner: slot for slot in plan.slots for owner in slot.owners}
    for number, parameter in enumerate(graph.parameters):
        slot = slots.get(parameter.owners[0])
        if slot is not None:
            assign(slot, flat, parameter.filler(slot.spec.shape, RandomStream(seed, number)))


def load(plan: Plan, flat: Any, arrays: Mapping[str, Sequence[np.ndarray]], path: object) -> int:
    """Copy ``arrays`` into the parameters of layers of the same name; the number of layers.

    Raises ShapeError that names the layer and both shapes before anything is copied, and ModelError
    when no layer has one of the names.
    """
    todo = list(_matching(plan, arrays, path))
    if not todo:
        mine = sorted({layer for slot in plan.slots for layer, _ in slot.owners})
        close = next((f"; {n!r} is close to {c!r}" for n in arrays if (c := nearest(n, mine))), "")
        raise ModelError(
            f"{path}: none of its layers ({', '.join(list(arrays)[:8])}) is in the net "
            f"({', '.join(mine[:8])}){close}"
        )
    for slot, array in todo:
        assign(slot, flat, array)
    return len({slot.owners[0][0] for slot, _ in todo})


def _matching(
    plan: Plan, arrays: Mapping[str, Sequence[np.ndarray]], path: object
) -> Iterator[tuple[Slot, np.ndarray]]:
    for slot in plan.slots:
        layer, number = slot.owners[0]
        if layer not in arrays:
            continue
        if number >= len(arrays[layer]):
            raise ShapeError(
                f"{path}: layer {layer!r} has {len(arrays[layer])} parameters there, and parameter "
                f"{number} of shape {slot.spec.shape} here"
            )
        array = arrays[layer][number]
        if array.shape != slot.spec.shape and (
            array.size != np.prod(slot.spec.shape)
            or _squeezed(array.shape) != _squeezed(slot.spec.shape)
        ):
            raise ShapeError(
                f"{path}: layer {layer!r}, parameter {number}: the file's shape is {array.shape}, "
                f"the net's {slot.spec.shape}"
            )
        yield slot, array.reshape(slot.spec.shape)


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if extent != 1)


def gather(plan: Plan, flat: Any, state: Mapping[str, Any]) -> Weights:
    """Copies of all parameters and of the solver's state, in logical order."""
    return Weights(
        parameters={k: [a.copy() for a in v] for k, v in by_layer(plan, flat).items()},
        state={
            name: {k: [a.copy() for a in v] for k, v in by_layer(plan, memory, trainable=True).items()}
            for name, memory in state.items()
        },
    )
