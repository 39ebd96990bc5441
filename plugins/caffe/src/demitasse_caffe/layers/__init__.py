"""Caffe's layer types, one small object each, in files by family."""

from __future__ import annotations

from demitasse_caffe.layers.activation import (
    ELU,
    FUNCTIONS,
    Clip,
    Dropout,
    Exp,
    HardSwish,
    Log,
    Power,
    PReLU,
    ReLU,
    Softmax,
    Swish,
    Threshold,
)
from demitasse_caffe.layers.annotated import AnnotatedData
from demitasse_caffe.layers.arrays import DummyData, Input, MemoryData
from demitasse_caffe.layers.base import CaffeLayer
from demitasse_caffe.layers.convolution import SPP, Convolution, Deconvolution, Im2col, Pooling
from demitasse_caffe.layers.data import Data, DenseImageData, ImageData, ImageSegData, WindowData
from demitasse_caffe.layers.edges import (
    DiceCoefLoss,
    ImageLabelmapData,
    SigmoidCrossEntropyBalanceLoss,
)
from demitasse_caffe.layers.elementwise import Concat, Eltwise, Mul
from demitasse_caffe.layers.forks import (
    BN,
    Axpy,
    DepthwiseConvolution,
    Normalize,
    Permute,
    ReLU6,
    Reverse,
    ShuffleChannel,
    SpatialDropout,
    Transpose,
)
from demitasse_caffe.layers.hdf5 import HDF5Data, HDF5Output
from demitasse_caffe.layers.indexing import (
    BatchReindex,
    Crop,
    Embed,
    Filter,
    Parameter,
    Slice,
    Tile,
)
from demitasse_caffe.layers.inner_product import InnerProduct, MarginInnerProduct
from demitasse_caffe.layers.loss import (
    Accuracy,
    CenterLoss,
    ContrastiveLoss,
    EuclideanLoss,
    HingeLoss,
    InfogainLoss,
    MultinomialLogisticLoss,
    SegAccuracy,
    SigmoidCrossEntropyLoss,
    SoftmaxWithLoss,
)
from demitasse_caffe.layers.margins import CosinAddm, LabelSpecificAdd
from demitasse_caffe.layers.normalization import LRN, MVN, BatchNorm, Bias, Scale
from demitasse_caffe.layers.recurrent import LSTM, RNN, Lstm, LSTMUnit
from demitasse_caffe.layers.reduction import ArgMax, Reduction
from demitasse_caffe.layers.regions import L1Loss, ROIPooling, SmoothL1Loss, SmoothL1LossOHEM
from demitasse_caffe.layers.resampling import Interp, Reorg, Unpooling, Upsample
from demitasse_caffe.layers.sequences import (
    ContinuationIndicator,
    CtcLoss,
    LabelsequenceAccuracy,
    WarpCTCLoss,
)
from demitasse_caffe.layers.shape import Flatten, Reshape, Silence, Split, Squeeze
from demitasse_caffe.layers.video import VideoData
from demitasse_caffe.layers.volumes import (
    Convolution3D,
    Deconvolution3D,
    NdConvolution,
    NdPooling,
    Pooling3D,
    PoolingND,
)

LAYER_TYPES: tuple[CaffeLayer, ...] = (
    Accuracy(),
    AnnotatedData(),
    ArgMax(),
    Axpy(),
    BN(),
    BatchNorm(),
    BatchReindex(),
    Bias(),
    Clip(),
    Concat(),
    ContrastiveLoss(),
    Convolution(),
    Convolution3D(),
    CosinAddm(),
    Crop(),
    Data(),
    Deconvolution(),
    Deconvolution3D(),
    DenseImageData(),
    DepthwiseConvolution("ConvolutionDepthwise"),
    DepthwiseConvolution("DepthwiseConvolution"),
    Dropout(),
    DummyData(),
    ELU(),
    Eltwise(),
    Embed(),
    EuclideanLoss(),
    Exp(),
    Filter(),
    Flatten(),
    HDF5Data(),
    HDF5Output(),
    HardSwish(),
    HingeLoss(),
    Im2col(),
    ImageData(),
    ImageSegData(),
    InfogainLoss(),
    InnerProduct(),
    MarginInnerProduct(),
    Input(),
    Interp(),
    LRN(),
    LSTM(),
    LSTMUnit(),
    LabelSpecificAdd(),
    Log(),
    MVN(),
    MemoryData(),
    Mul(),
    MultinomialLogisticLoss(),
    Normalize(),
    PReLU(),
    Parameter(),
    Permute(),
    Pooling(),
    Pooling3D(),
    NdConvolution(),
    NdPooling(),
    PoolingND(),
    Power(),
    RNN(),
    ROIPooling(),
    ReLU(),
    ReLU6(),
    Reduction(),
    Reorg(),
    Reshape(),
    SPP(),
    Scale(),
    SegAccuracy(),
    SigmoidCrossEntropyLoss(),
    ShuffleChannel(),
    Silence(),
    Slice(),
    SmoothL1Loss(),
    SmoothL1LossOHEM(),
    CenterLoss(),
    ContinuationIndicator(),
    CtcLoss(),
    WarpCTCLoss(),
    LabelsequenceAccuracy(),
    DiceCoefLoss(),
    ImageLabelmapData(),
    SigmoidCrossEntropyBalanceLoss(),
    L1Loss(),
    Lstm(),
    Reverse(),
    Transpose(),
    Softmax(),
    SoftmaxWithLoss(),
    SpatialDropout(),
    Split(),
    Squeeze(),
    Swish(),
    Threshold(),
    Tile(),
    Unpooling(),
    Upsample(),
    VideoData(),
    WindowData(),
    *FUNCTIONS,
)
"""Every layer type that the plugin knows."""
