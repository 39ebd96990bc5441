"""What pycaffe scripts do with the parameters of nets: in files, between nets, in trained nets."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from pycaffe_nets import RANDOM, Make, branching, close, scripts_run_with
from real_files import DATA

import demitasse_caffe.pycaffe as caffe
from demitasse import ModelError, ShapeError
from demitasse_caffe.pycaffe import layers as L  # noqa: N812 (its name in every script)

LENET = DATA / "caffemodel" / "everpeace+caffe" / "examples" / "mnist"

needs_data = pytest.mark.skipif(not LENET.is_dir(), reason=f"no caffemodels under {DATA}")

pytestmark = pytest.mark.usefixtures("scripts")


@pytest.mark.parametrize(("write", "read"), [("save", "copy_from"), ("save_hdf5", "load_hdf5")])
def test_parameters_are_saved_and_copied(
    make: Make, tmp_path: Path, x: np.ndarray, write: str, read: str
) -> None:
    net = make(branching())
    net.params["left"][0].data[...] = 3
    path = tmp_path / "weights of any name"
    getattr(net, write)(str(path))
    fresh = make(branching())
    fresh.params["left"][0].data[...] = 5
    getattr(fresh, read)(str(path))
    assert np.array_equal(fresh.params["left"][0].data, net.params["left"][0].data)
    other = make(branching(), weights=str(path))
    for name, blobs in net.params.items():
        for mine, theirs in zip(blobs, other.params[name], strict=True):
            assert np.array_equal(mine.data, theirs.data)
    third = caffe.Net(str(tmp_path / "net.prototxt"), str(path), caffe.TEST)
    assert np.array_equal(third.forward(data=x)["score"], net.forward(data=x)["score"])


def test_copies_pass_over_layers_that_one_of_both_lacks(make: Make, tmp_path: Path) -> None:
    net = make(branching())
    path = tmp_path / "old.caffemodel"
    net.save(path)
    n = branching()
    n.fresh = L.InnerProduct(n.relu, num_output=7, weight_filler={"type": "constant", "value": 9})
    del n["right"], n["score"]
    tuned = make(n)
    tuned.copy_from(path)
    assert np.array_equal(tuned.params["hidden"][0].data, net.params["hidden"][0].data)
    assert (tuned.params["fresh"][0].data == 9).all()
    n = branching()
    n.left = L.InnerProduct(n.relu, num_output=4)
    n.score = L.Concat(n.left, n.right)
    other = make(n)
    before = other.params["hidden"][0].data.copy()
    with pytest.raises(ShapeError, match=r"layer 'left', parameter 0: .*\(3, 5\), the net's \(4, 5\)"):
        other.copy_from(path)
    assert np.array_equal(other.params["hidden"][0].data, before), "nothing is copied then"
    with pytest.raises(ModelError, match=r"no such file: .*old.caffemodl; did you mean"):
        other.copy_from(tmp_path / "old.caffemodl")


def test_an_inner_product_becomes_a_convolution(make: Make) -> None:
    """Net surgery: the scores of a window, then of all windows of a larger image."""

    def spec(size: int, whole: bool) -> caffe.NetSpec:
        n = caffe.NetSpec()
        n.data = L.Input(shape={"dim": [1, 2, size, size]})
        n.conv = L.Convolution(n.data, num_output=3, kernel_size=3, weight_filler=RANDOM)
        n.relu = L.ReLU(n.conv, in_place=True)
        if whole:
            n.fc_conv = L.Convolution(n.relu, num_output=4, kernel_size=4)
        else:
            n.fc = L.InnerProduct(n.relu, num_output=4, weight_filler=RANDOM, bias_filler=RANDOM)
        return n

    small, large = make(spec(6, False)), make(spec(9, True))
    for mine, theirs in (
        (large.params["conv"], small.params["conv"]),
        (large.params["fc_conv"], small.params["fc"]),
    ):
        mine[0].data.flat = theirs[0].data.flat
        mine[1].data[...] = theirs[1].data
    image = np.random.default_rng(4).normal(size=(1, 2, 9, 9))
    scores = large.forward(data=image)["fc_conv"]
    assert scores.shape == (1, 4, 4, 4)
    for y, x in ((0, 0), (1, 3), (3, 2)):
        window = small.forward(data=image[:, :, y : y + 6, x : x + 6])["fc"]
        assert close(scores[:, :, y, x], window)


@pytest.mark.parametrize("write", ["save", "save_hdf5"])
def test_a_pruned_net_is_made_of_parameters_in_other_shapes(
    make: Make, tmp_path: Path, x: np.ndarray, write: str
) -> None:
    """As scripts prune: blobs of the old net are given the new shapes and values, and it is saved."""
    net = make(branching())
    kept = np.array([0, 3, 4])
    W, b, V, U = (
        net.params[name][i].data.copy()
        for name, i in (("hidden", 0), ("hidden", 1), ("left", 0), ("right", 0))
    )
    for blob, values in (
        (net.params["hidden"][0], W[kept]),
        (net.params["hidden"][1], b[kept]),
        (net.params["left"][0], V[:, kept]),
        (net.params["right"][0], U[:, kept]),
    ):
        blob.reshape(*values.shape)
        assert blob.diff.shape == values.shape
        blob.data[...] = values
    with pytest.raises(ShapeError, match=r"parameter 0 of layer 'hidden' was reshaped to \(3, 6\)"):
        net.forward(data=x)
    path = tmp_path / "pruned"
    getattr(net, write)(str(path))
    pruned = branching()
    pruned.hidden.fn.params["num_output"] = 3
    made = make(pruned, weights=str(path))
    hidden = np.maximum(x @ W[kept].T + b[kept], 0)
    bias = made.params["left"][1].data + made.params["right"][1].data
    assert close(made.forward(data=x)["score"], hidden @ (V + U)[:, kept].T + bias)


def test_a_parameter_that_is_reshaped_back_is_its_layers_again(make: Make, x: np.ndarray) -> None:
    net = make(branching())
    before = net.forward(data=x)["score"].copy()
    net.params["left"][0].reshape(15)
    net.params["left"][0].reshape(3, 5)
    assert np.array_equal(net.forward(data=x)["score"], before)
    with pytest.raises(ShapeError, match=r"parameter 0 of layer 'left': \(3, 0\) is not a shape"):
        net.params["left"][0].reshape(3, 0)


def test_nets_share_parameters(make: Make, x: np.ndarray) -> None:
    one, two = make(branching()), make(branching(), caffe.TRAIN)
    two.share_with(one)
    one.params["left"][0].data[...] = 5
    assert (two.params["left"][0].data == 5).all()
    assert np.array_equal(one.forward(data=x)["score"], two.forward(data=x)["score"])
    n = branching()
    n.more = L.InnerProduct(n.relu, num_output=2)
    other = make(n)
    with pytest.raises(ShapeError, match=r"layer 'more'.*no such parameter"):
        other.share_with(one)
    assert other.forward(data=x)["more"].shape == (4, 2), "it is as it was"


def test_windows_of_image_files_are_detected(make: Make, tmp_path: Path) -> None:
    """Scores that are a window's mean colour: red, then green, of an image that is half one, half the
    other."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:, :4, 0] = pixels[:, 4:, 1] = 255
    image.fromarray(pixels).save(tmp_path / "halves.png")
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [2, 3, 4, 4]})
    n.mean = L.Pooling(n.data, pool=caffe.params.Pooling.AVE, global_pooling=True)
    make(n)
    detector = caffe.Detector(tmp_path / "net.prototxt", None)
    windows = [(0, 0, 8, 4), (2, 4, 6, 8), (0, 2, 8, 6)]
    found = detector.detect_windows([(tmp_path / "halves.png", windows)])
    assert [tuple(each["window"]) for each in found] == windows
    assert {each["filename"] for each in found} == {tmp_path / "halves.png"}
    colours = [(1, 0, 0), (0, 1, 0), (0.5, 0.5, 0)]
    assert all(close(each["prediction"], c) for each, c in zip(found, colours, strict=True))
    assert detector.detect_windows([(tmp_path / "halves.png", [])]) == []


def test_a_window_with_its_surroundings_lies_in_the_crop_to_the_pixel(
    make: Make, tmp_path: Path
) -> None:
    """Worked by hand as R-CNN's code counts: a window 2 .. 5 has four pixels, of which a border of 2 in
    a crop of 8 makes 0 .. 8; what lies outside is the mean."""
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 3, 8, 8]})
    make(n)
    mean = np.array([10.0, 20, 30], np.float32)
    detector = caffe.Detector(tmp_path / "net.prototxt", None, mean=mean, raw_scale=255, context_pad=2)
    image = np.random.default_rng(0).random((10, 12, 3)).astype(np.float32)
    assert np.array_equal(detector.crop(image, (2, 3, 5, 6)), image[0:8, 1:9])
    made = detector.crop(image, (0, 0, 3, 3))  # -2 .. 6
    assert np.array_equal(made[2:, 2:], image[:6, :6])
    made[2:, 2:] = mean / 255
    assert np.allclose(made, mean / 255)
    with pytest.raises(
        ShapeError, match=r"window \(30, 30, 40, 40\) lies outside an image of \(10, 12\)"
    ):
        detector.crop(image, (30, 30, 40, 40))


# Real files.


@needs_data
def test_a_trained_net_classifies_as_others_say() -> None:
    """With the kernels of the default composition: 99.05% of the test set is OpenCV's figure."""
    with scripts_run_with(None):
        net = caffe.Net(
            str(LENET / "lenet.prototxt"), str(LENET / "lenet_iter_10000.caffemodel"), caffe.TEST
        )
        images, labels = (
            np.frombuffer(gzip.decompress((DATA / "mnist" / name).read_bytes()), np.uint8, offset=offset)
            for name, offset in (("t10k-images-idx3-ubyte.gz", 16), ("t10k-labels-idx1-ubyte.gz", 8))
        )
        pixels = images.reshape(-1, 1, 28, 28) / 256
        prob = net.forward_all(data=pixels)["prob"]
        assert (prob.argmax(1) == labels).mean() == pytest.approx(0.9905, abs=0.0005)
        # What a step against the gradient of an image does to its score.
        net.blobs["data"].reshape(1, 1, 28, 28)
        before = net.forward(data=pixels[:1])["prob"][0, labels[0]]
        net.blobs["ip2"].diff[...] = np.eye(10)[labels[:1]]
        slope = net.backward(start="ip2")["data"]
        scores = net.forward(data=pixels[:1])["prob"][0].copy(), net.blobs["ip2"].data[0].copy()
        net.forward(data=pixels[:1] - 0.01 * slope / np.abs(slope).mean())
        assert net.blobs["ip2"].data[0, labels[0]] < scores[1][labels[0]]
        assert net.blobs["prob"].data[0, labels[0]] <= before


@needs_data
def test_a_classifier_and_a_detector_of_real_digits(tmp_path: Path) -> None:
    """Images from files, cropped and scaled as the net wants it."""
    cv2 = pytest.importorskip("cv2")
    raw = gzip.decompress((DATA / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())
    digits = np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 28, 28)[:3]
    labels = [7, 2, 1]
    wide = np.zeros((40, 100), np.uint8)
    for i, digit in enumerate(digits):
        cv2.imwrite(str(tmp_path / f"{i}.png"), digit)
        wide[6:34, 5 + 31 * i : 33 + 31 * i] = digit
    cv2.imwrite(str(tmp_path / "wide.png"), wide)
    model, weights = str(LENET / "lenet.prototxt"), str(LENET / "lenet_iter_10000.caffemodel")
    net = caffe.Classifier(model, weights, image_dims=(28, 28), raw_scale=255 / 256)
    images = [caffe.io.load_image(str(tmp_path / f"{i}.png"), color=False) for i in range(3)]
    assert net.predict(images, oversample=False).argmax(1).tolist() == labels
    assert net.predict(images).argmax(1).tolist() == labels
    assert net.predict(images).shape == (3, 10)
    detector = caffe.Detector(model, weights, raw_scale=255 / 256)
    windows = [(6, 5 + 31 * i, 34, 33 + 31 * i) for i in range(3)]
    crops = [detector.crop(caffe.io.load_image(tmp_path / "wide.png", False), w) for w in windows]
    assert detector.run(crops).argmax(1).tolist() == labels


def test_a_blob_assigned_to_a_layers_blobs_gives_its_values(make: Make, x: np.ndarray) -> None:
    trained, net, random = make(branching()), make(branching()), np.random.default_rng(0)
    for number, layer in enumerate(trained.layers):
        for place, blob in enumerate(layer.blobs):
            blob.data[...] = random.normal(size=blob.shape)
            net.layers[number].blobs[place] = blob
    for name, blobs in trained.params.items():
        for mine, theirs in zip(net.params[name], blobs, strict=True):
            assert np.array_equal(mine.data, theirs.data) and theirs.data.any()
    assert np.array_equal(net.forward(data=x)["score"], trained.forward(data=x)["score"])
    with pytest.raises(TypeError, match=r"write values to blobs\[0\]\.data"):
        net.params["left"][0] = np.ones(3)  # type: ignore[call-overload]


def test_a_classifier_of_2014_scales_before_it_subtracts_its_mean_file(tmp_path: Path) -> None:
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 3, 2, 2]})
    n.same = L.Power(n.data)
    (tmp_path / "net.prototxt").write_text(str(n.to_proto()))
    mean, image = np.arange(12).reshape(3, 2, 2) * 1.0, np.random.default_rng(0).random((2, 2, 3))
    np.save(tmp_path / "mean.npy", mean)
    for make_net in (caffe.Classifier, caffe.Detector):
        old = {"gpu": False, "mean_file": str(tmp_path / "mean.npy"), "channel_swap": (2, 1, 0)}
        net = make_net(str(tmp_path / "net.prototxt"), None, input_scale=255, **old)  # type: ignore[operator]
        found = net.run([image])[0]
        assert np.allclose(found, (image * 255).transpose(2, 0, 1)[::-1] - mean)
        both = make_net(str(tmp_path / "net.prototxt"), None, input_scale=2, raw_scale=255, **old)  # type: ignore[operator]
        assert np.allclose(both.run([image])[0], 2 * found)


def test_a_net_of_no_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(str(branching().to_proto()))
    with pytest.raises(ModelError, match=r"Net\(None, None, 1\): None names no file"):
        caffe.Net(None, None, caffe.TEST)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="None names no file"):
        caffe.Net(str(path), None, caffe.TEST)
    assert caffe.Net(str(path), caffe.TEST, weights=None).inputs == ["data"]
