"""Classification of windows of images by a net."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import ModelError, ShapeError
from demitasse_caffe.pycaffe import io
from demitasse_caffe.pycaffe.classifier import ImageNet


class Detector(ImageNet):
    """Class scores for windows (ymin, xmin, ymax, xmax) of images. Each window is warped to the size of
    the net's input, with ``context_pad`` pixels of context around it, counted in the input."""

    def __init__(
        self,
        model_file: str | Path,
        pretrained_file: str | Path | None,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        context_pad: int | None = None,
        **of_2014: Any,
    ) -> None:
        preprocessing = mean, input_scale, raw_scale, channel_swap
        super().__init__(model_file, pretrained_file, *preprocessing, **of_2014)
        self.context_pad = int(context_pad or 0)

    def detect_windows(
        self, images_windows: Iterable[tuple[str | Path, Sequence[Sequence[int]]]]
    ) -> list[dict[str, Any]]:
        """Return one dict for each window of each image file, with the keys ``window``, ``prediction``
        and ``filename``."""
        crops, about = [], []
        for filename, windows in images_windows:
            image = io.load_image(filename)
            for window in windows:
                crops.append(self.crop(image, window))
                about.append({"window": np.asarray(window), "filename": filename})
        if not crops:
            return []
        scores = self.run(crops)
        scores = scores.reshape(len(crops), -1)
        return [{**each, "prediction": row} for each, row in zip(about, scores, strict=True)]

    def detect_selective_search(self, image_fnames: Sequence[str | Path]) -> list[dict[str, Any]]:
        """Raise ModelError: Caffe gets the windows from a MATLAB package, which is
        not available here."""
        raise ModelError(
            "selective search needs a program that is not included; make the windows yourself "
            "(OpenCV has one in ximgproc) and call detect_windows"
        )

    def crop(self, im: np.ndarray, window: Sequence[int]) -> np.ndarray:
        """Return a window of an image, warped to the net's size. With ``context_pad``, the window grows
        until it has a border of that many pixels in the net's input; parts that lie outside the image
        are filled with the mean. The method is that of Girshick et al. 2014, *Rich Feature Hierarchies*,
        appendix A, and matches Caffe's detector to the pixel."""
        top, left, bottom, right = (float(edge) for edge in window)
        size, pad = self.crop_size, self.context_pad
        if bottom <= top or right <= left or 2 * pad >= min(size):
            raise ShapeError(f"window {tuple(window)} with a border of {pad} is empty")
        begin, end = np.array([top, left]), np.array([bottom, right])
        if pad > 0:  # here R-CNN counts a window's last row and column as part of it
            half = (end - begin + 1) / 2
            grown = half * size / (size - 2 * pad)
            begin, end = np.round(begin + half - grown), np.round(begin + half + grown)
        first = np.clip(begin, 0, im.shape[:2]).astype(int)
        last = np.clip(end, 0, im.shape[:2]).astype(int)
        inner = im[first[0] : last[0], first[1] : last[1]]
        if not inner.size:
            raise ShapeError(f"window {tuple(window)} lies outside an image of {im.shape[:2]}")
        if pad == 0:
            return io.resize_image(inner, size)
        scale = size / (end - begin + 1)
        at = np.round(np.maximum(-begin, 0) * scale).astype(int)
        within = np.minimum(np.round((last - first + 1) * scale).astype(int), size - at)
        if (within < 1).any():
            raise ShapeError(f"window {tuple(window)} is less than a pixel of what the net takes")
        made = self._background(im.shape[2])
        made[at[0] : at[0] + within[0], at[1] : at[1] + within[1]] = io.resize_image(inner, within)
        return made

    def _background(self, channels: int) -> np.ndarray:
        """Return an image that becomes all zeros once the transformer has subtracted the mean."""
        name, (height, width) = self.image_input, self.crop_size
        if name not in self.transformer.mean:
            return np.zeros((height, width, channels), np.float32)
        zeros = np.zeros((self.blobs[name].shape[1], height, width), np.float32)
        return np.ascontiguousarray(self.transformer.deprocess(name, zeros))
