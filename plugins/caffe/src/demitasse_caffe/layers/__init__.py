"""Caffe's layer types, one small object each, in files by family."""

from __future__ import annotations

from demitasse_caffe.layers.activation import Dropout, ReLU, Softmax
from demitasse_caffe.layers.base import CaffeLayer
from demitasse_caffe.layers.convolution import Convolution, Pooling
from demitasse_caffe.layers.data import Data, Input
from demitasse_caffe.layers.elementwise import Concat, Eltwise
from demitasse_caffe.layers.inner_product import InnerProduct
from demitasse_caffe.layers.loss import Accuracy, SoftmaxWithLoss
from demitasse_caffe.layers.normalization import LRN, BatchNorm, Bias, Scale
from demitasse_caffe.layers.shape import Flatten, Reshape, Silence, Split

LAYER_TYPES: tuple[CaffeLayer, ...] = (
    Accuracy(),
    BatchNorm(),
    Bias(),
    Concat(),
    Convolution(),
    Data(),
    Dropout(),
    Eltwise(),
    Flatten(),
    InnerProduct(),
    Input(),
    LRN(),
    Pooling(),
    ReLU(),
    Reshape(),
    Scale(),
    Silence(),
    Softmax(),
    SoftmaxWithLoss(),
    Split(),
)
"""Every layer type that the plugin knows."""
