"""Arrays and attributes of a model file, read without trusting what the file claims."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from demitasse import ModelError
from demitasse_onnx.call import LARGEST, MOST_AXES

_TYPES: dict[int, tuple[str, str]] = {
    onnx.TensorProto.FLOAT: ("<f4", "float_data"),
    onnx.TensorProto.DOUBLE: ("<f8", "double_data"),
    onnx.TensorProto.FLOAT16: ("<f2", "int32_data"),
    onnx.TensorProto.BFLOAT16: ("<u2", "int32_data"),
    onnx.TensorProto.INT64: ("<i8", "int64_data"),
    onnx.TensorProto.INT32: ("<i4", "int32_data"),
    onnx.TensorProto.INT16: ("<i2", "int32_data"),
    onnx.TensorProto.INT8: ("i1", "int32_data"),
    onnx.TensorProto.UINT8: ("u1", "int32_data"),
    onnx.TensorProto.UINT16: ("<u2", "int32_data"),
    onnx.TensorProto.UINT32: ("<u4", "uint64_data"),
    onnx.TensorProto.UINT64: ("<u8", "uint64_data"),
    onnx.TensorProto.BOOL: ("?", "int32_data"),
}
_NAMES: dict[int, str] = {number: name for name, number in onnx.TensorProto.DataType.items()}
_KNOWN = ", ".join(_NAMES[number] for number in _TYPES)


def type_name(number: int) -> str:
    """Return the name of an element type, or its number if the format has no such type."""
    return _NAMES.get(number, str(number))


def check_texts(message: Any, path: Path) -> None:
    """Raise ModelError if a text field of a message, or of a message within it, is not UTF-8; protobuf
    returns bytes for such a field."""
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        several = [value] if isinstance(value, str | bytes) or hasattr(value, "ListFields") else value
        for each in several:
            if field.type == field.TYPE_MESSAGE:
                check_texts(each, path)
            elif not isinstance(each, str):
                raise ModelError(f"{path}: is damaged: {field.name} {each[:40]!r} is not text")


def array(tensor: onnx.TensorProto, path: Path, what: str) -> np.ndarray:
    """Return a tensor's numbers in its shape, read-only. Nothing is allocated for what the file merely
    claims.

    Raise ModelError for an unsupported type, for numbers that do not fit the shape, and for data outside
    the model's own folder.
    """
    where = f"{path}: {what}"
    if tensor.data_type not in _TYPES:
        raise ModelError(
            f"{where}: its elements are of type {type_name(tensor.data_type)} (supported: {_KNOWN})"
        )
    kind, field = _TYPES[tensor.data_type]
    shape = tuple(tensor.dims)
    if any(extent < 0 for extent in shape):
        raise ModelError(f"{where}: its shape {shape} has an extent below 0")
    if len(shape) > MOST_AXES:
        raise ModelError(f"{where}: its shape has {len(shape)} axes, more than {MOST_AXES}")
    if 0 in shape and math.prod(max(extent, 1) for extent in shape) > LARGEST:
        raise ModelError(
            f"{where}: its shape is {shape}, which is empty, but larger than any blob in its other "
            f"extents"
        )
    count, dtype = math.prod(shape), np.dtype(kind)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        data = _external(tensor, path, where, count * dtype.itemsize)
    elif tensor.HasField("raw_data"):
        data = bytes(tensor.raw_data)
    else:
        data = _listed(getattr(tensor, field), field, dtype, where)
    if len(data) != count * dtype.itemsize:
        raise ModelError(
            f"{where}: {len(data)} bytes of {dtype.name} numbers do not make the shape {shape}"
        )
    numbers = np.frombuffer(data, dtype).reshape(shape)
    if tensor.data_type == onnx.TensorProto.BFLOAT16:  # the upper half of a float32, which NumPy has
        numbers = np.left_shift(numbers.astype("<u4"), 16, out=np.empty(shape, "<u4")).view("<f4")
        numbers.flags.writeable = False
    return numbers


def _listed(values: Any, field: str, dtype: np.dtype[Any], where: str) -> bytes:
    if field != "int32_data":
        return bytes(np.array(values, dtype).tobytes())
    wide = np.array(values, np.int64)
    if dtype.kind == "f":  # each holds the 16 bits of a half float
        return bytes(wide.astype(np.uint16).tobytes())
    if dtype.kind in "iu" and wide.size:
        limits = np.iinfo(dtype)
        if wide.min() < limits.min or wide.max() > limits.max:
            raise ModelError(f"{where}: holds numbers that {dtype.name} cannot")
    return bytes(wide.astype(dtype).tobytes())


def _external(tensor: onnx.TensorProto, path: Path, where: str, size: int) -> bytes:
    """Return ``size`` bytes of the file next to the model that the tensor names."""
    given = {entry.key: entry.value for entry in tensor.external_data}
    location = given.get("location", "")
    folder = path.parent.resolve()
    try:
        file = (folder / location).resolve()
        inside = location != "" and file != folder and file.is_relative_to(folder)
        start, length = int(given.get("offset", "0")), int(given.get("length", str(size)))
    except (ValueError, OSError) as error:
        raise ModelError(f"{where}: the description of its external data is wrong: {error}") from error
    if not inside or Path(location).is_absolute():
        raise ModelError(
            f"{where}: its data is in {location!r}, outside the model's folder; only files in that "
            f"folder are read"
        )
    try:
        held = file.stat().st_size
        if start < 0 or length != size or start + length > held:
            raise ModelError(
                f"{where}: needs {size} bytes, but its file {location!r} of {held} bytes is said to "
                f"have {length} from {start} on"
            )
        with file.open("rb") as stream:
            stream.seek(start)
            return bytes(stream.read(length))
    except OSError as error:
        raise ModelError(
            f"{where}: its data in {location!r} cannot be read: {error.strerror}"
        ) from error


def attribute(given: onnx.AttributeProto, path: Path, what: str) -> Any:
    """Return an attribute's value: a number, a text, a tuple of them, or an array. Raise ModelError for
    kinds that no supported operator has, such as a graph."""
    kinds = onnx.AttributeProto
    if given.type == kinds.FLOAT:
        return float(str(np.float32(given.f)))
    if given.type == kinds.INT:
        return int(given.i)
    if given.type == kinds.STRING:
        return given.s.decode("utf-8", "replace")
    if given.type == kinds.STRINGS:
        return tuple(each.decode("utf-8", "replace") for each in given.strings)
    if given.type == kinds.TENSOR:
        return array(given.t, path, f"{what}, attribute {given.name!r}")
    if given.type == kinds.FLOATS:
        return tuple(float(str(np.float32(value))) for value in given.floats)
    if given.type == kinds.INTS:
        return tuple(int(value) for value in given.ints)
    raise ModelError(
        f"{path}: {what}: attribute {given.name!r} is of a kind that is not supported "
        f"(valid: numbers, strings, lists of them, and arrays)"
    )
