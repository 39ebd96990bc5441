"""Classification of images by a net."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demitasse_caffe.mean import read_mean
from demitasse_caffe.pycaffe import io
from demitasse_caffe.pycaffe.net import Net
from demitasse_caffe.pycaffe.runtime import TEST


class ImageNet(Net):
    """A net in phase TEST whose first input is images, with the transformer that preprocesses them.

    ``gpu`` and ``mean_file`` are arguments of early 2014: the first has no effect, the second is a NumPy
    file. With it ``input_scale`` is applied before the mean, as it was then.
    """

    def __init__(
        self,
        model_file: str | Path,
        pretrained_file: str | Path | None,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        gpu: bool = False,
        mean_file: str | Path | None = None,
    ) -> None:
        super().__init__(model_file, phase=TEST, weights=pretrained_file)
        if mean_file is not None:
            mean = read_mean(Path(mean_file))
            raw_scale, input_scale = raw_scale or input_scale, input_scale if raw_scale else None
        self.image_input = self.inputs[0]
        self.transformer = io.Transformer({name: self.blobs[name].shape for name in self.inputs})
        self.transformer.set_transpose(self.image_input, (2, 0, 1))
        if mean is not None:
            self.transformer.set_mean(self.image_input, mean)
        if input_scale is not None:
            self.transformer.set_input_scale(self.image_input, input_scale)
        if raw_scale is not None:
            self.transformer.set_raw_scale(self.image_input, raw_scale)
        if channel_swap is not None:
            self.transformer.set_channel_swap(self.image_input, channel_swap)

    @property
    def crop_size(self) -> np.ndarray:
        """The height and width of the images that the net takes."""
        return np.array(self.blobs[self.image_input].shape[2:])

    def run(self, images: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Return the first output for images of the net's size."""
        name = self.image_input
        given = np.stack([self.transformer.preprocess(name, image) for image in images])
        return self.forward_all(None, **{name: given})[self.outputs[0]]


class Classifier(ImageNet):
    """Class scores for images (height, width, channels) with values in [0, 1]. Images are resized to
    ``image_dims`` and cropped to the size of the net's input."""

    def __init__(
        self,
        model_file: str | Path,
        pretrained_file: str | Path | None,
        image_dims: Sequence[int] | None = None,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        **of_2014: Any,
    ) -> None:
        preprocessing = mean, input_scale, raw_scale, channel_swap
        super().__init__(model_file, pretrained_file, *preprocessing, **of_2014)
        self.crop_dims = self.crop_size
        self.image_dims = self.crop_dims if image_dims is None else np.array(image_dims)

    def predict(self, inputs: Sequence[np.ndarray], oversample: bool = True) -> np.ndarray:
        """Return the scores, shape (images, classes). With ``oversample`` they are the mean over ten
        crops of each image; otherwise they are those of the central crop."""
        images = [io.resize_image(image, self.image_dims) for image in inputs]
        if oversample:
            scores: np.ndarray = self.run(io.oversample(images, self.crop_dims))
            scores = scores.reshape(len(images), 10, -1).mean(1)
            return scores
        first = (self.image_dims - self.crop_dims) // 2
        last = first + self.crop_dims
        return self.run([image[first[0] : last[0], first[1] : last[1]] for image in images])
