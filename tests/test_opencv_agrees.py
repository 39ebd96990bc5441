"""OpenCV's own reader of Caffe's nets computes what we compute: with real weights where there are some,
else with random ones from a caffemodel that we wrote, so what we write, OpenCV reads.

Nets are those that a program feeds (their samples come by Input layers), at one sample a batch. A net
that one of the two does not load is no disagreement; ``FOREIGN`` says which those are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_files import DATA
from small_nets import random_weights

import demitasse
from demitasse import ModelError, Runtime, Weights

cv2 = pytest.importorskip("cv2", reason="OpenCV 4 is not installed (opencv-python-headless<5)")

NETS, MODELS = DATA / "prototxt", DATA / "caffemodel"
EVERPEACE = "everpeace+caffe/examples"
ICT = "ICT-CHASE+On-accelerator-training/examples/cifar10"
SINGLE = "skywang666+SingleCaffe/examples/cifar10"

needs_data = pytest.mark.skipif(
    not (NETS.is_dir() and MODELS.is_dir()), reason=f"no nets and caffemodels under {DATA}"
)

REAL = {
    f"{EVERPEACE}/mnist/lenet.prototxt": "lenet_iter_10000.caffemodel",
    f"{EVERPEACE}/cifar10/cifar10_quick.prototxt": "cifar10_quick_iter_5000.caffemodel",
    f"{EVERPEACE}/cifar10/cifar10_full.prototxt": "cifar10_full_iter_70000.caffemodel",
    f"{ICT}/cifar10_quick.prototxt": "cifar10_quick_iter_4000.caffemodel",
    f"{SINGLE}/cifar10_quick.prototxt": "cifar10_quick_iter_4000.caffemodel",
}
DEPLOY = (
    "BVLC+caffe/examples/cifar10/cifar10_full",
    "BVLC+caffe/examples/cifar10/cifar10_quick",
    "BVLC+caffe/examples/mnist/lenet",
    "BVLC+caffe/examples/net_surgery/bvlc_caffenet_full_conv",
    "BVLC+caffe/examples/net_surgery/conv",
    "BVLC+caffe/examples/siamese/mnist_siamese",
    "BVLC+caffe/models/bvlc_alexnet/deploy",
    "BVLC+caffe/models/bvlc_googlenet/deploy",
    "BVLC+caffe/models/bvlc_reference_caffenet/deploy",
    "BVLC+caffe/models/bvlc_reference_rcnn_ilsvrc13/deploy",
    "BVLC+caffe/models/finetune_flickr_style/deploy",
    "DeepScale+SqueezeNet/SqueezeNet_v1.0/deploy",
    "DeepScale+SqueezeNet/SqueezeNet_v1.1/deploy",
    "HolmesShuan+ResNet-18-Caffemodel-on-ImageNet/deploy",
    "HuMingqi+VGG_Caffe/VGG_ILSVRC_19_layers_deploy",
    "KaimingHe+deep-residual-networks/prototxt/ResNet-101-deploy",
    "KaimingHe+deep-residual-networks/prototxt/ResNet-152-deploy",
    "KaimingHe+deep-residual-networks/prototxt/ResNet-50-deploy",
    "farmingyard+ShuffleNet/shufflenet_1x_g3_deploy",
    "farmingyard+ShuffleNet/shufflenet_v2_1x_deploy",
    "goodluckcwl+Face-alignment-mobilenet-v2/prototxt/deploy",
    "mqingkui+vgg-prototxt/VGG_ILSVRC_16_layers_deploy",
    "pertusa+InceptionBN-21K-for-Caffe/deploy",
    "rbgirshick+py-faster-rcnn/models/coco/VGG16/fast_rcnn/test",
    "rbgirshick+py-faster-rcnn/models/pascal_voc/VGG16/fast_rcnn/test",
    "rbgirshick+py-faster-rcnn/models/pascal_voc/ZF/fast_rcnn/test",
    "shelhamer+fcn.berkeleyvision.org/voc-fcn8s/deploy",
    "shicai+MobileNet-Caffe/mobilenet_deploy",
    "shicai+MobileNet-Caffe/mobilenet_v2_deploy",
    "songhan+SqueezeNet-Deep-Compression/SqueezeNet_deploy",
)
"""The nets of others that both load; random weights."""

PROPOSING = tuple(
    f"rbgirshick+py-faster-rcnn/models/{data}/{net}/faster_rcnn_end2end/test"
    for data, nets in (
        ("coco", ("VGG16", "VGG_CNN_M_1024")),
        ("pascal_voc", ("VGG16", "VGG_CNN_M_1024", "ZF")),
    )
    for net in nets
)
"""Those with a layer in Python that is computed here; test_detection_nets.py compares one."""

UNREAD = (
    "TimoSaemann+ENet/prototxts/enet_deploy",
    "TimoSaemann+ENet/prototxts/enet_deploy_final",
    "intel+caffe/examples/LRCN_activity_recognition/deploy_lstm",
)
"""Those that OpenCV does not load: it has no BN, no layers in Python, and its LSTM takes other blobs."""

DETECTION = ("chuanqi305+MobileNet-SSD/deploy", "chuanqi305+MobileNet-SSD/voc/MobileNetSSD_deploy")
"""Those of which what is found is compared, row by row, in test_detection_nets.py."""

OTHERWISE = (
    "rbgirshick+py-faster-rcnn/models/coco/VGG_CNN_M_1024/fast_rcnn/test",
    "rbgirshick+py-faster-rcnn/models/pascal_voc/VGG_CNN_M_1024/fast_rcnn/test",
)
"""Those that OpenCV computes otherwise: its LRN pays no heed to k."""

QUICK = ("BVLC+caffe/examples/siamese/mnist_siamese", "DeepScale+SqueezeNet/SqueezeNet_v1.1/deploy")


def samples_of(path: Path) -> dict[str, tuple[int, ...]]:
    """The inputs of a net with their shapes, for one sample; empty for a net that reads its samples."""
    with demitasse.compose(plugins=["caffe"]) as runtime:
        net = runtime.read(path).net("test")
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in net.layers:
        if layer.type == "Input":
            given = layer.parameters.input_param.shape
            for number, top in enumerate(layer.tops):
                dims = list(given[min(number, len(given) - 1)].dim) if given else []
                shapes[top] = (1, *dims[1:])
        elif not layer.bottoms:
            return {}
    return shapes


def at_one_sample(runtime: Runtime, path: Path, folder: Path) -> Path:
    """The net of a file in the present form, its inputs with one sample."""
    target = folder / "net.prototxt"
    runtime.program("convert_model", path, target)
    lines, inside = [], 0
    first = False
    for line in target.read_text().splitlines():
        word = line.strip()
        inside += word.startswith("input_param {") or (bool(inside) and word.endswith("{"))
        first = first or (bool(inside) and word == "shape {")
        if first and word.startswith("dim:"):
            line, first = "dim: 1", False
        inside -= bool(inside) and word == "}"
        lines.append(line)
    target.write_text("\n".join(lines))
    return target


def ours(
    runtime: Runtime, path: Path, model: Path | None, inputs: Mapping[str, np.ndarray], folder: Path
) -> tuple[Path | None, dict[str, np.ndarray]]:
    """The weights used, None where the net has no parameters, and each output by its layer's name."""
    net = runtime.net(path, weights=model)
    if model is None and net.params:
        model = runtime.write(folder / "random.caffemodel", tempered(runtime, path, net, inputs, folder))
        net = runtime.net(path, weights=model)
    makers = {top: layer for layer in net.definition.layers for top in layer.tops}
    found = net.forward(**inputs)
    return model, {makers[n].name: np.array(v) for n, v in found.items() if len(makers[n].tops) == 1}


def tempered(
    runtime: Runtime, path: Path, net: Any, inputs: Mapping[str, np.ndarray], folder: Path
) -> Weights:
    """Random weights of which the last ones give a last softmax numbers of the size of 1: probabilities
    of zero and one would hide what they were made of."""
    weights = random_weights(net)
    last = net.definition.layers[-1]
    if last.type == "Softmax":
        model = runtime.write(folder / "wild.caffemodel", weights)
        whole = runtime.net(path, weights=model, retain="all")
        whole.forward(**inputs)
        size = float(np.std(whole.blobs[last.bottoms[0]]))
        named = [layer.name for layer in net.definition.layers if layer.name in weights.parameters]
        for array in weights.parameters[named[-1]]:
            array /= size
    return weights


def theirs(path: Path, model: Path | None, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What OpenCV computes, by layer."""
    net = cv2.dnn.readNetFromCaffe(str(path), *([str(model)] if model else []))
    for name, array in inputs.items():
        net.setInput(array, name)
    names = net.getUnconnectedOutLayersNames()
    return dict(zip(names, net.forward(names), strict=True))


def difference(path: Path, model: Path | None, folder: Path) -> dict[str, float]:
    """The largest difference of each output that both have, relative to its largest value."""
    dice = np.random.default_rng(7)
    shapes = samples_of(path)
    inputs = {k: dice.normal(0, 1, v).astype(np.float32) for k, v in shapes.items()}
    if "rois" in shapes:  # a region of the first sample
        inputs["rois"] = np.float32([[0, 30, 20, 180, 150]])
    # Trying kernels would take longer than the nets do.
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        net = at_one_sample(runtime, path, folder)
        model, here = ours(runtime, net, model, inputs, folder)
    there = theirs(path, model, inputs)
    both = sorted(set(here) & set(there))
    assert both, f"outputs {sorted(here)} here, {sorted(there)} there"
    result = {}
    for name in both:
        a, b = here[name].ravel(), np.asarray(there[name]).ravel()
        assert a.size == b.size, f"{name}: {here[name].shape} here, {there[name].shape} there"
        assert np.ptp(b) > 0, f"{name} is {b[0]} everywhere: nothing is compared"
        assert np.isfinite(b).all(), f"{name} is not finite"
        assert b.size == 1 or np.abs(b).max() < 0.99 * np.abs(b).sum(), f"{name} is but one number"
        result[name] = float(np.abs(a - b).max() / np.abs(b).max())
    return result


def agree(name: str, folder: Path) -> None:
    found = difference(NETS / f"{name}.prototxt", None, folder)
    assert max(found.values()) < 1e-4, found


@needs_data
@pytest.mark.parametrize("name", REAL)
def test_real_weights_give_what_opencv_gives(name: str, tmp_path: Path) -> None:
    path = MODELS / name
    found = difference(path, path.with_name(REAL[name]), tmp_path)
    assert max(found.values()) < 1e-4, found


@needs_data
@pytest.mark.parametrize("name", QUICK)
def test_random_weights_that_we_wrote_give_what_opencv_gives(name: str, tmp_path: Path) -> None:
    agree(name, tmp_path)


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DEPLOY if name not in QUICK])
def test_so_they_do_in_every_net_that_both_load(name: str, tmp_path: Path) -> None:
    agree(name, tmp_path)


@needs_data
@pytest.mark.slow
def test_no_net_that_is_fed_is_left_out() -> None:
    found = set()
    for path in sorted(NETS.rglob("*.prototxt")):
        try:
            fed = samples_of(path)
        except ModelError:
            continue  # a solver, or a text that Caffe itself would not read: plugins/caffe tests them
        if fed:
            found.add(str(path.relative_to(NETS).with_suffix("")))
    assert found == {*DEPLOY, *PROPOSING, *UNREAD, *OTHERWISE, *DETECTION}
