"""YOLO's nets beside OpenCV, which reads Darknet's own files of the same layers and weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import demitasse

cv2 = pytest.importorskip("cv2", reason="OpenCV 4 is not installed (opencv-python-headless<5)")

WIDTH, HEIGHT = 96, 64
ANCHORS = (7, 9, 14, 10, 12, 25, 30, 22, 25, 48, 60, 40)
NET = f"[net]\nwidth={WIDTH}\nheight={HEIGHT}\nchannels=3\n"
CONVOLUTION = "[convolutional]\nfilters={}\nsize={}\nstride={}\npad={}\nactivation={}\n"
INPUT = (
    'layer {{ name: "data" type: "Input" top: "data" '
    "input_param {{ shape {{ dim: [{}, 3, 64, 96] }} }} }}\n"
)


def convolution(name: str, bottom: str, outputs: int, size: int, stride: int, leaky: bool) -> str:
    about = f"num_output: {outputs} kernel_size: {size} stride: {stride} pad: {size // 2}"
    text = f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" '
    text += f"convolution_param {{ {about} }} }}\n"
    if leaky:
        text += f'layer {{ name: "{name}_r" type: "ReLU" bottom: "{name}" top: "{name}" '
        text += "relu_param { negative_slope: 0.1 } }\n"
    return text


@pytest.fixture(scope="module")
def runtime() -> Iterator[demitasse.Runtime]:
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        yield runtime


class Pair:
    """A net of Darknet's with random weights, read by OpenCV, and the same in Caffe's words."""

    def __init__(
        self, runtime: demitasse.Runtime, cfg: str, text: str, folder: Path, images: int
    ) -> None:
        (path := folder / "net.prototxt").write_text(INPUT.format(images) + text)
        rng = np.random.default_rng(5)
        weights, saved = demitasse.Weights(), [np.array([0, 2, 0, 0, 0], np.int32).tobytes()]
        for name, given in runtime.net(path).params.items():
            filters, biases = map(np.shape, given)
            w = rng.normal(0, 1.3 / np.sqrt(np.prod(filters[1:])), filters).astype("f4")
            b = rng.normal(0, 0.3, biases).astype("f4")
            weights.parameters[name] = [w, b]
            saved += [b.tobytes(), w.tobytes()]
        self.net = runtime.net(path, weights=runtime.write(folder / "w.caffemodel", weights))
        self.theirs = cv2.dnn.readNetFromDarknet(
            np.frombuffer(cfg.encode(), np.uint8), np.frombuffer(b"".join(saved), np.uint8)
        )
        self.x = rng.normal(0, 1, (images, 3, HEIGHT, WIDTH)).astype("f4")

    def found(self) -> np.ndarray:
        """Ours: rows."""
        rows: np.ndarray = self.net.forward(data=self.x)["found"][0, 0]
        return rows

    def told(self) -> list[np.ndarray]:
        """OpenCV's, for each image: rows of a centre, sides, an object and classes, of all maps."""
        self.theirs.setInput(self.x)
        made = self.theirs.forward(self.theirs.getUnconnectedOutLayersNames())
        return [np.concatenate([each.reshape(len(self.x), -1, each.shape[-1])[n] for each in made])
                for n in range(len(self.x))]  # fmt: skip


def chosen(told: np.ndarray, overlap: float, confidence: float) -> np.ndarray:
    """Slowly: the most confident box that is left, whatever its class, and those that lie on it away."""
    left = sorted((row for row in told if row[5:].max() > confidence), key=lambda row: -row[5:].max())
    rows = []
    while left:
        best = left.pop(0)
        x, y, w, h = best[:4]
        box = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        rows.append([best[5:].argmax() + 1, best[5:].max(), *box])

        def lies_on_it(row: np.ndarray, box: tuple[float, ...] = box) -> bool:
            low = np.maximum(row[:2] - row[2:4] / 2, box[:2])
            high = np.minimum(row[:2] + row[2:4] / 2, box[2:])
            common = np.prod(np.maximum(high - low, 0))
            whole = row[2] * row[3] + (box[2] - box[0]) * (box[3] - box[1]) - common
            return bool(common / whole >= overlap)

        left = [row for row in left if not lies_on_it(row)]
    return np.array(rows)


def agree(pair: Pair, overlap: float, confidence: float) -> int:
    ours, count = pair.found(), 0
    for image, told in enumerate(pair.told()):
        expected, mine = chosen(told, overlap, confidence), ours[ours[:, 0] == image][:, 1:]
        assert mine.shape == expected.shape
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)
        count += len(mine)
    assert count == len(ours)
    return count


@pytest.mark.parametrize("overlap", [0.2, 0.6])
def test_two_scales_find_what_opencv_finds(
    overlap: float, runtime: demitasse.Runtime, tmp_path: Path
) -> None:
    """YOLOv3's head: the coarser map's features enlarged beside finer ones; nine classes, two images."""
    yolo = "[yolo]\nmask={}\nanchors=" + ",".join(map(str, ANCHORS)) + "\nclasses=9\nnum=6\n"
    cfg = (
        NET
        + CONVOLUTION.format(8, 3, 8, 1, "leaky")
        + CONVOLUTION.format(6, 3, 2, 1, "leaky")
        + CONVOLUTION.format(42, 1, 1, 0, "linear")
        + yolo.format("3,4,5")
        + "[route]\nlayers=-3\n[upsample]\nstride=2\n[route]\nlayers=-1,0\n"
        + CONVOLUTION.format(42, 1, 1, 0, "linear")
        + yolo.format("0,1,2")
    )
    biases = " ".join(f"biases: {anchor}" for anchor in ANCHORS)
    text = (
        convolution("fine", "data", 8, 3, 8, leaky=True)
        + convolution("coarse", "fine", 6, 3, 2, leaky=True)
        + convolution("large", "coarse", 42, 1, 1, leaky=False)
        + 'layer { name: "up" type: "Upsample" bottom: "coarse" top: "up" '
        "upsample_param { scale: 2 } }\n"
        'layer { name: "both" type: "Concat" bottom: "up" bottom: "fine" top: "both" }\n'
        + convolution("small", "both", 42, 1, 1, leaky=False)
        + 'layer { name: "found" type: "Yolov3DetectionOutput" bottom: "large" bottom: "small" '
        f'top: "found" yolov3_detection_output_param {{ num_classes: 9 {biases} '
        f"mask: [3, 4, 5, 0, 1, 2] anchors_scale: 16 anchors_scale: 8 nms_threshold: {overlap} "
        "confidence_threshold: 0.3 } }"
    )
    assert agree(Pair(runtime, cfg, text, tmp_path, 2), overlap, 0.3) > 20


def test_a_reorganised_map_finds_what_opencv_finds(runtime: demitasse.Runtime, tmp_path: Path) -> None:
    """YOLOv2's head: finer features reorganised beside the coarser ones, and a softmax over classes.
    OpenCV drops here boxes that lie on others of their class, so these do not."""
    cfg = (
        NET
        + CONVOLUTION.format(8, 3, 8, 1, "leaky")
        + CONVOLUTION.format(6, 3, 2, 1, "leaky")
        + "[route]\nlayers=0\n[reorg]\nstride=2\n[route]\nlayers=-1,1\n"
        + CONVOLUTION.format(16, 1, 1, 0, "linear")
        + "[region]\nanchors=0.15,0.1,0.2,0.3\nclasses=3\ncoords=4\nnum=2\nsoftmax=1\nthresh=0.2\n"
        "nms_threshold=0\n"
    )
    text = (
        convolution("fine", "data", 8, 3, 8, leaky=True)
        + convolution("coarse", "fine", 6, 3, 2, leaky=True)
        + 'layer { name: "few" type: "Reorg" bottom: "fine" top: "few" reorg_param { stride: 2 } }\n'
        'layer { name: "both" type: "Concat" bottom: "few" bottom: "coarse" top: "both" }\n'
        + convolution("map", "both", 16, 1, 1, leaky=False)
        + 'layer { name: "found" type: "YoloDetectionOutput" bottom: "map" top: "found" '
        "yolo_detection_output_param { num_classes: 3 num_box: 2 biases: [0.15, 0.1, 0.2, 0.3] "
        "confidence_threshold: 0.25 nms_threshold: 0.45 } }"
    )
    assert agree(Pair(runtime, cfg, text, tmp_path, 2), 0.45, 0.25) > 5
