"""Solver states, ``.solverstate`` and ``.solverstate.h5``: an iteration, the name of the weights file,
and the solver's history as a plain list of arrays.

The list follows the net's parameters in order. It includes those that are never trained, and contains
each shared parameter once. Solvers that keep two arrays per parameter (AdaDelta, Adam) store all first
ones, then all second ones. In memory the history is arranged by layer: ``state["history"][layer]`` and
``state["second"][layer]`` are parallel to ``parameters[layer]``. An empty array means that the file has
none, because the parameter belongs to another layer or is not trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse import ModelError, Weights, is_file, is_there
from demitasse_caffe.hdf5_file import is_hdf5, made_hdf5, open_hdf5
from demitasse_caffe.hdf5_weights import (
    read_hdf5_weights,
    read_with_order,
    write_array,
    write_hdf5_weights,
)
from demitasse_caffe.paths import attempts, find
from demitasse_caffe.rates import STEP
from demitasse_caffe.schema import wire_classes
from demitasse_caffe.weights import (
    array_of,
    check_fits,
    fill_blob,
    parse_message,
    read_caffemodel,
    serialized,
    text_of,
    write_caffemodel,
)
from demitasse_caffe.whole_file import write_whole

SLOTS = ("history", "second")
"""The names of the solver's arrays in memory, in the order of the file."""

UNNAMED = ""
"""Replaces a layer's name if the order of layers is unknown, which is the case for weights in HDF5 as
Caffe writes them (sorted by name). The entry holds the arrays of all parameters in the net's order."""

_MOST = 1 << 20

Owner = tuple[str, int]


@dataclass(frozen=True)
class _State:
    """The content of a file."""

    iteration: int
    learned: str
    step: int
    history: list[np.ndarray]


def read_solverstate(path: Path) -> Weights:
    """Return the weights that the state names, the iteration, and the history by layer.
    Raise ModelError."""
    state = _read_hdf5(path) if is_hdf5(path) else _read_protobuf(path)
    if not state.learned:
        raise ModelError(f"{path}: names no caffemodel (learned_net), so its history has no layers")
    found, tried = find(state.learned, path)
    beside = path.with_name(Path(state.learned).name or ".")
    if found is None and is_file(beside):
        found = str(beside)  # both files were moved together
    if found is None:
        raise ModelError(f"{path}: its weights {state.learned!r} were not found; {attempts(tried)}")
    file = Path(found)
    if is_hdf5(file):
        weights, ordered = read_with_order(file)
    else:
        weights, ordered = read_caffemodel(file), True
    weights.iteration = state.iteration
    weights.record = {STEP: state.step} if state.step else {}
    if state.history:
        _divide(weights, state.history, ordered, path, file)
    return weights


def write_solverstate(path: Path, weights: Weights) -> None:
    """Write iteration and history, and the weights to the file that the state names: the same name with
    ``caffemodel`` instead of ``solverstate``. The weights are not written if that file already holds
    them. Either all of a file appears or nothing, the weights first. Without any state, the history is
    zero.

    Raise ModelError for weights without an iteration, for state that belongs to none of Caffe's solvers,
    and if the weights file holds other weights, since it may be somebody's only copy.
    """
    if weights.iteration is None:
        raise ModelError(
            f"{path}: the weights have no iteration, so training cannot continue from them; write them "
            f"to a .caffemodel"
        )
    if unknown := set(weights.state) - set(SLOTS):
        raise ModelError(
            f"{path}: solver state {', '.join(sorted(unknown))} has no place in a file of Caffe's "
            f"solvers, which keep {' and '.join(SLOTS)}"
        )
    learned = path.with_name(path.name.replace(".solverstate", ".caffemodel"))
    history = _in_order(weights, path)
    step = weights.record.get(STEP, 0)
    state = _State(weights.iteration, str(learned), step if isinstance(step, int) else 0, history)
    hdf5 = path.suffix == ".h5"
    if not hdf5:
        check_fits(path, history)  # checked before the weights are written
    _write_weights(learned, weights, hdf5)
    (_write_hdf5 if hdf5 else _write_protobuf)(path, state)


# The files.


def _read_protobuf(path: Path) -> _State:
    state = parse_message(path, "SolverState")
    if not state.HasField("iter"):
        raise ModelError(f"{path}: is not a solver state: it has no iteration")
    learned = text_of(state.learned_net, path)
    history = [array_of(blob, path, f"history {index}") for index, blob in enumerate(state.history)]
    return _State(state.iter, learned, state.current_step, history)


def _write_protobuf(path: Path, state: _State) -> None:
    message = wire_classes()["SolverState"]()
    try:
        message.iter, message.current_step = state.iteration, state.step
        message.learned_net = state.learned
    except ValueError as error:
        raise ModelError(f"{path}: does not fit a solver state: {error}") from error
    for array in state.history:
        fill_blob(message.history.add(), array)
    write_whole(path, serialized(message, path))


def _read_hdf5(path: Path) -> _State:
    with open_hdf5(path) as file:
        group = file.group("history")
        if group is None or "iter" not in file.root:
            raise ModelError(f"{path}: is not a solver state: it has no iter and no group 'history'")
        count = len(group)
        if count > _MOST:
            raise ModelError(f"{path}: a history of {count} arrays, but at most {_MOST} are read")
        history = [file.array(group, str(index), f"history {index}") for index in range(count)]
        numbers = [
            file.array(file.root, name, name).reshape(-1) if name in file.root else np.zeros(1, np.int32)
            for name in ("iter", STEP)
        ]
        learned = file.text(file.root, "learned_net")
    for name, array in zip(("iter", STEP), numbers, strict=True):
        if array.size != 1 or array.dtype.kind not in "iu" or not 0 <= int(array[0]) < 1 << 31:
            raise ModelError(f"{path}: {name} is {array.tolist()[:4]}, not a whole number from 0 up")
    return _State(int(numbers[0][0]), learned, int(numbers[1][0]), history)


def _write_hdf5(path: Path, state: _State) -> None:
    with made_hdf5(path) as (root, image):
        root["iter"] = np.array([state.iteration], np.int32)
        root["learned_net"] = np.bytes_(state.learned.encode("utf-8", "surrogateescape"))
        root[STEP] = np.array([state.step], np.int32)
        group = root.create_group("history")
        for index, array in enumerate(state.history):
            write_array(group, str(index), array)
    write_whole(path, image.getvalue())


def _write_weights(path: Path, weights: Weights, hdf5: bool) -> None:
    if not is_there(path):
        (write_hdf5_weights if hdf5 else write_caffemodel)(path, weights)
        return
    present = read_hdf5_weights(path) if is_hdf5(path) else read_caffemodel(path)
    if not _same(present.parameters, weights.parameters):
        raise ModelError(
            f"{path}: exists with other weights than the state's; write the weights there first, or "
            f"give the state another name"
        )


def _same(theirs: dict[str, list[np.ndarray]], ours: dict[str, list[np.ndarray]]) -> bool:
    return theirs.keys() == ours.keys() and all(
        len(theirs[name]) == len(ours[name])
        and all(
            a.shape == b.shape and a.tobytes() == b.astype(a.dtype).tobytes()
            for a, b in zip(theirs[name], ours[name], strict=True)
        )
        for name in ours
    )


# Between the file's list and layers.


def _divide(weights: Weights, history: list[np.ndarray], ordered: bool, path: Path, file: Path) -> None:
    """Give each parameter its part of the history. If the order of layers cannot be found out, the parts
    are stored without names."""
    owners = _counted(weights.parameters, history)
    if len(history) not in (len(owners), 2 * len(owners)):
        raise ModelError(
            f"{path}: a history of {len(history)} blobs, but {file} has {len(owners)} parameters (a "
            f"solver keeps one or two per parameter)"
        )
    parts = [history[: len(owners)], history[len(owners) :]]
    named = parts[: len(history) // len(owners)]
    if not ordered:
        order = _order(weights.parameters, owners, named[0])
        if order is None:
            weights.state = {slot: {UNNAMED: part} for slot, part in zip(SLOTS, named, strict=False)}
            return
        owners = [(layer, number) for layer in order for name, number in owners if name == layer]
        weights.parameters = {layer: weights.parameters[layer] for layer in order} | weights.parameters
    for slot, part in zip(SLOTS, named, strict=False):
        layers = {
            layer: [np.empty(0, array.dtype) for array in arrays]
            for layer, arrays in weights.parameters.items()
        }
        for (layer, number), array in zip(owners, part, strict=True):
            shape = weights.parameters[layer][number].shape
            if array.size != np.prod(shape, dtype=object):
                raise ModelError(
                    f"{path}: history of layer {layer!r}, parameter {number} has shape {array.shape}, "
                    f"but the parameter has {shape}"
                )
            layers[layer][number] = array.reshape(shape)
        weights.state[slot] = layers


def _owners(parameters: dict[str, list[np.ndarray]]) -> Iterator[Owner]:
    """Yield layer and number of every parameter. An empty array belongs to another layer
    (see hdf5_weights)."""
    for layer, arrays in parameters.items():
        yield from ((layer, number) for number, array in enumerate(arrays) if array.size)


def _counted(parameters: dict[str, list[np.ndarray]], history: Sequence[np.ndarray]) -> list[Owner]:
    """Return the parameters that a history covers: all that the weights have, or each shared one once.

    As many arrays as parameters may also be two arrays for each of half as many parameters, as Adam
    keeps for a net of twins. That is assumed if the other half of the parameters are repetitions, and
    what would then be second moments is never negative.
    """
    owners = list(_owners(parameters))
    half, rest = divmod(len(owners), 2)
    one_each = len(history) == len(owners)
    if len(history) == 2 * len(owners) or (
        one_each and (rest or not all((array >= 0).all() for array in history[half:]))
    ):
        return owners
    shared = set(_repeated(parameters, owners))
    once = [owner for owner in owners if owner not in shared]
    return owners if one_each and len(once) != half else once


def _repeated(parameters: dict[str, list[np.ndarray]], owners: Sequence[Owner]) -> Iterator[Owner]:
    """Yield the parameters that repeat an earlier one bit for bit; a file does not record
    better what is shared."""
    seen = set()
    for layer, number in owners:
        array = parameters[layer][number]
        key = array.shape, hashlib.sha256(np.ascontiguousarray(array).data).digest()
        if key in seen:
            yield layer, number
        seen.add(key)


def _order(
    parameters: dict[str, list[np.ndarray]], owners: Sequence[Owner], history: Sequence[np.ndarray]
) -> list[str] | None:
    """Return the order of layers in which all shapes fit, or None if there is no such order
    or more than one."""
    waiting: dict[str, list[int]] = {}
    for layer, number in owners:
        waiting.setdefault(layer, []).append(number)
    shapes = {
        layer: [parameters[layer][number].shape for number in numbers]
        for layer, numbers in waiting.items()
    }
    there, order = [array.shape for array in history], list[str]()
    while shapes:
        fitting = [name for name, wanted in shapes.items() if there[: len(wanted)] == wanted]
        if len(fitting) != 1:
            return None
        del there[: len(shapes.pop(fitting[0]))]
        order += fitting
    return order


def _in_order(weights: Weights, path: Path) -> list[np.ndarray]:
    """Return the file's list. Parameters without state that repeat an earlier one are assumed to be
    shared; all others without state were not trained, and their history is zero."""
    if any(UNNAMED in layers for layers in weights.state.values()):
        return [array for slot in SLOTS for array in weights.state.get(slot, {}).get(UNNAMED, [])]
    slots = [weights.state[slot] for slot in SLOTS if slot in weights.state] or [{}]
    owners = list(_owners(weights.parameters))
    aligned = [_aligned(weights, layers, path) for layers in slots]
    shared = set(_repeated(weights.parameters, owners))
    kept = [
        owner for owner in owners if owner not in shared or any(owner in layers for layers in aligned)
    ]
    return [
        layers.get((layer, number), np.zeros_like(weights.parameters[layer][number]))
        for layers in aligned
        for layer, number in kept
    ]


def _aligned(
    weights: Weights, layers: dict[str, list[np.ndarray]], path: Path
) -> dict[Owner, np.ndarray]:
    """Return a slot's arrays by parameter. A list that is shorter than the layer's parameters (the
    trained ones, in order) is matched to them by shape."""
    found: dict[Owner, np.ndarray] = {}
    for layer, arrays in layers.items():
        parameters = weights.parameters.get(layer, [])
        number = 0
        for array in arrays:
            exact = len(arrays) == len(parameters)
            while not exact and number < len(parameters) and parameters[number].shape != array.shape:
                number += 1
            if number >= len(parameters) or array.size not in (0, parameters[number].size):
                raise ModelError(
                    f"{path}: solver state of layer {layer!r} has the shapes "
                    f"{[a.shape for a in arrays]}, but its parameters {[a.shape for a in parameters]}"
                )
            if array.size:
                found[layer, number] = array.reshape(parameters[number].shape)
            number += 1
    return found
