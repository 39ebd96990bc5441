"""``demitasse classify``: scores of image files, beside OpenCV's own reader of nets and formulas."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from real_files import DATA

import demitasse
from demitasse import DataError, DataSpec, ModelError, Weights
from demitasse_caffe.mean import read_mean, write_blob
from demitasse_cli.main import main

cv2 = pytest.importorskip("cv2", reason="OpenCV 4 is not installed (opencv-python-headless<5)")

Capture = pytest.CaptureFixture[str]
MEAN = np.array([20.0, 30.0, 40.0])

NET = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 12 dim: 16 } } }
layer {
  name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 }
}
layer { name: "bend" type: "ReLU" bottom: "conv" top: "conv" }
layer {
  name: "scores" type: "InnerProduct" bottom: "conv" top: "scores"
  inner_product_param { num_output: 6 }
}
layer { name: "prob" type: "Softmax" bottom: "scores" top: "prob" }
"""


class Case:
    """A net with weights in files, labels, and images of other sizes: in colour and gray."""

    def __init__(self, folder: Path) -> None:
        random = np.random.default_rng(8)
        self.net, self.weights = folder / "net.prototxt", folder / "net.caffemodel"
        self.net.write_text(NET)
        parameters = {
            "conv": [random.standard_normal((4, 3, 3, 3)) / 99, random.standard_normal(4)],
            "scores": [random.standard_normal((6, 4 * 10 * 14)) / 9, random.standard_normal(6)],
        }
        with demitasse.compose() as runtime:
            single = {name: [a.astype("f4") for a in arrays] for name, arrays in parameters.items()}
            runtime.write(self.weights, Weights(single))
        self.labels, self.images = folder / "labels.txt", []
        self.labels.write_text("".join(f"n{number} thing {number}\n" for number in range(6)))
        for number, shape in enumerate([(30, 20, 3), (12, 16, 3), (7, 50), (40, 40, 3)]):
            smooth = cv2.blur(random.integers(0, 256, shape, dtype=np.uint8), (3, 3))
            self.images.append(folder / f"{number}.png")
            cv2.imwrite(str(self.images[-1]), smooth)

    def by_opencv(self, image: Path, rgb: bool, scale: float) -> np.ndarray:
        """The scores by OpenCV's net, fed by its own making of blobs."""
        pixels, mean = cv2.imread(str(image)), tuple(MEAN)
        blob = cv2.dnn.blobFromImage(pixels, scale, (16, 12), mean, swapRB=rgb, crop=False)
        net = cv2.dnn.readNetFromCaffe(str(self.net), str(self.weights))
        net.setInput(blob)
        return np.asarray(net.forward()).reshape(-1)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("classify"))


@pytest.mark.parametrize(("rgb", "scale"), [(False, 1.0), (True, 0.5)])
def test_classes_are_those_that_opencv_finds(
    case: Case, tmp_path: Path, capsys: Capture, rgb: bool, scale: float
) -> None:
    mean = tmp_path / "mean.npy"
    np.save(mean, MEAN[:, None, None] + np.array([-1.0, 0.0, 1.0, -2.0, 2.0] * 5).reshape(5, 5))
    words = [case.net, case.weights, mean, case.labels, *case.images, "--scale", scale, "--top", 3]
    words += ["--json", tmp_path / "out.json", *["--rgb"][: int(rgb)]]
    assert main(["classify", *map(str, words)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[::4] == [str(image) for image in case.images]
    found = json.loads((tmp_path / "out.json").read_text())["images"]
    for number, image in enumerate(case.images):
        right = case.by_opencv(image, rgb, scale)
        best = np.argsort(-right)[:3]
        assert [each["class"] for each in found[number]["classes"]] == best.tolist()
        scores = [each["score"] for each in found[number]["classes"]]
        np.testing.assert_allclose(scores, right[best], rtol=1e-4)
        shown = [f"  {right[c]:.4f}  n{c} thing {c}" for c in best]
        assert lines[4 * number + 1 : 4 * number + 4] == shown


def test_a_folder_is_its_images(case: Case, capsys: Capture) -> None:
    folder = case.images[0].parent
    assert main(["classify", str(case.net), str(case.weights), str(folder), "--top", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[::2] == [str(image) for image in case.images]


def test_an_image_that_cannot_be_read_takes_no_others_along(
    case: Case, tmp_path: Path, capsys: Capture
) -> None:
    broken, other = tmp_path / "broken.png", tmp_path / "other.png"
    broken.write_bytes(case.images[0].read_bytes()[:60])
    other.touch()
    images = [case.images[0], broken, *case.images[1:], other]
    words = [case.net, case.weights, *images, "--top", "1", "--json", tmp_path / "found.json"]
    assert main(["classify", *map(str, words)]) == 2
    told = capsys.readouterr()
    assert told.out.splitlines()[::2] == [str(image) for image in case.images]
    assert (
        "broken.png: is damaged, or not an image" in told.err and "(and 1 more of 6 images)" in told.err
    )
    found = json.loads((tmp_path / "found.json").read_text())["images"]
    assert [each["image"] for each in found] == [str(image) for image in images]
    assert ["error" in each for each in found] == [False, True, False, False, False, True]


@pytest.mark.parametrize("text", [b"{}\r\n\r\n", b"\xef\xbb\xbf{}\n \n", b"{}", "utf-16"])
def test_labels_are_read_as_editors_leave_them(
    case: Case, tmp_path: Path, capsys: Capture, text: bytes | str
) -> None:
    names = "\r\n".join(f"näme {number}" for number in range(6))
    content = names.encode(text) if isinstance(text, str) else text.replace(b"{}", names.encode())
    (tmp_path / "labels.txt").write_bytes(content)
    words = [case.net, case.weights, tmp_path / "labels.txt", case.images[0], "--top", 6]
    assert main(["classify", *map(str, words)]) == 0
    shown = {line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()[1:]}
    assert shown == {f"näme {number}" for number in range(6)}


def test_the_middle_of_a_resized_image_is_less_the_means_pixels(case: Case) -> None:
    mean = np.random.default_rng(2).uniform(0, 99, (3, 20, 20)).astype(np.float32)
    resized = cv2.resize(cv2.imread(str(case.images[0])), (20, 20), interpolation=cv2.INTER_LINEAR)
    middle = (resized.transpose(2, 0, 1) - mean)[:, 4:16, 2:18]
    with demitasse.compose() as runtime:
        found = runtime.program(
            "classify", case.net, case.weights, case.images[:1], mean=mean[None], resize=20
        )
        right = runtime.net(case.net, weights=case.weights).forward(data=middle[None])["prob"]
    np.testing.assert_allclose(found, right, rtol=1e-5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{net}", "{weights}"], "no image is given"),
        (["{net}", "{image}"], "no file of weights is given (.caffemodel, .h5"),
        (["{net}", "{weights}", "{image}s"], "0.pngs; did you mean"),
        (["{net}", "{weights}", "{folder}/broken.png"], "broken.png: is damaged, or not an image in"),
        (["{net}", "{weights}", "{folder}/none.jpg"], "none.jpg: is empty (0 bytes)"),
        (
            ["{net}", "{weights}", "{folder}/lfs.jpg"],
            "it is a Git LFS pointer, not the file itself",
        ),
        (["{net}", "{weights}", "{folder}/lfs.npy", "{image}"], "it is a Git LFS pointer"),
        (["{net}", "{weights}", "m.npz", "{image}"], "m.npz: a mean is a .binaryproto or .npy file"),
        (["{net}", "{weights}", "{folder}/last.npy", "{image}"], "its channels come last: move them"),
        (["{net}", "{weights}", "{folder}/lasts.binaryproto", "{image}"], "did you mean"),
        (["{net}", "{weights}", "{image}", "--mean", "1,2"], "a mean of shape (2,) does not fit 3"),
        (["{net}", "{weights}", "{image}", "--mean", "1,x"], "--mean 1,x: give numbers"),
        (["{net}", "{weights}", "{image}", "--mean", "1,2,nan"], "--mean 1,2,nan: give numbers"),
        (["{net}", "{weights}", "{image}", "--resize", "99999999"], "99999999 x 99999999 pixels take"),
        (["{net}", "{weights}", "{image}", "--blob", "prop"], "unknown output 'prop'; did you mean"),
        (
            ["{net}", "{weights}", "{image}", "--resize", "14"],
            "takes (12, 16) pixels, but images are resized to (14",
        ),
        (
            ["{net}", "{weights}", "{image}", "{folder}/two.txt"],
            "names 2 classes, but output 'prob' has",
        ),
        (["{net}", "{weights}", "{folder}/empty"], "empty has no images (.bmp, "),
        (["{reading}", "{weights}", "{image}"], "the net reads its own samples; give one that"),
    ],
)
def test_mistakes_are_one_line(
    case: Case, tmp_path: Path, capsys: Capture, words: list[str], said: str
) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnot quite")
    (tmp_path / "two.txt").write_text("a\nb\n")
    (tmp_path / "none.jpg").touch()
    for name in ("lfs.jpg", "lfs.npy"):
        (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\n")
    np.save(tmp_path / "last.npy", np.ones((12, 16, 3)))
    (tmp_path / "last.binaryproto").touch()
    (tmp_path / "empty").mkdir()
    reading = tmp_path / "train_test.prototxt"
    reading.write_text(NET.replace('"Input"', '"DummyData"').replace("input_param", "dummy_data_param"))
    names = {"net": case.net, "weights": case.weights, "image": case.images[0], "folder": tmp_path}
    assert main(["classify", *(word.format(**names, reading=reading) for word in words)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def npy(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()


GOOD = npy(np.ones((3, 12, 16), np.float32))


def shaped(text: bytes) -> bytes:
    """The same numbers, of which the header says another shape."""
    assert GOOD.count(b"(3, 12, 16), }".ljust(40)) == 1
    return GOOD.replace(b"(3, 12, 16), }".ljust(40), text.ljust(40))


MEANS = {
    "empty": (b"", "is not a NumPy file of numbers"),
    "text": (b"104,117,123", "is not a NumPy file of numbers"),
    "words": (npy(["a", "b", "c"]), "is not a NumPy file of real numbers: they are <U1"),
    "dates": (npy(np.zeros(3, "datetime64[s]")), "real numbers: they are datetime64"),
    "complex": (npy(np.zeros(3, complex)), "real numbers: they are complex128"),
    "fields": (npy(np.zeros(3, [("a", "f4"), ("b", "f4")])), "real numbers: they are [('a', "),
    "objects": (GOOD.replace(b"'<f4'", b"'|O' "), "is not a NumPy file of numbers"),
    "not finite": (
        npy([1.0, np.nan, np.inf]),
        "is not a mean: it has 2 of 3 numbers that are not finite",
    ),
    "too large for single precision": (npy([1.0, 1e300, 2.0]), "it has 1 of 3 numbers"),
    "cut off": (GOOD[:-4], "is not a NumPy file of numbers"),
    "more than it says": (GOOD + b"1234", "has 4 bytes more than numbers of shape (3, 12, 16)"),
    "huge": (shaped(b"(999999999999,), }"), "is not a NumPy file of numbers"),
    "beyond 64 bits": (shaped(b"(1%020d,), }" % 0), "is not a NumPy file of numbers"),
    "a header that does not end": (shaped(b"(3, 12, 16),"), "is not a NumPy file of numbers"),
}


@pytest.mark.parametrize(("content", "told"), MEANS.values(), ids=MEANS)
def test_a_file_of_numpys_that_is_no_mean_is_named(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "mean.npy"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"mean.npy: .*{re.escape(told)}|mean.npy: {re.escape(told)}"):
        read_mean(path)


def test_means_in_files_of_numpys_and_caffes(tmp_path: Path) -> None:
    (tmp_path / "mean.npy").write_bytes(GOOD)
    assert read_mean(tmp_path / "mean.npy").shape == (3, 12, 16)
    write_blob(tmp_path / "mean.binaryproto", np.array([[[1.0]], [[np.nan]], [[2.0]]]))
    with pytest.raises(ModelError, match=r"mean.binaryproto: is not a mean: it has 1 of 3 numbers"):
        read_mean(tmp_path / "mean.binaryproto")


EVERPEACE = DATA / "caffemodel/everpeace+caffe/examples/cifar10"


@pytest.mark.skipif(not EVERPEACE.is_dir(), reason=f"no real caffemodel in {EVERPEACE}")
def test_pictures_of_cifar_are_classified_as_well_as_its_batches_are(
    tmp_path: Path, unpacked_cifar: Callable[[str], Path]
) -> None:
    """75% of the test set are right (tests/test_real_weights.py); of 300 pictures, 69 to 81%."""
    with demitasse.compose() as runtime:
        source = runtime.open_source(DataSpec(unpacked_cifar("test_batch")))
        batch = {"data": np.empty((300, 3, 32, 32), np.uint8), "label": np.empty(300, np.int32)}
        source.stream(0, 300, 300).read(batch)
        images = [tmp_path / f"{number}.png" for number in range(300)]
        for image, planes in zip(images, batch["data"], strict=True):
            cv2.imwrite(str(image), planes[::-1].transpose(1, 2, 0))  # CIFAR's planes are red first
        net = DATA / "prototxt/BVLC+caffe/examples/cifar10/cifar10_quick.prototxt"
        weights = EVERPEACE / "cifar10_quick_iter_5000.caffemodel"
        mean = read_mean(DATA / "mean/cifar10_mean.binaryproto")
        scores = runtime.program("classify", net, weights, images, mean=mean, rgb=True)
    assert 0.69 < (scores.argmax(1) == batch["label"]).mean() < 0.81
