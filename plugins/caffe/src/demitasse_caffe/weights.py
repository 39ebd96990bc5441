"""caffemodel, solverstate and binaryproto files: arrays by layer name.

The numbers stay packed bytes between file and array (see schema.wire_classes), so that nothing is
ever allocated for what a damaged file claims to hold.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, EncodeError

from demitasse import ModelError, Weights
from demitasse_caffe.paths import find
from demitasse_caffe.schema import schema, wire_classes
from demitasse_caffe.upgrade import v1_type

Shape = tuple[int, ...]


def read_caffemodel(path: Path) -> Weights:
    """The parameters of every layer that has some. Raises ModelError for a file that is damaged,
    cut off, or something else."""
    return Weights(dict(_layers(path)))


def read_solverstate(path: Path) -> Weights:
    """The weights that the state names, the iteration, and the state's history by layer."""
    state = _parse(path, "SolverState")
    if not state.HasField("iter"):
        raise ModelError(f"{path}: is not a solver state: it has no iteration")
    learned = _text(state.learned_net, path)
    if not learned:
        raise ModelError(f"{path}: names no caffemodel (learned_net), so its history has no layers")
    found, tried = find(learned, path)
    if found is None:
        raise ModelError(f"{path}: its weights {learned!r} are not there; tried {', '.join(tried)}")
    weights = read_caffemodel(Path(found))
    blobs = iter(state.history)
    wanted = sum(len(arrays) for arrays in weights.parameters.values())
    if len(state.history) != wanted:
        raise ModelError(
            f"{path}: a history of {len(state.history)} blobs, {found} has {wanted} parameters"
        )
    history: dict[str, list[np.ndarray]] = {}
    for name, arrays in weights.parameters.items():
        for index, array in enumerate(arrays):
            blob = _array(next(blobs), path, f"history of layer {name!r}, parameter {index}")
            if blob.size != array.size:
                raise ModelError(
                    f"{path}: history of layer {name!r}, parameter {index} has shape {blob.shape}, "
                    f"the parameter {array.shape}"
                )
            history.setdefault(name, []).append(blob.reshape(array.shape))
    weights.iteration = state.iter
    weights.state = {"history": history}
    return weights


def read_blob(path: Path) -> np.ndarray:
    """The array of a binaryproto file, as a mean image is stored: (channels, height, width) or with
    1 before it. Raises ModelError."""
    return _array(_parse(path, "BlobProto"), path, "blob")


def write_caffemodel(path: Path, weights: Weights) -> None:
    """Write the parameters in the present form, float32 as ``data``, float64 as ``double_data``.
    The file appears whole or not at all. Raises ModelError when it cannot."""
    net = wire_classes()["NetParameter"]()
    for name, arrays in weights.parameters.items():
        layer = net.layer.add(name=name)
        for array in arrays:
            blob = layer.blobs.add()
            blob.shape.dim.extend(array.shape)
            if array.dtype == np.float64:
                blob.double_data.append(array.astype("<f8", order="C").tobytes())
            else:
                blob.data.append(array.astype("<f4", order="C").tobytes())
    try:
        data = net.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise ModelError(f"{path}: the weights do not fit a caffemodel: {error}") from error
    _write_whole(path, data)


def _write_whole(path: Path, data: bytes) -> None:
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise ModelError(f"{path}: cannot be written: {error.strerror}") from error


def _layers(path: Path) -> Iterable[tuple[str, list[np.ndarray]]]:
    net = _parse(path, "NetParameter")
    found = [(_text(layer.name, path), layer.type, layer.blobs) for layer in net.layer]
    for layer in net.layers:
        oldest = layer.HasField("layer")
        inner = layer.layer if oldest else layer
        kind = inner.type if oldest else v1_type(layer)
        found.append((_text(inner.name, path), kind, layer.blobs or inner.blobs))
    if not found:
        raise ModelError(f"{path}: is not a caffemodel: it holds no layer")
    if not any(blobs for _, _, blobs in found):
        raise ModelError(f"{path}: its {len(found)} layers hold no weights")
    for name, kind, blobs in found:
        arrays = [
            _logical(_array(blob, path, f"layer {name!r}, parameter {index}"), blob, kind, index)
            for index, blob in enumerate(blobs)
        ]
        if arrays:
            yield name, arrays


def _parse(path: Path, name: str) -> Any:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    if data.startswith(b"\x89HDF\r\n\x1a\n"):
        raise ModelError(f"{path}: is an HDF5 file, which is not read; save it as a binary caffemodel")
    if not data:
        raise ModelError(f"{path}: is empty")
    message = wire_classes()[name]()
    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError) as error:
        raise ModelError(
            f"{path}: cannot be read as {name}: it is damaged, cut off after {len(data)} bytes, or "
            f"another kind of file"
        ) from error
    return message


def _text(value: Any, path: Path) -> str:
    """A string of the file; protobuf hands out bytes where it is no UTF-8."""
    if not isinstance(value, str):
        raise ModelError(f"{path}: is damaged: {value!r} is not text")
    return value


def _array(blob: Any, path: Path, what: str) -> np.ndarray:
    """A blob's numbers in its shape."""
    packed, kind = (blob.double_data, "<f8") if blob.double_data else (blob.data, "<f4")
    data = packed[0] if len(packed) == 1 else b"".join(packed)
    if not data:
        data, kind = _unpacked(blob)
    shape = _shape(blob)
    count = math.prod(shape)
    if any(extent < 0 for extent in shape) or len(data) != count * np.dtype(kind).itemsize:
        raise ModelError(
            f"{path}: {what}: {len(data)} bytes of {kind[1:]} numbers do not make the shape {shape}"
        )
    return np.frombuffer(data, dtype=kind).reshape(shape).astype(kind[1:])


def _unpacked(blob: Any) -> tuple[bytes, str]:
    """The numbers of a blob whose writer did not pack them, read the slow way."""
    slow = schema({}).message("BlobProto")
    slow.ParseFromString(blob.SerializeToString())
    values, kind = (slow.double_data, "<f8") if slow.double_data else (slow.data, "<f4")
    return np.array(values, dtype=kind).tobytes(), kind


def _shape(blob: Any) -> Shape:
    if blob.HasField("shape"):
        return tuple(blob.shape.dim)
    if any(blob.HasField(name) for name in ("num", "channels", "height", "width")):
        return (blob.num, blob.channels, blob.height, blob.width)
    return (0,)


def _logical(array: np.ndarray, blob: Any, kind: str, index: int) -> np.ndarray:
    """A blob of the years when all had four dimensions, in the shape that its layer gives it."""
    if blob.HasField("shape") or array.ndim != 4:
        return array
    if index == 0 and kind in ("Convolution", "Deconvolution", "conv"):
        return array
    least = 2 if index == 0 and kind in ("InnerProduct", "innerproduct") else 1
    shape = array.shape
    while len(shape) > least and shape[0] == 1:
        shape = shape[1:]
    return array.reshape(shape)
