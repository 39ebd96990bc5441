"""A replacement for ``scipy.misc`` as it was before SciPy 1.3, with what scripts of Caffe's time use:
``imread``, ``imsave``, ``imresize``, and the functions that these call, ``toimage``, ``fromimage`` and
``bytescale``. Like the originals, it needs Pillow.

Images are arrays (height, width) or (height, width, 3 or 4).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

_NAME = "scipy.misc"
_FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "cubic": 3}
_CHANNELS = {3: "RGB", 4: "RGBA"}


def bring_back() -> None:
    """Make ``import scipy.misc`` find this module from now on, provided that SciPy is installed."""
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == _NAME and find_spec("scipy") is not None else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        names = ("imread", "imsave", "imresize", "toimage", "fromimage", "bytescale")
        vars(module).update({name: globals()[name] for name in names})


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("scipy.misc's functions of images need Pillow (pip install pillow)") from error
    return Image


def imread(name: Any, flatten: bool = False, mode: str | None = None) -> np.ndarray:
    """Read an image file, by its name or open, as an array in its own mode or in Pillow's ``mode``.
    ``flatten`` returns gray as float32. Raise FileNotFoundError, or Pillow's UnidentifiedImageError."""
    with _pillow().open(name) as image:
        return fromimage(image, flatten, mode)


def fromimage(im: Any, flatten: bool = False, mode: str | None = None) -> np.ndarray:
    """Return a Pillow image as an array; an image with a palette as its colours."""
    if mode is not None:
        im = im if mode == im.mode else im.convert(mode)
    elif im.mode == "P":
        im = im.convert("RGBA" if "transparency" in im.info else "RGB")
    if flatten:
        im = im.convert("F")
    elif im.mode == "1":
        im = im.convert("L")
    return np.array(im)


def bytescale(
    data: Any, cmin: float | None = None, cmax: float | None = None, high: int = 255, low: int = 0
) -> np.ndarray:
    """Scale values from ``cmin`` to ``cmax`` (by default the minimum and the maximum) to the range from
    ``low`` to ``high``, as uint8. Return an array of uint8 unchanged. Raise ValueError."""
    data = np.asarray(data)
    if data.dtype == np.uint8:
        given: np.ndarray = data
        return given
    if not 0 <= low <= high <= 255:
        raise ValueError(f"low {low} and high {high} are not in order from 0 to 255")
    least = data.min() if cmin is None else cmin
    most = data.max() if cmax is None else cmax
    if most < least:
        raise ValueError(f"cmax {most} is less than cmin {least}")
    scaled = (data - least) * (float(high - low) / ((most - least) or 1)) + low
    made: np.ndarray = (scaled.clip(low, high) + 0.5).astype(np.uint8)
    return made


def toimage(
    arr: Any,
    high: int = 255,
    low: int = 0,
    cmin: float | None = None,
    cmax: float | None = None,
    pal: Any = None,
    mode: str | None = None,
    channel_axis: int | None = None,
) -> Any:
    """Return a Pillow image of an array, scaled by ``bytescale`` except in modes F and I. Raise
    ValueError for a palette, and for an array that is neither gray nor has 3 or 4 channels."""
    data = np.asarray(arr)
    if pal is not None:
        raise ValueError("a palette is not supported: give an array of colours")
    if np.iscomplexobj(data):
        raise ValueError("an image of complex numbers is not supported")
    if data.ndim == 2:
        if mode in ("F", "I"):
            pixels = data.astype(np.float32 if mode == "F" else np.int32)
        elif mode in (None, "L"):
            mode, pixels = "L", bytescale(data, cmin, cmax, high, low)
        else:
            raise ValueError(f"mode {mode!r} of an array of two axes (valid: L, F, I)")
    elif data.ndim == 3 and (channel_axis is not None or {3, 4} & {*data.shape}):
        axis = channel_axis
        if axis is None:
            axis = data.shape.index(3 if 3 in data.shape else 4)
        pixels = np.moveaxis(bytescale(data, cmin, cmax, high, low), axis, -1)
        if pixels.shape[-1] not in _CHANNELS:
            raise ValueError(f"{pixels.shape[-1]} channels, but an image has 3 or 4")
        mode = mode or _CHANNELS[pixels.shape[-1]]
        if len(mode) != pixels.shape[-1]:
            raise ValueError(f"mode {mode!r} of {pixels.shape[-1]} channels")
    else:
        raise ValueError(f"an array of shape {data.shape} is not an image: (height, width[, 3 or 4])")
    return _pillow().frombytes(mode, pixels.shape[1::-1], np.ascontiguousarray(pixels).tobytes())


def imsave(name: Any, arr: Any, format: str | None = None) -> None:
    """Write an array (channels last) by ``toimage``, in the format of the name's suffix, or in
    ``format``. Raise ValueError, or OSError if the file cannot be written."""
    toimage(arr, channel_axis=2).save(name, *(() if format is None else (format,)))


def imresize(arr: Any, size: Any, interp: str = "bilinear", mode: str | None = None) -> np.ndarray:
    """Resize an array: ``size`` is a percentage (an integer), a fraction (a float), or (height, width).
    The result is uint8; other types are scaled as by ``toimage``. Raise ValueError."""
    if interp not in _FILTERS:
        raise ValueError(f"unknown interp {interp!r} (valid: {', '.join(_FILTERS)})")
    image = toimage(arr, mode=mode)
    if np.ndim(size) == 0:
        share = size / 100 if isinstance(size, (int, np.integer)) else float(size)
        width, height = (int(extent * share) for extent in image.size)
    else:
        height, width = (int(extent) for extent in size[:2])
    return fromimage(image.resize((width, height), resample=_FILTERS[interp]))
