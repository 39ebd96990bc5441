"""caffemodel and binaryproto files: arrays by layer name.

Numbers stay packed bytes between the file and the array (see schema.wire_classes), so nothing is ever
allocated for what a damaged file claims to hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, EncodeError

from demitasse import ModelError, NetDefinition, Weights, looks_like, shortened
from demitasse_caffe.schema import LARGEST_BLOB, MOST_AXES, Given, schema, video_width, wire_classes
from demitasse_caffe.unknown_fields import told, unknown_fields
from demitasse_caffe.upgrade import v1_type
from demitasse_caffe.whole_file import ENOUGH, read_whole, write_whole

Shape = tuple[int, ...]

_RAW = ("<f8", "<f4", "<f2", "<i4", "<u4")
"""The element types of BlobProto.RawType, by number."""

LARGEST_FILE = 2**31 - 1
"""The maximum size of a protobuf message in bytes. Python's library writes longer messages, as long as
no single blob is that long, but neither Caffe nor any other C++ program can read them."""

KEPT = {"<f8": "f8"}
"""The element types that numbers get in memory; all others become f4."""


def read_caffemodel(path: Path) -> Weights:
    """Return the parameters of every layer that has any, and their gradients if they were saved. Raise
    ModelError if the file is damaged, truncated, or something else."""
    net = parse_message(path, "NetParameter")
    found = [(text_of(layer.name, path), layer.type, layer.blobs) for layer in net.layer]
    for layer in net.layers:
        oldest = layer.HasField("layer")
        inner = layer.layer if oldest else layer
        kind = inner.type if oldest else v1_type(layer)
        found.append((text_of(inner.name, path), kind, layer.blobs or inner.blobs))
    if not found:
        raise ModelError(f"{path}: is not a caffemodel: it holds no layer")
    if not any(blobs for _, _, blobs in found):
        raise ModelError(f"{path}: its {len(found)} layers hold no weights")
    weights = Weights(notes=told(path, unknown_fields(net)))
    for name, kind, blobs in found:
        arrays = [
            _logical(
                array_of(blob, path, f"layer {shortened(name, quoted=True)}, parameter {index}"),
                blob,
                kind,
                index,
            )
            for index, blob in enumerate(blobs)
        ]
        if arrays:
            weights.parameters[name] = arrays
        if kind == "DataAugmentation" and len(arrays) == 3:
            # The mean of each pixel fits the training size only: the mean of channels replaces it.
            arrays[1] = arrays[2]
            continue
        if any(_has_gradient(blob) for blob in blobs):
            weights.gradients[name] = _gradients(blobs, arrays, path, name)
    return weights


def read_blob(path: Path) -> np.ndarray:
    """Return the array of a binaryproto file, such as a mean image: (channels, height, width), or with a
    leading 1. Raise ModelError."""
    return array_of(parse_message(path, "BlobProto"), path, "blob")


def write_caffemodel(path: Path, weights: Weights) -> None:
    """Write the parameters in the current format: float32 as ``data``, float64 as ``double_data``, and
    gradients likewise. If the net is known, each goes into its layer as the net's file has it. Either
    the whole file appears or nothing. Raise ModelError if the file cannot be written, for example
    because the numbers take 2 GiB or more, which needs HDF5."""
    numbers = (*weights.parameters.values(), *weights.gradients.values())
    check_fits(path, (array for arrays in numbers for array in arrays))
    net = wire_classes()["NetParameter"]()
    described = _describe(net, weights.net) if weights.net is not None else {}
    for name, arrays in weights.parameters.items():
        layer = described[name] if name in described else net.layer.add(name=name)
        gradients = weights.gradients.get(name, [])
        for index, array in enumerate(arrays):
            fill_blob(layer.blobs.add(), array)
            if index < len(gradients) and gradients[index].size == array.size:
                double = array.dtype == np.float64
                packed = layer.blobs[index].double_diff if double else layer.blobs[index].diff
                packed.append(gradients[index].astype("<f8" if double else "<f4", order="C").tobytes())
    write_whole(path, serialized(net, path))


def _describe(net: Any, definition: NetDefinition) -> dict[str, Any]:
    """Give a net (of wire_classes) the layers of a definition, without numbers. Return by name the
    messages of layers that a file of Caffe's can hold, the first one of each name."""
    net.name = definition.name
    found: dict[str, Any] = {}
    for layer in definition.layers:
        written = layer.parameters.message if isinstance(layer.parameters, Given) else layer.parameters
        if getattr(getattr(written, "DESCRIPTOR", None), "name", "") == "LayerParameter":
            message = net.layer.add()
            message.MergeFromString(written.SerializeToString())
            message.ClearField("blobs")
            message.name = layer.name
            found.setdefault(layer.name, message)
    return found


def fill_blob(blob: Any, array: np.ndarray) -> None:
    """Give a blob (of wire_classes) the shape and the numbers of an array."""
    blob.shape.dim.extend(array.shape)
    if array.dtype == np.float64:
        blob.double_data.append(np.ascontiguousarray(array, "<f8").tobytes())
    else:
        blob.data.append(np.ascontiguousarray(array, "<f4").tobytes())


def serialized(message: Any, path: Path) -> bytes:
    """Return a message's bytes. Raise ModelError for what a protobuf file cannot hold: 2 GiB or more, or
    names that are not UTF-8."""
    try:
        data = bytes(message.SerializeToString())
    except (EncodeError, ValueError) as error:
        raise ModelError(f"{path}: the weights do not fit a file of Caffe's: {error}") from error
    if len(data) > LARGEST_FILE:
        raise _too_large(path, len(data))
    return data


def check_fits(path: Path, arrays: Iterable[np.ndarray]) -> None:
    """Raise ModelError if the numbers do not fit into a protobuf file, before they are copied."""
    needed = sum(array.size * (8 if array.dtype == np.float64 else 4) for array in arrays)
    if needed > LARGEST_FILE:
        raise _too_large(path, needed)


def _too_large(path: Path, needed: int) -> ModelError:
    return ModelError(
        f"{path}: {needed:,} bytes do not fit in a protobuf file, which holds at most {LARGEST_FILE:,}; "
        f"write {path.name}.h5 (in a solver, snapshot_format: HDF5)"
    )


def parse_message(path: Path, name: str) -> Any:
    """Parse a file as a message of wire_classes. Raise ModelError."""
    data = read_whole(path)
    if not data:
        raise ModelError(f"{path}: is empty")
    message = wire_classes()[name]()
    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError) as error:
        raise ModelError(
            f"{path}: cannot be read as {name}: it is damaged, cut off after {len(data)} bytes, or "
            f"another kind of file; it {looks_like(data[:ENOUGH])}"
        ) from error
    return message


def text_of(value: Any, path: Path) -> str:
    """Return a string of the file. protobuf returns bytes if it is not UTF-8; that raises ModelError."""
    if not isinstance(value, str):
        raise ModelError(f"{path}: is damaged: {shortened(value)} is not text")
    return value


def array_of(blob: Any, path: Path, what: str) -> np.ndarray:
    """Return a blob's numbers in its shape. Raise ModelError about ``what`` if they do
    not fit the shape."""
    data, kind = numbers_of(blob, "data", f"{path}: {what}")
    if not data:
        data, kind = _unpacked(blob, f"{path}: {what}")
    # Caffe adds a shape axis by axis, so the shape of a single number, which has no axes, is not stored.
    shape = ((0,) if not data else ()) if (said := _shape(blob)) is None else said
    check_believable(shape, f"{path}: {what}")
    count = math.prod(shape)
    if any(extent < 0 for extent in shape) or len(data) != count * np.dtype(kind).itemsize:
        raise ModelError(
            f"{path}: {what}: {len(data)} bytes of {kind[1:]} numbers do not make the shape "
            f"{shortened(shape)}"
        )
    return np.frombuffer(data, dtype=kind).reshape(shape).astype(KEPT.get(kind, "f4"))


def check_believable(shape: Shape, where: str) -> None:
    """Raise ModelError, starting with ``where``, for a shape that not even an empty array can have."""
    if len(shape) > MOST_AXES:
        raise ModelError(f"{where}: its shape has {len(shape):,} axes; at most {MOST_AXES}")
    if 0 in shape and math.prod(max(extent, 1) for extent in shape) > LARGEST_BLOB:
        raise ModelError(
            f"{where}: its shape is {shortened(shape)}, which is empty, but larger than any blob in its "
            f"other extents"
        )


def numbers_of(blob: Any, part: str, where: str) -> tuple[bytes, str]:
    """Return the bytes of a blob's ``data`` or ``diff`` and their element type, from whichever field has
    them. Raise ModelError, starting with ``where``, for raw numbers of an unknown type."""
    raw = getattr(blob, f"raw_{part}")
    if raw:
        if not blob.HasField(f"raw_{part}_type"):
            raise ModelError(
                f"{where}: its raw_{part} has no element type that is known here "
                f"(valid: {', '.join(type(blob).RawType.keys())})"
            )
        return raw, _RAW[getattr(blob, f"raw_{part}_type")]
    double, single = getattr(blob, f"double_{part}"), getattr(blob, part)
    if video_width(blob) is not None:  # C3D's data has the field number of Caffe's diff
        single = blob.diff if part == "data" else ()
    packed, kind = (double, "<f8") if double else (single, "<f4")
    return packed[0] if len(packed) == 1 else b"".join(packed), kind


def _has_gradient(blob: Any) -> bool:
    return bool(blob.double_diff or blob.raw_diff or (blob.diff and video_width(blob) is None))


def _gradients(
    blobs: Sequence[Any], arrays: Sequence[np.ndarray], path: Path, name: str
) -> list[np.ndarray]:
    """Return the gradients of a layer's parameters; an empty array if a parameter has none."""
    result = []
    for index, (blob, array) in enumerate(zip(blobs, arrays, strict=True)):
        where = f"{path}: layer {shortened(name, quoted=True)}, gradient of parameter {index}"
        data, kind = numbers_of(blob, "diff", where)
        if data and len(data) != array.size * np.dtype(kind).itemsize:
            raise ModelError(
                f"{where}: {len(data)} bytes of {kind[1:]} numbers do not make the shape {array.shape}"
            )
        shape = array.shape if data else (0,)
        result.append(np.frombuffer(data, dtype=kind).reshape(shape).astype(KEPT.get(kind, "f4")))
    return result


def _unpacked(blob: Any, where: str) -> tuple[bytes, str]:
    """Read the numbers of a blob whose writer did not pack them, which is slow. Raise ModelError,
    starting with ``where``."""
    slow = schema({}).message("BlobProto")
    try:
        slow.ParseFromString(blob.SerializeToString())
    except (DecodeError, ValueError) as error:
        raise ModelError(f"{where}: is damaged: its numbers cannot be read ({error})") from error
    values, kind = (slow.double_data, "<f8") if slow.double_data else (slow.data, "<f4")
    return np.array(values, dtype=kind).tobytes(), kind


def _shape(blob: Any) -> Shape | None:
    """Return the shape that a blob declares, or None if it declares none."""
    if (width := video_width(blob)) is not None:
        return (blob.num, blob.channels, blob.height, blob.width, width)
    if blob.HasField("shape"):
        return tuple(blob.shape.dim)
    if any(blob.HasField(name) for name in ("num", "channels", "height", "width")):
        return (blob.num, blob.channels, blob.height, blob.width)
    return None


def _logical(array: np.ndarray, blob: Any, kind: str, index: int) -> np.ndarray:
    """Give a blob of the years when every blob had four dimensions, or one of C3D's, which have five,
    the shape that its layer gives it."""
    if blob.HasField("shape") or array.ndim not in (4, 5):
        return array
    named = kind in ("Convolution", "Deconvolution", "conv")
    # C3D's convolutions have a V1 type of their own, whose number Caffe does not use.
    if index == 0 and (named or (array.ndim == 5 and not kind)):
        return array
    least = 2 if index == 0 and kind in ("InnerProduct", "innerproduct") else 1
    shape = array.shape
    while len(shape) > least and shape[0] == 1:
        shape = shape[1:]
    return array.reshape(shape)
