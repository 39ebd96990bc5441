"""Conversion of images to blobs and back, and of arrays to Caffe's messages and back."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from demitasse import DataError, ModelError, ShapeError, unknown
from demitasse_caffe.opencv import decoded, decoded_bytes
from demitasse_caffe.pycaffe.errors import also
from demitasse_caffe.pycaffe.proto import caffe_pb2
from demitasse_caffe.schema import wire_classes
from demitasse_caffe.weights import KEPT, check_believable, numbers_of

Dims = Sequence[int] | np.ndarray

_OF_AREAS = (1, 3)
"""Caffe resizes images with these numbers of channels by scikit-image, all others by SciPy."""

_LUMINANCE = np.array([0.2125, 0.7154, 0.0721], np.float32)


def load_image(filename: str | Path | BinaryIO, color: bool = True) -> np.ndarray:
    """Read an image from a file name or an open file. Return float32 in [0, 1]: RGB of shape (height,
    width, 3), or (height, width, 1) if ``color`` is false. Raise DataError if the file is missing or not
    an image. Needs OpenCV."""
    how = "load_image", "IMREAD_UNCHANGED"
    if hasattr(filename, "read"):
        pixels = decoded_bytes(filename.read(), repr(filename), *how)
    else:
        pixels = decoded(Path(filename), *how)
    whole = np.issubdtype(pixels.dtype, np.integer)
    largest = float(np.iinfo(str(pixels.dtype)).max) if whole else 1.0
    image = np.atleast_3d(pixels).astype(np.float32) / np.float32(largest)
    # OpenCV's channel order is blue, green, red (and alpha).
    image = np.ascontiguousarray(image[:, :, 2::-1] if image.shape[2] >= 3 else image[:, :, :1])
    if color:
        return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image
    return (image @ _LUMINANCE)[:, :, None] if image.shape[2] == 3 else image


def resize_image(im: np.ndarray, new_dims: Dims, interp_order: int = 1) -> np.ndarray:
    """Resize an image (height, width, channels); return float32. ``interp_order`` 0 takes the nearest
    pixel, 1 interpolates linearly, and higher orders up to 5 are splines, which need SciPy. With 1 or 3
    channels the areas of pixels are aligned, as in scikit-image; with any other number the centres of
    the corner pixels, as in SciPy. Caffe calls these two libraries. The image is not smoothed before it
    is made smaller."""
    image = np.asarray(im, np.float32)
    height, width = (int(extent) for extent in new_dims)
    if image.ndim != 3 or min(image.shape) < 1 or min(height, width) < 1:
        raise ShapeError(f"an image of shape {image.shape} cannot become {height} x {width}")
    if interp_order > 1:
        return _spline(image, (height, width), interp_order)
    for axis, extent in enumerate((height, width)):
        image = _along(image, axis, extent, interp_order, areas=image.shape[2] in _OF_AREAS)
    return image


def resize(
    image: np.ndarray,
    output_shape: Dims,
    order: int = 1,
    mode: str = "reflect",
    cval: float = 0,
    clip: bool = True,
    preserve_range: bool = False,
) -> np.ndarray:
    """Resize an array of any shape; Caffe's io has this function from scikit-image. All axes are
    resized, except the last if ``output_shape`` leaves it out. ``order`` is 0 (nearest) or 1 (linear).
    The areas of pixels are aligned, borders are clamped whatever the ``mode``, and the image is not
    smoothed before it is made smaller. Whole numbers become floats between 0 and 1, unless
    ``preserve_range``. Raise ShapeError for a shape that the image cannot have."""
    made, shape = np.asarray(image), tuple(int(extent) for extent in output_shape)
    if not np.issubdtype(made.dtype, np.floating):
        whole = np.iinfo(made.dtype).max if np.issubdtype(made.dtype, np.integer) else 1
        made = made.astype(np.float64) / (1 if preserve_range else whole)
    wanted = shape + made.shape[-1:] if len(shape) == made.ndim - 1 else shape
    made = made.reshape(made.shape + (1,) * (len(wanted) - made.ndim))
    if len(wanted) != made.ndim or min(made.shape + wanted, default=0) < 1 or order not in (0, 1):
        what = f"an image of shape {np.shape(image)} cannot become {shape} by order {order} (0 or 1)"
        raise also(ShapeError(what), ValueError)
    for axis, extent in enumerate(wanted):
        made = _along(made, axis, extent, order, areas=True)
    return made


def _along(image: np.ndarray, axis: int, extent: int, order: int, *, areas: bool) -> np.ndarray:
    """Resize one axis, with the areas of pixels aligned or else the centres of its ends."""
    old = image.shape[axis]
    if areas:
        place = (np.arange(extent) + 0.5) * (old / extent) - 0.5
    else:
        place = np.arange(extent) * ((old - 1) / max(extent - 1, 1))
    if order == 0:
        nearest: np.ndarray = image.take(np.clip(np.floor(place + 0.5).astype(int), 0, old - 1), axis)
        return nearest
    place = np.clip(place, 0, old - 1)
    below = np.floor(place).astype(int)
    part = (place - below).astype(image.dtype).reshape([-1] + [1] * (image.ndim - 1 - axis))
    above = np.minimum(below + 1, old - 1)
    made: np.ndarray = image.take(below, axis) * (1 - part) + image.take(above, axis) * part
    return made


def _spline(image: np.ndarray, size: tuple[int, int], order: int) -> np.ndarray:
    try:
        from scipy.ndimage import zoom
    except ImportError as error:
        raise DataError(f"interpolation of order {order} needs SciPy (pip install scipy)") from error
    factors = (size[0] / image.shape[0], size[1] / image.shape[1], 1)
    areas = image.shape[2] in _OF_AREAS
    how = {"mode": "nearest", "grid_mode": True} if areas else {}
    made: np.ndarray = zoom(image, factors, order=order, **how)
    return made


def flip_image(im: np.ndarray, scale: float = 128, is_flow: bool = False) -> np.ndarray:
    """Return the mirror image of an image (height, width, channels), as in LRCN's fork. The first
    channel of a flow, its horizontal part, becomes ``scale`` minus it."""
    made = im[:, ::-1].copy()
    if is_flow:
        made[..., 0] = scale - made[..., 0]
    return made


def oversample(images: Sequence[np.ndarray], crop_dims: Dims, flow: bool = False) -> np.ndarray:
    """Return ten crops of each image (height, width, channels): the four corners, the centre, and
    the mirror images of these five (of flows in [0, 1], as in LRCN's fork, if ``flow``). The shape is
    (10 * images, crop height, crop width, channels), the type float32."""
    size = np.array(images[0].shape[:2])
    crop = np.array([int(extent) for extent in crop_dims])
    if (crop > size).any() or (crop < 1).any():
        raise ShapeError(
            f"a crop of {tuple(crop.tolist())} does not fit in an image of {tuple(size.tolist())}"
        )
    edges = size - crop
    corners = [(y, x) for y in (0, edges[0]) for x in (0, edges[1])]
    crops = []
    for image in images:
        taken = [
            image[y : y + crop[0], x : x + crop[1]] for y, x in [*corners, tuple((size - crop) // 2)]
        ]
        crops += taken + [flip_image(part, 1, flow) for part in taken]
    return np.array(crops, np.float32)


class Transformer:
    """Preprocessing of images (height, width, channels) into a net's inputs. ``inputs`` maps the names
    of inputs to shapes (batch, channels, height, width). The steps, in order: resize, transpose, channel
    swap, raw scale, mean, input scale."""

    def __init__(self, inputs: Mapping[str, Sequence[int]]) -> None:
        self.inputs = {name: tuple(shape) for name, shape in inputs.items()}
        self.transpose: dict[str, Sequence[int]] = {}
        self.channel_swap: dict[str, Sequence[int]] = {}
        self.raw_scale: dict[str, float] = {}
        self.mean: dict[str, np.ndarray] = {}
        self.input_scale: dict[str, float] = {}
        self.is_flow: dict[str, bool] = {}

    def preprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """Return an image as input ``in_`` takes it: (channels, height, width), float32."""
        self._check(in_)
        made = np.asarray(data).astype(np.float32)
        size = self.inputs[in_][2:]
        if made.shape[:2] != size:
            made = resize_image(made, size)
        if in_ in self.transpose:
            made = made.transpose(self.transpose[in_])
        if in_ in self.channel_swap:
            made = made[list(self.channel_swap[in_])]
        if in_ in self.raw_scale:
            made = made * np.float32(self.raw_scale[in_])
        if in_ in self.mean:
            made = made - self.mean[in_]
        if in_ in self.input_scale:
            made = made * np.float32(self.input_scale[in_])
        return np.asarray(made, np.float32)

    def deprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """Undo ``preprocess``: return the original image, at the size of the input."""
        self._check(in_)
        made = np.asarray(data).squeeze().astype(np.float32)
        if in_ in self.input_scale:
            made = made / np.float32(self.input_scale[in_])
        if in_ in self.mean:
            made = made + self.mean[in_]
        if in_ in self.raw_scale:
            made = made / np.float32(self.raw_scale[in_])
        if in_ in self.channel_swap:
            made = made[np.argsort(self.channel_swap[in_])]
        if in_ in self.transpose:
            made = made.transpose(np.argsort(self.transpose[in_]))
        return np.asarray(made, np.float32)

    def set_transpose(self, in_: str, order: Sequence[int]) -> None:
        """Set the order of an image's axes in the input: (2, 0, 1) for images (height,
        width, channels)."""
        self._check(in_)
        if sorted(order) != list(range(len(self.inputs[in_]) - 1)):
            raise ShapeError(
                f"{tuple(order)} is not an order of the axes of input {in_!r} without the batch"
            )
        self.transpose[in_] = order

    def set_channel_swap(self, in_: str, order: Sequence[int]) -> None:
        """Set the order of channels in the input: (2, 1, 0) turns RGB into BGR."""
        self._check(in_)
        if sorted(order) != list(range(self.inputs[in_][1])):
            raise ShapeError(
                f"{tuple(order)} is not an order of the {self.inputs[in_][1]} channels of {in_!r}"
            )
        self.channel_swap[in_] = order

    def set_raw_scale(self, in_: str, scale: float) -> None:
        """Set a factor that is applied before the mean: 255 for images in [0, 1] and a
        mean in [0, 255]."""
        self._check(in_)
        self.raw_scale[in_] = scale

    def set_mean(self, in_: str, mean: np.ndarray) -> None:
        """Set what is subtracted: one number for each channel, or an image (channels, height, width),
        which is resized to the input if necessary."""
        self._check(in_)
        channels, *size = self.inputs[in_][1:]
        array = np.asarray(mean, np.float32)
        if array.ndim == 1:
            array = array[:, None, None]
        elif array.ndim == 2:
            array = array[None]
        if array.ndim != 3 or array.shape[0] not in (1, channels):
            given = f"a mean of shape {np.shape(mean)}"
            told = f"{given} does not fit input {in_!r} of shape {self.inputs[in_]}"
            raise also(ShapeError(told), ValueError)
        if array.shape[1:] not in ((1, 1), tuple(size)):
            array = resize_image(array.transpose(1, 2, 0), size).transpose(2, 0, 1)
        self.mean[in_] = array

    def set_input_scale(self, in_: str, scale: float) -> None:
        """Set a factor that is applied after the mean."""
        self._check(in_)
        self.input_scale[in_] = scale

    def set_is_flow(self, in_: str, is_flow: bool) -> None:
        """Remember whether an input is a flow. LRCN's fork has this for its scripts alone; nothing
        depends on it there or here."""
        self._check(in_)
        self.is_flow[in_] = is_flow

    def _check(self, in_: str) -> None:
        if in_ not in self.inputs:
            raise ModelError(unknown("input", in_, self.inputs))


def blobproto_to_array(blob: Any, return_diff: bool = False) -> np.ndarray:
    """Return a BlobProto's data (or diff) in its shape, as float32 or float64."""
    wire = wire_classes()["BlobProto"].FromString(blob.SerializeToString())
    data, kind = numbers_of(wire, "diff" if return_diff else "data", "a blob")
    old = any(blob.HasField(name) for name in ("num", "channels", "height", "width"))
    shape = (blob.num, blob.channels, blob.height, blob.width) if old else tuple(blob.shape.dim)
    check_believable(shape, "a blob")
    if len(data) != math.prod(shape) * np.dtype(kind).itemsize:
        count = len(data) // np.dtype(kind).itemsize
        told = f"a blob's {count} numbers do not make its shape {shape}"
        raise also(ShapeError(told), ValueError)
    return np.frombuffer(data, kind).reshape(shape).astype(KEPT.get(kind, "f4"))


def array_to_blobproto(arr: np.ndarray, diff: np.ndarray | None = None) -> Any:
    """Return a BlobProto with the values of an array, and with a diff if one is given."""
    blob = caffe_pb2.BlobProto()
    blob.shape.dim.extend(arr.shape)
    blob.data.extend(arr.astype(float).ravel().tolist())
    if diff is not None:
        blob.diff.extend(diff.astype(float).ravel().tolist())
    return blob


def arraylist_to_blobprotovector_str(arraylist: Sequence[np.ndarray]) -> bytes:
    """Serialize arrays as a BlobProtoVector."""
    vector = caffe_pb2.BlobProtoVector()
    vector.blobs.extend([array_to_blobproto(array) for array in arraylist])
    data: bytes = vector.SerializeToString()
    return data


arraylist_to_blobprotovecor_str = arraylist_to_blobprotovector_str
"""The name as Caffe (mis)spells it."""


def blobprotovector_str_to_arraylist(text: bytes) -> list[np.ndarray]:
    """Return the arrays in a serialized BlobProtoVector."""
    return [blobproto_to_array(blob) for blob in caffe_pb2.BlobProtoVector.FromString(text).blobs]


def array_to_datum(arr: np.ndarray, label: int | None = None) -> Any:
    """Return a Datum of an array (channels, height, width): bytes for uint8, float_data
    for any other type."""
    if arr.ndim != 3:
        told = f"a datum has the shape (channels, height, width); given {arr.shape}"
        raise also(ShapeError(told), ValueError)
    datum = caffe_pb2.Datum()
    datum.channels, datum.height, datum.width = arr.shape
    if arr.dtype == np.uint8:
        datum.data = arr.tobytes()
    else:
        datum.float_data.extend(arr.astype(float).ravel().tolist())
    if label is not None:
        datum.label = int(label)
    return datum


def datum_to_array(datum: Any) -> np.ndarray:
    """Return a Datum's array (channels, height, width): uint8, or float if it has float_data. Raise
    ShapeError if the data does not fit the shape."""
    shape = (datum.channels, datum.height, datum.width)
    if datum.data:
        array = np.frombuffer(datum.data, np.uint8)
    else:
        array = np.array(datum.float_data).astype(float)
    if array.size != np.prod(shape, dtype=np.float64):
        told = f"a datum's {array.size} numbers do not make its shape {shape}"
        raise also(ShapeError(told), ValueError)
    return array.reshape(shape)


def __getattr__(name: str) -> Any:
    """Return scikit-image, if it is installed: scripts use what Caffe's io imports."""
    if name != "skimage":
        raise AttributeError(f"caffe.io has no {name!r}")
    try:
        importlib.import_module("skimage.io")
        importlib.import_module("skimage.transform")
        return importlib.import_module("skimage")
    except ImportError as error:
        why = "caffe.io.skimage needs scikit-image (pip install scikit-image)"
        raise AttributeError(why) from error
