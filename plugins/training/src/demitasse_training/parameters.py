"""Parameters in flat memory: filling, reading and writing them in logical order, by layer name."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse import (
    Graph,
    ModelError,
    Plan,
    PluginError,
    RandomStream,
    ShapeError,
    Slot,
    Weights,
    blamed,
    nearest,
)
from demitasse_training.graph import NetGraph

log = logging.getLogger("demitasse.training")


def view(slot: Slot, flat: Any) -> np.ndarray:
    """Return a parameter in logical order: a live view of ``flat`` (elements) if that is host memory and
    the layout has no blocks; otherwise a copy, read-only so that nobody writes to it in vain."""
    size = int(np.prod(slot.spec.physical, dtype=np.int64))
    physical = np.asarray(flat[slot.span.start : slot.span.start + size]).reshape(slot.spec.physical)
    array = slot.spec.layout.unpack(physical, slot.spec.shape)
    if not isinstance(flat, np.ndarray) or not np.may_share_memory(array, flat):
        array.flags.writeable = False
    return array


def assign(slot: Slot, flat: Any, value: np.ndarray) -> None:
    """Write a parameter given in logical order; numbers too large for its element type become
    infinite."""
    with np.errstate(over="ignore"):
        packed = slot.spec.layout.pack(np.asarray(value, dtype=slot.spec.dtype))
    flat[slot.span.start : slot.span.start + packed.size] = packed.reshape(-1)


def by_layer(graph: NetGraph, plan: Plan, flat: Any) -> dict[str, list[np.ndarray]]:
    """Return every layer's parameters by name, in the net's order; shared ones appear under each
    owner."""
    found = {owner: view(slot, flat) for slot in plan.slots for owner in slot.owners}
    return _by_layer(graph, plan, found)


def state_by_layer(graph: NetGraph, plan: Plan, memory: Any) -> dict[str, list[np.ndarray]]:
    """Return a solver's arrays in the order of ``by_layer``. A parameter that is not trained, or that
    belongs to an earlier layer, has an empty array."""
    nothing = np.empty(0, memory.dtype)
    found = {}
    for slot in plan.slots:
        for owner in slot.owners:
            mine = slot.trainable and owner == slot.owners[0]
            found[owner] = view(slot, memory) if mine else nothing
    return _by_layer(graph, plan, found)


def _by_layer(
    graph: NetGraph, plan: Plan, found: Mapping[tuple[str, int], np.ndarray]
) -> dict[str, list[np.ndarray]]:
    result: dict[str, list[np.ndarray]] = {layer: [] for layer in _in_order(graph, plan)}
    for layer, number in sorted(found, key=lambda owner: owner[1]):
        result[layer].append(found[layer, number])
    return result


def _in_order(graph: NetGraph, plan: Plan) -> list[str]:
    """Return the layers that have parameters, in the net's order, whatever became of their operations:
    formats that do not name layers rely on it. Layers of another net's plan that this net lacks come
    last.
    """
    named = [layer for slot in plan.slots for layer, _ in slot.owners]
    known = set(named)
    return list(dict.fromkeys([*(layer for layer in graph.owning if layer in known), *named]))


def fill(graph: Graph, plan: Plan, flat: Any, seed: int, chosen: Sequence[Slot] | None = None) -> None:
    """Fill parameters, all or those ``chosen``, as their layers ask. Each has a random stream of its
    own, so the result does not depend on the number of workers or the order of memory. Raises
    PluginError that names the layer if a filler makes another shape or elements that are not real
    numbers."""
    filled = plan.slots if chosen is None else chosen
    slots = {owner: slot for slot in filled for owner in slot.owners}
    for number, parameter in enumerate(graph.parameters):
        slot = slots.get(parameter.owners[0])
        if slot is not None:
            stream = RandomStream(seed, number, slot.spec.dtype)
            layer, place = parameter.owners[0]
            with blamed(parameter.filler, f"filling parameter {place}", f"layer {layer!r}"):
                made = np.asarray(parameter.filler(slot.spec.shape, stream))
            if made.shape != slot.spec.shape:
                raise PluginError(
                    f"layer {layer!r}: the filler of its parameter {place} made {made.shape}, not the "
                    f"{slot.spec.shape} that it was asked for"
                )
            if made.dtype.kind not in "biuf":
                raise PluginError(
                    f"layer {layer!r}: the filler of its parameter {place} made elements of type "
                    f"{made.dtype} (valid: real numbers)"
                )
            assign(slot, flat, made)


@dataclass(frozen=True)
class Loaded:
    """What a file of weights gave a net, as layer names: those ``loaded``; those ``missing`` in the
    file, so that the net keeps its own; those ``unfit`` because of their shapes (only if loading was
    partial); those ``unused`` because the net lacks them; and those loaded but ``not_finite`` (with a
    NaN or an infinity). ``notes`` are the file reader's."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unfit: tuple[str, ...]
    unused: tuple[str, ...]
    not_finite: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} layers"]
        for what, layers in (
            ("not in the file", self.missing),
            ("of other shapes in the file", self.unfit),
            ("not in the net", self.unused),
            ("not finite", self.not_finite),
        ):
            if layers:
                parts.append(f"{what}: {_some(layers)}")
        return "; ".join(parts)


def _some(layers: Sequence[str]) -> str:
    return ", ".join(layers[:6]) + (f" and {len(layers) - 6} more" if layers[6:] else "")


def load(
    graph: NetGraph,
    plan: Plan,
    flat: Any,
    arrays: Mapping[str, Sequence[np.ndarray]],
    path: object,
    *,
    partial: bool = False,
    notes: tuple[str, ...] = (),
) -> Loaded:
    """Copy ``arrays`` into the parameters of layers of the same name; other layers keep theirs, as in
    Caffe. With ``partial``, a layer also keeps all of its parameters if some shape does not fit.
    ``notes`` are passed on to the result. Numbers that are not finite are logged, because a ReLU or a
    max pooling may hide them from all later checks.

    Before anything is copied, raises ShapeError that names the layer and both shapes, or ModelError if
    no layer of the net would be loaded.
    """
    found: dict[str, list[tuple[Slot, np.ndarray]]] = {}
    missing, unfit = set[str](), dict[str, str]()
    counts = _counts(plan)
    for slot in sorted(plan.slots, key=lambda slot: slot.owners[0][1], reverse=True):
        layer, number = slot.owners[0]
        if layer not in arrays:
            missing.add(layer)
        elif problem := unreal(arrays[layer]):
            raise ModelError(f"{path}: layer {layer!r} has {problem}")
        elif reason := _misfit(slot, arrays[layer], number, counts[layer]):
            unfit[layer] = f"{path}: layer {layer!r}{reason}"
        else:
            array = arrays[layer][number].reshape(slot.spec.shape)
            found.setdefault(layer, []).append((slot, array))
    if unfit and not partial:
        raise ShapeError(_unfit(graph, plan, unfit))
    loaded = [layer for layer in found if layer not in unfit]
    if not loaded:
        mine = sorted({*missing, *found, *unfit})
        close = next((f"; {c!r} is close to {n!r}" for n in mine if (c := nearest(n, arrays))), "")
        fitting = " of fitting shapes" if unfit else ""
        raise ModelError(
            f"{path}: none of its layers ({', '.join(list(arrays)[:8])}) is in the net{fitting} "
            f"({', '.join(mine[:8])}){close}"
        )
    for layer in loaded:
        for slot, array in found[layer]:
            assign(slot, flat, array)
    mine = [layer for slot in plan.slots for layer, _ in slot.owners]
    unused = [layer for layer in arrays if layer not in mine]
    not_finite = [layer for layer in loaded if not all(_is_finite(*each) for each in found[layer])]
    if not_finite:
        log.warning(
            "%s: parameters that are not finite in %s: did the net diverge?",
            path,
            ", ".join(f"layer {layer!r}" for layer in not_finite),
        )
    return Loaded(
        tuple(loaded), tuple(sorted(missing)), tuple(unfit), tuple(unused), tuple(not_finite), notes
    )


def tell_missing(level: int, net: object, loaded: Mapping[str, Loaded]) -> None:
    """Log the layers that are missing in all of the weights; they keep the values of their fillers."""
    if not loaded:
        return
    missing = set.intersection(*(set(each.missing) for each in loaded.values()))
    if missing:
        unused = [layer for each in loaded.values() for layer in each.unused]
        log.log(
            level,
            "%s: not in %s: %s, whose parameters keep their initial values%s",
            net,
            ", ".join(loaded),
            _some(sorted(missing)),
            f"; in the file but not in the net: {_some(unused)}" if unused else "",
        )


def unreal(arrays: Sequence[np.ndarray]) -> str:
    """Describe which of a layer's arrays are not real numbers; empty if all are."""
    wrong = [f"{a.dtype} in parameter {i}" for i, a in enumerate(arrays) if a.dtype.kind not in "biuf"]
    return f"{wrong[0]}, but real numbers are needed" if wrong else ""


def _is_finite(slot: Slot, array: np.ndarray) -> bool:
    """Whether all numbers are finite in the parameter's element type. Needs no array of booleans: the
    minimum and the maximum of an array are NaN if one of its elements is."""
    if array.size == 0:
        return True
    with np.errstate(over="ignore"):
        ends = np.array([array.min(), array.max()]).astype(slot.spec.dtype)
    return bool(np.isfinite(ends).all())


def _counts(plan: Plan) -> dict[str, int]:
    """How many parameters each layer has, including shared ones."""
    counts: dict[str, int] = {}
    for slot in plan.slots:
        for layer, number in slot.owners:
            counts[layer] = max(counts.get(layer, 0), number + 1)
    return counts


def _misfit(slot: Slot, arrays: Sequence[np.ndarray], number: int, count: int) -> str:
    """Why a file's arrays do not fit a parameter of a layer that has ``count`` of them, as the end of a
    sentence; empty if they fit."""
    shape = slot.spec.shape
    in_file = f"{len(arrays)} parameter{'s' * (len(arrays) != 1)}"
    if len(arrays) > count:
        return f" has {in_file} in the file, but {count} in the net"
    if number >= len(arrays):
        return f" has {in_file} in the file, but parameter {number} of shape {shape} in the net"
    if fits(arrays[number], shape):
        return ""
    return f", parameter {number}: the file's shape is {arrays[number].shape}, the net's is {shape}"


def _unfit(graph: NetGraph, plan: Plan, unfit: Mapping[str, str]) -> str:
    """An error message: the net's first layer that does not fit, names of some others, and what to
    do."""
    first, *others = (layer for layer in _in_order(graph, plan) if layer in unfit)
    also = ""
    if others:
        also = f"; others do not fit either: {_some(others)}"
    out = "rename a layer to start it afresh, or train with all that do not fit afresh (--partial)"
    return f"{unfit[first]}{also}; {out}"


def fits(array: np.ndarray, shape: Sequence[int]) -> bool:
    """Whether an array can take a shape; extents of 1 do not count."""
    return array.shape == tuple(shape) or (
        array.size == np.prod(shape) and _squeezed(array.shape) == _squeezed(shape)
    )


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if extent != 1)


def gather(graph: NetGraph, plan: Plan, flat: Any, state: Mapping[str, Any]) -> Weights:
    """Return copies of all parameters and of the solver's state, in logical order."""
    return Weights(
        parameters={k: [a.copy() for a in v] for k, v in by_layer(graph, plan, flat).items()},
        state={
            name: {k: [a.copy() for a in v] for k, v in state_by_layer(graph, plan, memory).items()}
            for name, memory in state.items()
        },
    )
