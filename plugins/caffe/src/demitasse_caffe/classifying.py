"""Classification of image files by a net, as in Caffe's C++ example."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import DataError, ModelError, ShapeError, available_bytes, nearest_path, unknown
from demitasse_caffe.opencv import decoded, opencv

TOGETHER = 32
"""The number of images in one batch."""

_AT_ONCE = 9
"""Bytes for each number of a resized image's pixels: the decoded number, the number as a float, and the
number less the mean."""


class Classifier:
    """A net with weights, and the preprocessing of its input. Images are decoded by OpenCV, blue first
    (red if ``rgb``), and resized to the input's size (or to ``resize`` rows and columns, of which the
    centre is cropped). Then ``mean`` is subtracted and the result is multiplied by ``scale``.

    ``mean`` is a number for each channel in the net's order, or an image (channels, rows, columns). Of
    an image the means of its channels are used or, with ``resize``, each pixel if it has that size.
    ``blob`` names the output, if there are several.
    """

    def __init__(
        self,
        runtime: Any,
        net: str | Path,
        weights: str | Path,
        *,
        mean: np.ndarray | None = None,
        scale: float = 1.0,
        resize: int | None = None,
        rgb: bool = False,
        blob: str | None = None,
        precision: str | None = None,
    ) -> None:
        """Raise ModelError if the net does not have exactly one input of images, or has no single
        output; raise ShapeError for a mean or a size that does not fit."""
        self.net = runtime.net(net, weights=weights, precision=precision)
        where = self.net.definition.location
        inputs = {name: tuple(tensor.shape) for name, tensor in self.net.graph.inputs.items()}
        if not inputs:
            raise ModelError(
                f"{where}: the net reads its own samples; give one that takes them as input (a deploy "
                f"net, with an Input layer)"
            )
        self.input, shape = next(iter(inputs.items()))
        if len(inputs) > 1 or len(shape) != 4 or shape[1] not in (1, 3):
            said = ", ".join(f"{name} {shape}" for name, shape in inputs.items())
            raise ModelError(
                f"{where}: images need one input of 1 or 3 channels (batch, channels, height, width), "
                f"not {said}"
            )
        self.channels, self.size = shape[1], (shape[2], shape[3])
        outputs = list(self.net.plan.outputs)
        if blob is not None and blob not in outputs:
            raise ModelError(unknown("output", blob, outputs, where))
        if blob is None and len(outputs) != 1:
            raise ModelError(f"{where}: the net has the outputs {', '.join(outputs)}; name one")
        self.blob = blob or outputs[0]
        self.resized = (resize, resize) if resize else self.size
        if self.resized[0] < self.size[0] or self.resized[1] < self.size[1]:
            raise ShapeError(
                f"{where}: the net takes {self.size} pixels, but images are resized to {self.resized}"
            )
        needed, there = math.prod((*self.resized, self.channels, _AT_ONCE)), available_bytes()
        if there is not None and needed > there:
            told = " x ".join(map(str, self.resized))
            raise ShapeError(
                f"images of {told} pixels take {needed / 2**30:,.1f} GiB each, but only "
                f"{there / 2**30:.1f} GiB are available: resize to less"
            )
        self.rgb, self.scale = rgb, np.float32(scale)
        self.mean = None if mean is None else self._mean(np.asarray(mean, np.float32))

    def _mean(self, mean: np.ndarray) -> np.ndarray:
        """Return the mean as it is subtracted from a resized image (height, width, channels)."""
        if mean.ndim == 4 and mean.shape[0] == 1:
            mean = mean[0]
        if mean.ndim == 0:
            mean = mean.reshape(1)
        if mean.ndim not in (1, 3) or mean.shape[0] not in (1, self.channels):
            last = mean.ndim == 3 and mean.shape[2] in (1, self.channels)
            hint = "; its channels come last: move them first, by transpose(2, 0, 1)" if last else ""
            raise ShapeError(f"a mean of shape {mean.shape} does not fit {self.channels} channels{hint}")
        if mean.ndim == 3 and mean.shape[1:] == self.resized and self.resized != self.size:
            return mean.transpose(1, 2, 0)
        averages: np.ndarray = mean.reshape(mean.shape[0], -1).mean(1, dtype=np.float64)
        return averages.astype(np.float32)

    def scores(self, images: Sequence[str | Path]) -> np.ndarray:
        """Return the output for each image file, shape (images, classes). Raise DataError if a file is
        missing or not an image."""
        given = np.stack([self._input(Path(image)) for image in images])
        found: np.ndarray = self.net.forward(**{self.input: given})[self.blob]
        if not found.ndim or found.shape[0] != len(images):
            raise ShapeError(f"output {self.blob!r} has the shape {found.shape}, not one row per image")
        return found.reshape(len(images), -1)

    def _input(self, path: Path) -> np.ndarray:
        flags = "IMREAD_COLOR" if self.channels == 3 else "IMREAD_GRAYSCALE"
        pixels = decoded(path, "classify", flags)
        if pixels.shape[:2] != self.resized:
            cv2 = opencv("classify")
            pixels = cv2.resize(pixels, self.resized[::-1], interpolation=cv2.INTER_LINEAR)
        made = pixels.reshape(*self.resized, self.channels).astype(np.float32)
        made = made[:, :, ::-1] if self.rgb else made
        if self.mean is not None:
            made = made - self.mean
        top, left = ((whole - part) // 2 for whole, part in zip(self.resized, self.size, strict=True))
        made = made[top : top + self.size[0], left : left + self.size[1]] * self.scale
        return made.transpose(2, 0, 1)


def classify(
    runtime: Any, net: str | Path, weights: str | Path, images: Sequence[str | Path], **options: Any
) -> np.ndarray:
    """Return the scores of image files, shape (images, classes). Options and errors are those
    of ``Classifier``."""
    classifier = Classifier(runtime, net, weights, **options)
    parts = [images[start : start + TOGETHER] for start in range(0, len(images), TOGETHER)]
    return np.concatenate([classifier.scores(part) for part in parts])


def read_labels(path: Path) -> list[str]:
    """Return the names of the classes, one from each line up to the last that is not
    blank. Raise DataError."""
    try:
        data = path.read_bytes()
        wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = data.decode("utf-16" if wide else "utf-8-sig", errors="replace")
        return text.rstrip().splitlines()
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read: {reason}{nearest_path(path)}") from error
