"""Nets of SSD's fork from their own databases: trained and tested as their files say, with mean average
precisions for scores; simulated and drawn where the database is elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated_files import annotated_database, rectangles
from detection_texts import LEARNT, NET
from launchers import LAUNCHER
from real_files import DATA

import demitasse
from demitasse import DataError, ModelError

SSD = DATA / "prototxt" / "chuanqi305+MobileNet-SSD"
needs_ssd = pytest.mark.skipif(not SSD.is_dir(), reason=f"no nets of SSD under {DATA}")
COMMAND = Path(sys.executable).with_name("demitasse")
SOLVER = """
net: "net.prototxt" type: "Adam" base_lr: 0.003 momentum: 0.9 lr_policy: "fixed" max_iter: 250
test_iter: 7 test_interval: 250 display: 50 snapshot_after_train: false random_seed: 1
eval_type: "detection" ap_version: "11point" show_per_class_result: true
"""
TWO = """
schema = 1
name = "two"
fingerprint = "any"
[[level]]
name = "worker"
count = 2
workers = "{0}"
cores = 2
sync = {{ plugin = "{1}" }}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A solver, its net, and databases of rectangles."""
    made = tmp_path_factory.mktemp("ssd")
    annotated_database(made / "train_lmdb", rectangles(300, 1))
    annotated_database(made / "test_lmdb", rectangles(65, 2))
    (made / "net.prototxt").write_text(NET.format(layers=LEARNT))
    (made / "solver.prototxt").write_text(SOLVER)
    return made


@pytest.fixture(scope="module")
def trained(folder: Path) -> dict[str, Any]:
    """The scores of the net as it is at first and trained; its weights beside the solver."""
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        trainer = runtime.trainer(folder / "solver.prototxt")
        before = trainer.test()
        losses = [trainer.step().loss for _ in range(100)]
        assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:5])
        after = trainer.test()
        weights = demitasse.Weights(dict(trainer.net.params))
        runtime.write(folder / "net.caffemodel", weights)
    return {"before": before, "after": after}


def test_a_net_is_trained_and_scored_by_its_precision(trained: dict[str, Any]) -> None:
    """From its own databases, whose images are cut, set in larger ones, mirrored and coloured."""
    before, after = trained["before"], trained["after"]
    assert set(after) == {"precision", "precision.class1", "precision.class2"}
    assert before["precision"] < 0.3 and after["precision"] > 0.8
    each = [after["precision.class1"], after["precision.class2"]]
    assert after["precision"] == pytest.approx(np.mean(each))


def test_a_net_alone_scores_the_same_by_the_solvers_words(
    folder: Path, trained: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    from demitasse_cli.main import main

    with demitasse.compose(plugins=["-tuning"]) as runtime:
        overrides = {
            "layer.precision.detection_evaluate_param.ap_version": "11point",
            "layer.precision.detection_evaluate_param.show_per_class_result": True,
        }
        net = runtime.net(
            folder / "net.prototxt", weights=folder / "net.caffemodel", overrides=overrides
        )
        assert net.test(7) == pytest.approx(trained["after"])
        rows = net.forward()["precision"][0, 0]
        assert rows[:2, [0, 1, 3, 4]].tolist() == [[-1, 1, -1, -1], [-1, 2, -1, -1]]
        assert rows[:2, 2].sum() == 10 and len(rows) > 2 and (rows[2:, 0] >= 0).all()
        versions = [
            net.test(7)["precision"]
            for version in ("Integral", "MaxIntegral")
            for net in [
                runtime.net(
                    folder / "net.prototxt",
                    weights=folder / "net.caffemodel",
                    overrides={"layer.precision.detection_evaluate_param.ap_version": version},
                )
            ]
        ]
        assert 0.8 < versions[0] <= versions[1] <= 1
    words = ["test", str(folder / "solver.prototxt"), "--weights", str(folder / "net.caffemodel")]
    assert main([*words, "--option", "tuning.tune=off", "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["scores"] == pytest.approx(trained["after"]) and told["iterations"] == 7


def test_pycaffe_logs_the_precision(
    folder: Path, trained: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    import demitasse_caffe.pycaffe as caffe

    caffe.init_log()
    solver = caffe.get_solver(str(folder / "solver.prototxt"))
    solver.net.copy_from(str(folder / "net.caffemodel"))
    solver.step(1)
    told = capfd.readouterr().err
    line = next(line for line in told.splitlines() if "Test net output" in line)
    assert "precision = " in line
    assert float(line.rpartition(" = ")[2]) == pytest.approx(trained["after"]["precision"], abs=1e-5)


def test_two_workers_score_as_one_does(folder: Path, trained: dict[str, Any]) -> None:
    """The batches of a test are divided, and what is found in all of them is counted together."""
    (folder / "two.toml").write_text(TWO.format("threads", "reference"))
    with demitasse.compose(folder / "two.toml", plugins=["-tuning"]) as runtime:
        overrides = {"weights": "net.caffemodel"}
        trainer = runtime.trainer(folder / "solver.prototxt", overrides=overrides)
        assert trainer.test() == pytest.approx(trained["after"])


@pytest.mark.skipif(not LAUNCHER.exists(), reason=f"no MPI launcher at {LAUNCHER}")
def test_two_processes_score_as_one_does(folder: Path, trained: dict[str, Any]) -> None:
    (folder / "two_processes.toml").write_text(TWO.format("mpi", "allreduce"))
    words = ["train", "solver.prototxt", "--hw", "two_processes.toml", "--weights", "net.caffemodel"]
    more = ["--iterations", "0", "--option", "tuning.tune=off", "--json", "two.json"]
    done = subprocess.run(
        [LAUNCHER, "-n", "2", COMMAND, *words, *more],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((folder / "two.json").read_text())
    assert told["tests"][0]["scores"] == pytest.approx(trained["after"]), told


LAYER = """layer {{ name: "data" type: "AnnotatedData" top: "data" top: "label"
  transform_param {{ {transform} }}
  data_param {{ source: "{source}" batch_size: 4 {data} }}
  annotated_data_param {{ {about} }} }}
layer {{ name: "sum" type: "Reduction" bottom: "data" top: "sum" }}
"""
RESIZED = "resize_param { height: 32 width: 24 }"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"transform": "mean_file: 'm'"}, "has a mean_file, which is for images of one size"),
        ({"transform": "force_gray: true force_color: true"}, "cannot be combined"),
        ({"transform": "crop_h: 3"}, "crop_h 3 and crop_w 0: give both"),
        ({"transform": "crop_h: 3 crop_w: 3 crop_size: 3"}, "crop_size cannot be combined"),
        ({"transform": "resize_param { height: 3 }"}, "height: 3 width: 0 } is not the size"),
        ({"transform": "resize_param { height: 3 width: 3 height_scale: 3 }"}, "have no counterpart"),
        (
            {"transform": "resize_param { height: 3 width: 3 resize_mode: FIT_SMALL_SIZE }"},
            "give crop_h and crop_w",
        ),
        ({"transform": f"{RESIZED} {RESIZED}"}, "has 2 resize_param; give one"),
        (
            {"transform": "expand_param { max_expand_ratio: 0.5 }"},
            "max_expand_ratio 0.5 is not 1 or more",
        ),
        ({"transform": "mean_value: [1, 2]"}, "2 mean_value for 1 channels; give 1"),
        ({"about": "max_objects: 0"}, "max_objects is 0"),
        (
            {"about": "yolo_data_jitter: 1"},
            "yolo_data_jitter 1 is not a share by which sides are cut, 0 or more and below 1",
        ),
        (
            {"about": "batch_sampler { sampler { min_scale: 0.9 max_scale: 0.3 } }"},
            "min_scale: 0.9 max_scale: 0.3 } } are not above 0, in order and at most 1",
        ),
        ({"about": "batch_sampler { max_trials: 0 }"}, "tries 0 times"),
        ({"source": "tset_lmdb"}, "no such file or folder: .*tset_lmdb"),
    ],
)
def test_mistakes_are_named(folder: Path, tmp_path: Path, given: dict[str, str], told: str) -> None:
    path = folder / "mistaken.prototxt"
    path.write_text(
        LAYER.format(**{"transform": "", "source": "test_lmdb", "data": "", "about": ""} | given)
    )
    with (
        demitasse.compose() as runtime,
        pytest.raises((ModelError, DataError), match=rf"mistaken.prototxt:\d+: .*{told}"),
    ):
        runtime.net(path)


@pytest.mark.parametrize("kind", ["Data", "ImageData", "WindowData"])
def test_other_layers_do_not_do_what_ssds_transformations_say(folder: Path, kind: str) -> None:
    field = {"Data": "data", "ImageData": "image_data", "WindowData": "window_data"}[kind]
    source = "test_lmdb" if kind == "Data" else "list.txt"
    (folder / "list.txt").write_text("# 0\na.png\n3 9 9\n1\n1 0.9 0 0 3 3\n")
    path = folder / "other.prototxt"
    asked, told = (
        "distort_param { brightness_prob: 1 }",
        "distort_param } belongs to SSD's fork; here only Ann",
    )
    if kind == "WindowData":
        asked, told = (
            RESIZED,
            "resize_param } belongs to SSD's fork; here only AnnotatedData, Data and ImageD",
        )
    path.write_text(
        f'layer {{ name: "d" type: "{kind}" top: "d" top: "l" {field}_param {{ source: "{source}" '
        f"batch_size: 1 }} transform_param {{ crop_size: 3 {asked} }} }}"
    )
    with demitasse.compose() as runtime, pytest.raises(ModelError, match=told):
        runtime.net(path)


def test_the_mean_is_subtracted_and_the_rest_scaled(folder: Path) -> None:
    path = folder / "plain.prototxt"
    transform = f"{RESIZED} mean_value: 100 scale: 0.5 force_color: true"
    path.write_text(
        LAYER.format(transform=transform, source="test_lmdb", data="", about="max_objects: 2")
    )
    with demitasse.compose() as runtime:
        net = runtime.net(path, retain="all")
        net.forward()
        data, label = (np.array(net.blobs[name].data) for name in ("data", "label"))
    assert data.shape == (4, 3, 32, 24) and label.shape == (4, 1, 2, 8)
    import cv2

    for (pixels, objects), image, rows in zip(rectangles(65, 2), data, label[:, 0], strict=False):
        wanted = (cv2.resize(pixels, (24, 32)).astype(float) - 100) * 0.5
        np.testing.assert_allclose(image, np.stack([wanted] * 3), atol=1e-5)
        np.testing.assert_allclose(rows[0], [0, *objects[0]], rtol=1e-6)
        assert (rows[1] == -1).all()


@needs_ssd
def test_mobilenet_ssd_is_simulated_and_drawn_without_its_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from demitasse_cli.main import main

    monkeypatch.chdir(tmp_path)
    hardware = str(Path(__file__).parents[1] / "hwdesc" / "h200-box.toml")
    words = ["simulate", str(SSD / "voc/solver.prototxt"), "--hw", hardware, "--json", "told.json"]
    words += ["--plugins", "+detection,+onnx"]
    assert main(words) == 0, capsys.readouterr().err
    assert json.loads(Path("told.json").read_text())["seconds"] > 0
    assert main(["draw", str(SSD / "train.prototxt"), "net.svg", "--phase", "train"]) == 0
    assert "24x3x300x300" in Path("net.svg").read_text().replace(" ", "").replace("×", "x")


@needs_ssd
def test_mobilenet_ssd_is_trained_and_tested_from_its_own_files(tmp_path: Path) -> None:
    """As they are, beside databases of a few images; in smaller batches."""
    samples = []
    dice = np.random.default_rng(0)
    for number in range(5):
        pixels = dice.integers(0, 256, (60 + number, 90, 3)).astype(np.uint8)
        low = dice.uniform(0, 0.4, 2)
        samples.append((pixels, [(1 + number, 0, *low, *(low + 0.4), 0)]))
    annotated_database(tmp_path / "trainval_lmdb", samples)
    annotated_database(tmp_path / "test_lmdb", samples)
    for name in ("train", "voc/MobileNetSSD_test"):
        text = (SSD / f"{name}.prototxt").read_text().replace("trainval_lmdb/", "trainval_lmdb")
        (tmp_path / Path(f"{name}.prototxt").name).write_text(text)
    (tmp_path / "solver.prototxt").write_text(
        (SSD / "solver_test.prototxt").read_text().replace("MobileNetSSD_train", "train")
    )
    overrides = {"test_iter": 1, "layer.data.data_param.batch_size": 2}
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        trainer = runtime.trainer(tmp_path / "solver.prototxt", overrides=overrides)
        losses = [trainer.step().loss for _ in range(2)]
        scores = trainer.test()
    assert np.isfinite(losses).all()
    assert set(scores) == {"detection_eval"} and 0 <= scores["detection_eval"] <= 1
