"""caffemodel and binaryproto files: arrays by layer name.

The numbers stay packed bytes between file and array (see schema.wire_classes), so that nothing is
ever allocated for what a damaged file claims to hold.
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
"""Bytes of a message of protobuf. Python's library writes longer ones, if no blob is as long, which
neither Caffe nor anything else in C++ reads."""

KEPT = {"<f8": "f8"}
"""What numbers become in memory; all others f4."""


def read_caffemodel(path: Path) -> Weights:
    """The parameters of every layer that has some, and their gradients if they were saved. Raises
    ModelError for a file that is damaged, cut off, or something else."""
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
            # The mean of each pixel, of images as large as those in training, is that of channels here.
            arrays[1] = arrays[2]
            continue
        if any(_has_gradient(blob) for blob in blobs):
            weights.gradients[name] = _gradients(blobs, arrays, path, name)
    return weights


def read_blob(path: Path) -> np.ndarray:
    """The array of a binaryproto file, as a mean image is stored: (channels, height, width) or with
    1 before it. Raises ModelError."""
    return array_of(parse_message(path, "BlobProto"), path, "blob")


def write_caffemodel(path: Path, weights: Weights) -> None:
    """Write the parameters in the present form, float32 as ``data``, float64 as ``double_data``, and
    gradients likewise, each in its layer as the net's file has it, where the net is known. The file
    appears whole or not at all. Raises ModelError when it cannot, as for numbers of 2 GiB, which need
    HDF5."""
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
    """Give a net (of wire_classes) the layers of a definition, without numbers; by name the messages of
    those that a file of Caffe's has, the first of each name."""
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
    """Give a blob (of wire_classes) an array's shape and numbers."""
    blob.shape.dim.extend(array.shape)
    if array.dtype == np.float64:
        blob.double_data.append(np.ascontiguousarray(array, "<f8").tobytes())
    else:
        blob.data.append(np.ascontiguousarray(array, "<f4").tobytes())


def serialized(message: Any, path: Path) -> bytes:
    """A message's bytes. Raises ModelError for what no protobuf file can hold: 2 GiB, odd names."""
    try:
        data = bytes(message.SerializeToString())
    except (EncodeError, ValueError) as error:
        raise ModelError(f"{path}: the weights do not fit a file of Caffe's: {error}") from error
    if len(data) > LARGEST_FILE:
        raise _too_large(path, len(data))
    return data


def check_fits(path: Path, arrays: Iterable[np.ndarray]) -> None:
    """Raise ModelError where a protobuf file has no room for the numbers, before they are copied."""
    needed = sum(array.size * (8 if array.dtype == np.float64 else 4) for array in arrays)
    if needed > LARGEST_FILE:
        raise _too_large(path, needed)


def _too_large(path: Path, needed: int) -> ModelError:
    return ModelError(
        f"{path}: {needed:,} bytes do not fit in a protobuf file, which holds at most {LARGEST_FILE:,}; "
        f"write {path.name}.h5 (in a solver, snapshot_format: HDF5)"
    )


def parse_message(path: Path, name: str) -> Any:
    """A file as a message of wire_classes. Raises ModelError."""
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
    """A string of the file; protobuf hands out bytes where it is no UTF-8."""
    if not isinstance(value, str):
        raise ModelError(f"{path}: is damaged: {shortened(value)} is not text")
    return value


def array_of(blob: Any, path: Path, what: str) -> np.ndarray:
    """A blob's numbers in its shape. Raises ModelError that says ``what`` does not fit it."""
    data, kind = numbers_of(blob, "data", f"{path}: {what}")
    if not data:
        data, kind = _unpacked(blob, f"{path}: {what}")
    # Caffe adds a shape axis by axis: a single number's, of no axes, is not in the file.
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
    """Raise ModelError that begins with ``where`` for a shape that no array, not even an empty one,
    can have."""
    if len(shape) > MOST_AXES:
        raise ModelError(f"{where}: its shape has {len(shape):,} axes; at most {MOST_AXES}")
    if 0 in shape and math.prod(max(extent, 1) for extent in shape) > LARGEST_BLOB:
        raise ModelError(
            f"{where}: its shape is {shortened(shape)}, which is empty, but larger than any blob in its "
            f"other extents"
        )


def numbers_of(blob: Any, part: str, where: str) -> tuple[bytes, str]:
    """The bytes of a blob's ``data`` or ``diff`` and their element type, of whichever field has them.
    Raises ModelError that begins with ``where`` for raw numbers of no known type."""
    raw = getattr(blob, f"raw_{part}")
    if raw:
        if not blob.HasField(f"raw_{part}_type"):
            raise ModelError(
                f"{where}: its raw_{part} has no element type that is known here "
                f"(valid: {', '.join(type(blob).RawType.keys())})"
            )
        return raw, _RAW[getattr(blob, f"raw_{part}_type")]
    double, single = getattr(blob, f"double_{part}"), getattr(blob, part)
    if video_width(blob) is not None:  # data stands where Caffe has diff
        single = blob.diff if part == "data" else ()
    packed, kind = (double, "<f8") if double else (single, "<f4")
    return packed[0] if len(packed) == 1 else b"".join(packed), kind


def _has_gradient(blob: Any) -> bool:
    return bool(blob.double_diff or blob.raw_diff or (blob.diff and video_width(blob) is None))


def _gradients(
    blobs: Sequence[Any], arrays: Sequence[np.ndarray], path: Path, name: str
) -> list[np.ndarray]:
    """The gradients of a layer's parameters, an empty array where one has none."""
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
    """The numbers of a blob whose writer did not pack them, read the slow way. Raises ModelError that
    begins with ``where``."""
    slow = schema({}).message("BlobProto")
    try:
        slow.ParseFromString(blob.SerializeToString())
    except (DecodeError, ValueError) as error:
        raise ModelError(f"{where}: is damaged: its numbers cannot be read ({error})") from error
    values, kind = (slow.double_data, "<f8") if slow.double_data else (slow.data, "<f4")
    return np.array(values, dtype=kind).tobytes(), kind


def _shape(blob: Any) -> Shape | None:
    """The shape that a blob says; None where it says none."""
    if (width := video_width(blob)) is not None:
        return (blob.num, blob.channels, blob.height, blob.width, width)
    if blob.HasField("shape"):
        return tuple(blob.shape.dim)
    if any(blob.HasField(name) for name in ("num", "channels", "height", "width")):
        return (blob.num, blob.channels, blob.height, blob.width)
    return None


def _logical(array: np.ndarray, blob: Any, kind: str, index: int) -> np.ndarray:
    """A blob of the years when all had four dimensions, or of C3D's, where all have five, in the shape
    that its layer gives it."""
    if blob.HasField("shape") or array.ndim not in (4, 5):
        return array
    named = kind in ("Convolution", "Deconvolution", "conv")
    # C3D's convolutions have a type of their own, whose number is none of Caffe's.
    if index == 0 and (named or (array.ndim == 5 and not kind)):
        return array
    least = 2 if index == 0 and kind in ("InnerProduct", "innerproduct") else 1
    shape = array.shape
    while len(shape) > least and shape[0] == 1:
        shape = shape[1:]
    return array.reshape(shape)
