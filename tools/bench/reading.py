"""A user's prototxt as a net of the bench, so that the peers can run it, too.

Supported are classifiers made of convolutions, inner products, poolings, normalisations, functions of
one element, sums, products, maxima and concatenations of channels, with Caffe's softmax losses. Settings
for samples, learning and initial values are ignored: all contenders start from the bench's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import demitasse
from bench.layers import Net, Shape, pair

MOST = 16
"""The largest batch that is taken from a file unless another is requested."""

LEFT_OUT = ("Accuracy", "Silence")
DEPTHWISE = ("ConvolutionDepthwise", "DepthwiseConvolution")


class UnreadError(Exception):
    """A file does not contain a net that the bench can give to all contenders."""


def read(path: Path, batch: int | None = None, image: Shape | None = None) -> Net:
    """Read the net of a train or deploy file. It is trained in batches of ``batch`` samples (default:
    the file's, at most 16) of shape ``image`` (default: the file's). Raises UnreadError with file, line
    and layer if not all contenders support a layer."""
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        try:
            reader: Any = runtime.read(path)
            net = reader.net("train")
            if not any(layer.type == "SoftmaxWithLoss" for layer in net.layers):
                net = reader.net("test")
        except demitasse.DemitasseError as error:
            raise UnreadError(str(error)) from None
    return _Reading(path, batch, image).of(net)


class _Reading:
    """Reads one file's layers, one after the other."""

    def __init__(self, path: Path, batch: int | None, image: Shape | None) -> None:
        self.path, self.batch, self.image = path, batch, image
        self.blobs: dict[str, str] = {}
        self.labels: set[str] = set()

    def of(self, definition: demitasse.NetDefinition) -> Net:
        layers = definition.layers
        sources = [layer for layer in layers if not layer.bottoms and layer.type not in LEFT_OUT]
        if not sources:
            raise UnreadError(f"{self.path}: no layer gives samples")
        self.has_loss = any(layer.type == "SoftmaxWithLoss" for layer in layers)
        self.net = self._begun(sources)
        self.net.name = definition.name or self._called()
        rest = [layer for layer in layers if layer not in sources and layer.type not in LEFT_OUT]
        if not rest:
            raise UnreadError(f"{self.path}: no layer is behind the samples")
        scales = {layer.bottoms[0]: layer for layer in rest if layer.type == "Scale"}
        for layer in rest:
            if not self._is_merged(layer, rest):
                try:
                    self._add(layer, scales)
                    if min(self.net.layers[-1].shape, default=1) < 1:
                        raise ValueError("leaves nothing of its image; is --image too small?")
                except ValueError as error:
                    raise self._refused(layer, str(error)) from None
        return self._ended(rest[-1])

    def _called(self) -> str:
        """Return a name for a net that has none: its file's, or its folder's if the file's is
        generic."""
        stem, folder = self.path.stem, self.path.absolute().parent.name
        return folder if stem in ("train_val", "train_test", "train", "test", "deploy") else stem

    def _begun(self, sources: Sequence[demitasse.Layer]) -> Net:
        first = sources[0]
        for source in sources:
            self.labels.update(source.tops[1 if source is first else 0 :])
        batch, image = self._samples(first)
        image = self.image or image
        if image is None or len(image) != 3:
            said = "" if image is None else f"; {'x'.join(map(str, image))} is none"
            raise self._refused(
                first, f"the shape of an image is not known: give --image 3x224x224{said}"
            )
        self.blobs[first.tops[0]] = "data"
        batch = self.batch or min(batch or MOST, MOST)
        return Net(self.path.stem, batch, tuple(image), 0, rate=0.00003)

    def _samples(self, layer: demitasse.Layer) -> tuple[int | None, Shape | None]:
        """Return a batch's size and a sample's shape, as far as the file gives them."""
        message = layer.parameters
        if layer.type in ("Input", "DummyData"):
            field = message.input_param if layer.type == "Input" else message.dummy_data_param
            if field.shape:
                batch, *image = field.shape[0].dim
                return batch, tuple(image)
            return None, None
        kinds = {
            "Data": "data_param",
            "ImageData": "image_data_param",
            "MemoryData": "memory_data_param",
        }
        if layer.type not in kinds:
            known = ", ".join((*kinds, "Input", "DummyData"))
            raise self._refused(layer, f"is no source of images that the bench knows (valid: {known})")
        field, transform = getattr(message, kinds[layer.type]), message.transform_param
        if layer.type == "MemoryData":
            return field.batch_size, (field.channels, field.height, field.width)
        channels = 1 if transform.force_gray else 3
        size = transform.crop_size
        return field.batch_size or None, (channels, size, size) if size else None

    def _is_merged(self, layer: demitasse.Layer, rest: Sequence[demitasse.Layer]) -> bool:
        """Whether a Scale is part of the BatchNorm before it."""
        if layer.type != "Scale":
            return False
        before = {top: each.type for each in rest[: rest.index(layer)] for top in each.tops}
        return before.get(layer.bottoms[0]) == "BatchNorm"

    def _add(self, layer: demitasse.Layer, scales: dict[str, demitasse.Layer]) -> None:
        net, message, name = self.net, layer.parameters, layer.name
        top = layer.tops[0] if layer.tops else name  # a loss in the oldest format has none
        if layer.type == "SoftmaxWithLoss":
            self._loss(layer)
            return
        bottoms = tuple(self._blob(layer, bottom) for bottom in layer.bottoms)
        if layer.type == "Softmax":
            if not self.has_loss:  # the bench trains with a loss, and removes it to run forward
                net.loss(bottoms[0], name)
            return
        if len(layer.tops) > 1:
            raise ValueError(f"has {len(layer.tops)} tops; the bench has layers of one")
        if layer.type == "Dropout":  # in place, so that it can be left out
            net.dropout(bottoms[0], name, message.dropout_param.dropout_ratio)
            self.blobs[top] = bottoms[0]
            return
        self.blobs[top] = top
        match layer.type:
            case "Convolution" | "ConvolutionDepthwise" | "DepthwiseConvolution":
                self._convolution(layer, bottoms[0], top)
            case "InnerProduct":
                about = message.inner_product_param
                if about.axis != 1 or about.transpose:
                    raise ValueError("has an axis or is transposed")
                net.inner_product(bottoms[0], name, about.num_output, bias=about.bias_term, top=top)
            case "Pooling":
                self._pooling(layer, bottoms[0], top)
            case "LRN":
                about = message.lrn_param
                if about.NormRegion.Name(about.norm_region) != "ACROSS_CHANNELS" or about.k != 1:
                    raise ValueError("is not across channels, or has a k")
                net.lrn(bottoms[0], name, about.local_size, about.alpha, about.beta, top=top)
            case "BatchNorm":
                self._batch_norm(layer, bottoms[0], top, scales.get(top))
            case "Concat":
                if message.concat_param.axis != 1:
                    raise ValueError("joins along another axis than the channels'")
                net.concat(bottoms, name, top=top)
            case "Eltwise":
                about = message.eltwise_param
                if len(set(about.coeff)) > 1 or any(each != 1 for each in about.coeff):
                    raise ValueError("has coefficients")
                kind = {"SUM": "add", "PROD": "product", "MAX": "maximum"}
                net.add(bottoms, name, kind[about.EltwiseOp.Name(about.operation)], top=top)
            case _:
                self._element(layer, bottoms[0], top)

    def _element(self, layer: demitasse.Layer, bottom: str, top: str) -> None:
        message = layer.parameters
        numbers: dict[str, float] = {}
        kinds = {"ReLU": "relu", "ReLU6": "relu6", "PReLU": "prelu", "ELU": "elu"}
        kinds |= {"Sigmoid": "sigmoid", "TanH": "tanh", "Flatten": "flat"}
        kind = kinds.get(layer.type)
        if kind is None:
            known = (
                "Convolution, InnerProduct, Pooling, LRN, BatchNorm, Scale, Concat, Eltwise, Dropout, "
            )
            raise ValueError(f"is of a type that the peers have not here; {known}{', '.join(kinds)} are")
        if layer.type == "ReLU" and message.relu_param.negative_slope:
            kind, numbers = "leaky_relu", {"slope": message.relu_param.negative_slope}
        if layer.type == "ELU":
            numbers = {"alpha": message.elu_param.alpha}
        if layer.type == "PReLU" and message.prelu_param.channel_shared:
            raise ValueError("has one slope for all channels")
        self.net.element(bottom, layer.name, kind, top=top, **numbers)

    def _convolution(self, layer: demitasse.Layer, bottom: str, top: str) -> None:
        about = layer.parameters.convolution_param
        if about.axis != 1:
            raise ValueError("has another axis than the channels'")
        channels = self.net.shape(bottom)[0]
        groups = channels if layer.type in DEPTHWISE else about.group
        if groups < 1 or channels % groups or about.num_output % groups:
            raise ValueError(
                f"has {groups} groups, which do not divide {channels} channels and num_output "
                f"{about.num_output}"
            )
        self.net.convolution(
            bottom,
            layer.name,
            about.num_output,
            _pair(about, "kernel_size", "kernel", 1),
            stride=_pair(about, "stride", "stride", 1),
            pad=_pair(about, "pad", "pad", 0),
            dilation=_pair(about, "dilation", "", 1),
            groups=groups,
            bias=about.bias_term,
            top=top,
        )

    def _pooling(self, layer: demitasse.Layer, bottom: str, top: str) -> None:
        about = layer.parameters.pooling_param
        kinds = {"MAX": "max_pool", "AVE": "average_pool"}
        pool = about.PoolMethod.Name(about.pool)
        if pool not in kinds:
            raise ValueError(f"pools {pool}; the bench has {', '.join(kinds)}")
        extents = self.net.shape(bottom)[1:]
        up = about.RoundMode.Name(about.round_mode) == "CEIL"
        kernel = extents if about.global_pooling else _pair(about, "kernel_size", "kernel", 1)
        stride, pad = _pair(about, "stride", "stride", 1), _pair(about, "pad", "pad", 0)
        self.net.pool(bottom, layer.name, kinds[pool], kernel, stride, pad, up=up, top=top)  # type: ignore[arg-type]

    def _batch_norm(
        self, layer: demitasse.Layer, bottom: str, top: str, scale: demitasse.Layer | None
    ) -> None:
        about, name = layer.parameters.batch_norm_param, ""
        if scale is not None:
            if not scale.parameters.scale_param.bias_term or len(scale.bottoms) > 1:
                raise self._refused(scale, "has no bias, or its factors are a blob")
            name = scale.name
            self.blobs[scale.tops[0]] = top
        numbers = {"epsilon": about.eps, "keep": about.moving_average_fraction}
        self.net.batch_norm(bottom, layer.name, scale=name, top=top, **numbers)

    def _loss(self, layer: demitasse.Layer) -> None:
        about = layer.parameters.loss_param
        if about.HasField("ignore_label") or len(layer.bottoms) != 2:
            raise ValueError("ignores a label, or has weights of samples")
        if layer.bottoms[1] not in self.labels:
            raise ValueError(f"has labels {layer.bottoms[1]!r} that are no source's")
        weight = layer.loss_weights[0] if layer.loss_weights else 1.0
        self.net.loss(self._blob(layer, layer.bottoms[0]), layer.name, weight)

    def _ended(self, last: demitasse.Layer) -> Net:
        losses = [layer for layer in self.net.layers if layer.kind == "softmax_loss"]
        if not losses:
            self.net.loss(self._blob(last, last.tops[0]), "prob")
            losses = self.net.layers[-1:]
        channels, *space = self.net.shape(losses[-1].bottoms[0])
        if any(extent > 1 for extent in space):
            shape = "x".join(map(str, (channels, *space)))
            raise self._refused(
                last, f"ends in {shape} numbers a sample; the bench compares classifiers"
            )
        self.net.classes = channels
        return self.net

    def _blob(self, layer: demitasse.Layer, bottom: str) -> str:
        """Return the bench's name for a blob of the file."""
        if bottom not in self.blobs:
            raise ValueError(f"takes {bottom!r}, which is no image and no layer's top")
        return self.blobs[bottom]

    def _refused(self, layer: demitasse.Layer, why: str) -> UnreadError:
        return UnreadError(f"{layer.location}: layer {layer.name!r} ({layer.type}) {why}")


def _pair(about: Any, repeated: str, apart: str, default: int) -> tuple[int, int]:
    """Return a window's field, given once for both axes, twice, or as _h and _w."""
    if apart and (about.HasField(f"{apart}_h") or about.HasField(f"{apart}_w")):
        return getattr(about, f"{apart}_h"), getattr(about, f"{apart}_w")
    given = getattr(about, repeated)
    if isinstance(given, int):  # Pooling's field is not repeated
        return pair(given if about.HasField(repeated) else default)
    extents = list(given)
    if len(extents) > 2:
        raise ValueError(f"has a {repeated} of {len(extents)} axes")
    return (extents[0], extents[-1]) if extents else pair(default)
