"""Layers as users write them for pycaffe, for tests of nets that have them."""

from __future__ import annotations

import numpy as np

import demitasse_caffe.pycaffe as caffe


class HalfSquares(caffe.Layer):
    def setup(self, bottom, top):
        if len(bottom) != 2:
            raise Exception("needs two bottoms")

    def reshape(self, bottom, top):
        self.difference = np.zeros_like(bottom[0].data)
        top[0].reshape(1)

    def forward(self, bottom, top):
        self.difference[...] = bottom[0].data - bottom[1].data
        top[0].data[...] = (self.difference**2).sum() / bottom[0].num / 2

    def backward(self, top, propagate_down, bottom):
        for i, sign in enumerate((1, -1)):
            if propagate_down[i]:
                bottom[i].diff[...] = sign * top[0].diff[0] * self.difference / bottom[i].num


class Slope(caffe.Layer):
    def setup(self, bottom, top):
        self.blobs.add_blob(1).data[0] = float(self.param_str)

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = self.blobs[0].data * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        self.blobs[0].diff[0] += (top[0].diff * bottom[0].data).sum()
        if propagate_down[0]:
            bottom[0].diff[...] = self.blobs[0].data * top[0].diff


class Images:
    """Images that grow by a row each time; no base class."""

    def setup(self, bottom, top):
        self.setups = getattr(self, "setups", 0) + 1
        self.number = 0

    def reshape(self, bottom, top):
        top[0].reshape(1, 2, 3 + self.number, 4)
        top[1].reshape(1, 1, 3 + self.number, 4)

    def forward(self, bottom, top):
        top[0].data[...] = self.number + 1
        top[1].data[...] = self.setups
        self.number += 1

    def backward(self, top, propagate_down, bottom):
        pass


class Scenes(caffe.Layer):
    """Scenes of a size of their own, with the class of every pixel."""

    def setup(self, bottom, top):
        self.random = np.random.default_rng(int(self.param_str_))

    def reshape(self, bottom, top):
        height, width = self.random.integers(9, 14, 2)
        scene = np.zeros((height, width))
        scene[height // 3 :, width // 2 :] = 1
        self.image = np.stack([scene, 1 - scene]) + 0.1 * self.random.normal(size=(2, height, width))
        self.label = scene
        top[0].reshape(1, *self.image.shape)
        top[1].reshape(1, 1, *self.label.shape)

    def forward(self, bottom, top):
        top[0].data[...] = self.image
        top[1].data[...] = self.label

    def backward(self, top, propagate_down, bottom):
        pass


class Broken(caffe.Layer):
    def setup(self, bottom, top):
        raise RuntimeError("this user's layer is broken")


class Growing(Slope):
    """A column more, once or each time that it is asked for its shapes."""

    def reshape(self, bottom, top):
        self.times = getattr(self, "times", 0) + 1
        more = self.times - 1 if self.param_str == "0" else self.times > 1
        top[0].reshape(*bottom[0].shape[:-1], bottom[0].shape[-1] + more)

    def forward(self, bottom, top):
        top[0].data[...] = 7


class Phase(Slope):
    def forward(self, bottom, top):
        top[0].data[...] = self.phase


class Fed(caffe.Layer):
    """Samples that the script gives it; their shapes are told when they are read."""

    def give(self, samples):
        self.samples, self.number = samples, 0

    def setup(self, bottom, top):
        top[0].reshape(1, 1, 4, 4)

    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        sample = self.samples[self.number]
        self.number += 1
        top[0].reshape(*sample.shape)
        top[0].data[...] = sample

    def backward(self, top, propagate_down, bottom):
        pass


class Choosing(Slope):
    """As many rows as are positive."""

    def forward(self, bottom, top):
        chosen = bottom[0].data[bottom[0].data[:, 0] > 0]
        top[0].reshape(*chosen.shape)
        top[0].data[...] = chosen


class Picking(Choosing):
    """With the gradient of what it chose."""

    def forward(self, bottom, top):
        self.chosen = bottom[0].data[:, 0] > 0
        Choosing.forward(self, bottom, top)

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = 0
        bottom[0].diff[self.chosen] = top[0].diff


class Targets(caffe.Layer):
    """A target for each place of its bottom, whose shape it tells when it makes them."""

    def setup(self, bottom, top):
        top[0].reshape(*bottom[0].shape)
        self.calls = 0

    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        self.calls += 1
        if bottom[0].data.max() > 99:
            raise RuntimeError("no target for that")
        top[0].reshape(*bottom[0].shape)
        top[0].data[...] = np.arange(bottom[0].count).reshape(bottom[0].shape) / 10

    def backward(self, top, propagate_down, bottom):
        pass


class Sizes(Fed):
    """Images of sizes of their own, told when they are made."""

    def setup(self, bottom, top):
        self.random = np.random.default_rng(int(self.param_str))
        top[0].reshape(1, 2, 9, 9)

    def forward(self, bottom, top):
        top[0].reshape(1, 2, *self.random.integers(9, 14, 2))
        top[0].data[...] = self.random.normal(size=top[0].data.shape)


class Twice(Targets):
    """Twice its bottom."""

    def forward(self, bottom, top):
        top[0].reshape(*bottom[0].shape)
        top[0].data[...] = 2 * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        pass


class Nothing:
    pass
