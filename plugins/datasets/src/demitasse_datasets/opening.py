"""From a specification's options to samples from databases, lists, HDF5 and window files, or made by a
filler. Each option is a plain value; the error for an unknown option suggests the nearest name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import DataError, DataSpec, RandomStream, unknown
from demitasse_datasets.crops import Crop
from demitasse_datasets.images import LARGEST_IMAGE
from demitasse_datasets.samples import Samples
from demitasse_datasets.scaling import Scaling, scaling

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "lmdb": ("crop", "random", "scaling", "stream", "mode", "skip"),
    "leveldb": ("crop", "random", "scaling", "stream", "mode", "skip"),
    "images": (
        *("root", "height", "width", "crop", "random", "scaling", "stream", "mode", "skip", "labels"),
    ),
    "image_pairs": (
        *("root", "height", "width", "crop_height", "crop_width", "random", "mirror", "divide"),
        *("scales", "filled", "mean", "classes", "edges", "mode", "stream", "skip"),
    ),
    "clips": (
        *("root", "height", "width", "pattern", "length", "every", "start", "parts", "random"),
        *("crop", "mirror", "places", "scales", "distortion", "flow", "stacked"),
        *("mode", "stream", "skip"),
    ),
    "hdf5": ("fields",),
    "windows": (
        *("root", "cached", "batch", "crop", "foreground", "background", "fraction"),
        *("padding", "square", "mirror", "scale", "mean", "stream"),
    ),
    "annotated": ("augmentation", "objects", "boxed", "mode", "stream", "declared"),
    "fillers": ("field", "filler", "shape", "stream"),
}
"""Kinds of sources and their options."""


def open_file(path: Path, kind: str, spec: DataSpec) -> Samples:
    """Open a file (or folder) of one of the kinds. Raises DataError."""
    given = _checked(kind, spec.options)
    if kind == "hdf5":
        from demitasse_datasets.hdf5 import Hdf5Samples

        return Hdf5Samples(path, tuple(given.get("fields", ())))
    if kind == "windows":
        return _windows(path, given, spec.seed)
    if kind == "annotated":
        return _annotated(path, given, spec.seed)
    if kind == "image_pairs":
        return _pairs(path, given, spec.seed)
    if kind == "clips":
        return _clips(path, given, spec.seed)
    crop = Crop(
        _extent(given, "crop"),
        bool(given.get("random")),
        spec.seed,
        int(given.get("stream", 0)),
        _scaling(path, given),
    )
    mode = str(given.get("mode", "color" if kind == "images" else "native"))
    _check_mode(mode)
    if kind == "images":
        from demitasse_datasets.image_list import ImageSamples

        root = str(given.get("root", ""))
        labels = bool(given.get("labels", True))
        return ImageSamples(path, root, mode, _size(given, "height", "width"), crop, labels)
    from demitasse_datasets.database import DatumSamples, open_database

    return DatumSamples(open_database(path, kind), crop, mode)


def open_filler(spec: DataSpec) -> Samples:
    """Return samples with one ``field`` that the option ``filler`` makes, in batches of ``shape``.
    Raises DataError."""
    from demitasse_datasets.generated import GeneratedSamples

    given = _checked("fillers", spec.options)
    if not callable(given.get("filler")) or "shape" not in given:
        raise DataError('kind "fillers" needs the options filler (a function of a shape) and shape')
    field, shape, stream = str(given.get("field", "data")), tuple(given["shape"]), given.get("stream", 0)
    return GeneratedSamples(field, given["filler"], shape, spec.seed, int(stream))


def skipped(spec: DataSpec) -> int:
    """How many samples to skip at the start: a random number below the option ``skip``."""
    most = int(spec.options.get("skip", 0)) if spec.kind != "fillers" else 0
    if most < 1:
        return 0
    stream = RandomStream(spec.seed, int(spec.options.get("stream", 0)))
    return int(stream.integers(1, most)[0])


def _windows(path: Path, given: Mapping[str, Any], seed: int) -> Samples:
    from demitasse_datasets.windows import Sampling, WindowSamples

    given = dict(given)
    root, cached = str(given.pop("root", "")), bool(given.pop("cached", False))
    crop, padding = _extent(given, "crop"), int(given.get("padding", 0))
    if crop < 1 or int(given.get("batch", 0)) < 1:
        raise DataError(f"{path}: windows need a crop size and a batch of 1 or more")
    if not 0 <= 2 * padding < crop:
        raise DataError(f"{path}: a padding of {padding} leaves nothing of a crop of {crop}")
    if not 0 <= float(given.get("fraction", 0.25)) <= 1:
        raise DataError(f"{path}: a fraction of {given['fraction']} of the windows (valid: 0 to 1)")
    if given.get("mean") is not None:
        given["mean"] = np.asarray(given["mean"], np.float32)
    return WindowSamples(path, root, cached, Sampling(**given, seed=seed))


def _pairs(path: Path, given: Mapping[str, Any], seed: int) -> Samples:
    from demitasse_datasets.image_pairs import CLASSES, Cut, PairSamples

    mode, divide = str(given.get("mode", "color")), int(given.get("divide", 1))
    _check_mode(mode)
    classes, scales = str(given.get("classes", "pixels")), tuple(map(float, given.get("scales", ())))
    if classes not in CLASSES:
        raise DataError(unknown("kind of classes", classes, CLASSES))
    if not all(0 < scale <= LARGEST_IMAGE for scale in scales):
        raise DataError(f"{path}: images are resized {scales} times (valid: numbers above 0)")
    if (filled := given.get("filled")) is not None and not 0 <= filled <= 255:
        raise DataError(f"{path}: images are filled up with class {filled} (valid: 0 to 255)")
    part = _size(given, "crop_height", "crop_width")
    if divide < 1 or (divide > 1 and part):
        raise DataError(
            f"{path}: classes are divided by {divide} (valid: 1 or more, and 1 if images are cut)"
        )
    anywhere, mirror = bool(given.get("random", True)), bool(given.get("mirror", False))
    cut = Cut(part, anywhere, mirror, scales, filled, seed, int(given.get("stream", 0)))
    resized, mean = _size(given, "height", "width"), given.get("mean")
    mean = None if mean is None else np.asarray(mean, np.float64)
    root = str(given.get("root", ""))
    edges = bool(given.get("edges", False))
    if edges and (classes != "pixels" or divide > 1 or scales):
        raise DataError(f"{path}: edges come in images of their own, as large as those they belong to")
    return PairSamples(path, root, mode, resized, cut, divide, mean, classes, edges)


def _clips(path: Path, given: Mapping[str, Any], seed: int) -> Samples:
    from demitasse_datasets.clips import SCALES, STARTS, ClipSamples, Cut, Frames

    mode, start = str(given.get("mode", "color")), str(given.get("start", "listed"))
    if start not in STARTS:
        raise DataError(unknown("start of clips", start, STARTS))
    if mode not in ("color", "gray"):
        raise DataError(unknown("mode of clips", mode, ("color", "gray")))
    counts = {name: int(given.get(name, 1)) for name in ("length", "every", "parts")}
    if bad := [name for name, count in counts.items() if not 1 <= count <= LARGEST_IMAGE]:
        raise DataError(f"{path}: {bad[0]} {counts[bad[0]]:,} of clips (valid: 1 to {LARGEST_IMAGE:,})")
    random, pattern = bool(given.get("random", False)), str(given.get("pattern", ""))
    places, scales = int(given.get("places", 0)), tuple(map(float, given.get("scales", ())))
    if places not in (0, 5, 13) or not all(0 < scale <= 1 for scale in scales):
        raise DataError(
            f"{path}: clips are cut at {places} places, by {scales} (valid: 0, 5 or 13, by up to 1)"
        )
    cut = Cut(
        _extent(given, "crop"),
        random,
        bool(given.get("mirror", False)),
        places,
        scales if scales else SCALES if given.get("scales") is not None else (),
        int(given.get("distortion", 1)),
        bool(given.get("flow", False)),
    )
    return ClipSamples(
        path,
        str(given.get("root", "")),
        mode,
        _size(given, "height", "width"),
        Frames(start=start, random=random, **counts),
        cut,
        pattern,
        bool(given.get("stacked", False)),
        seed,
        int(given.get("stream", 0)),
    )


def _annotated(path: Path, given: Mapping[str, Any], seed: int) -> Samples:
    from demitasse_datasets.annotated.asked import augmentation
    from demitasse_datasets.annotated.samples import AnnotatedSamples
    from demitasse_datasets.database import kind_of, open_database

    kind = kind_of(path)
    if kind is None:
        raise DataError(f"{path}: is not an LMDB or LevelDB database, which images with boxes need")
    mode, objects = str(given.get("mode", "native")), int(given.get("objects", 256))
    _check_mode(mode)
    if objects < 1:
        raise DataError(f"room for {objects} objects an image (valid: 1 or more)")
    try:
        made = augmentation(given.get("augmentation", {}), seed, int(given.get("stream", 0)))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: {error}") from error
    return AnnotatedSamples(
        open_database(path, kind), mode, made, objects, bool(given.get("boxed", False))
    )


def _scaling(path: Path, given: Mapping[str, Any]) -> Scaling | None:
    if not given.get("scaling"):
        return None
    try:
        made = scaling(dict(given["scaling"]))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: scaling: {error}") from error
    if not given.get("crop") and getattr(made, "size", None) is None:
        raise DataError(
            f"{path}: images that are resized to several sizes need a crop that makes them equal"
        )
    return made


def _checked(kind: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in options:
        if name not in OPTIONS[kind]:
            raise DataError(unknown(f"option of kind {kind}", name, OPTIONS[kind]))
    return options


def _check_mode(mode: str) -> None:
    from demitasse_datasets.images import MODES

    if mode not in MODES:
        raise DataError(unknown("mode of images", mode, MODES))


def _size(given: Mapping[str, Any], rows: str, columns: str) -> tuple[int, int] | None:
    """Return a height and a width; None if neither is given."""
    size = _extent(given, rows), _extent(given, columns)
    if (size[0] == 0) != (size[1] == 0):
        raise DataError(f"{rows} {size[0]} and {columns} {size[1]}: give both, or neither")
    return size if size[0] else None


def _extent(given: Mapping[str, Any], name: str) -> int:
    value = int(given.get(name, 0))
    if not 0 <= value <= LARGEST_IMAGE:
        raise DataError(f"{name} {value:,} (valid: 0 to {LARGEST_IMAGE:,})")
    return value
