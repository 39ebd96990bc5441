"""What the READMEs and guides show: programs and descriptions that run, and links that lead somewhere.

Programs that need a launcher, a second machine or a net of hundreds of layers are not run here; those of
the README and the guides are in the tests of theirs.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from shown_programs import output, programs

import demitasse

ROOT = Path(__file__).parents[1]
PAGES = [
    page
    for pattern in ("*.md", "docs/*.md", "hwdesc/*.md", "core/*.md", "tools/**/*.md")
    for page in sorted(ROOT.glob(pattern))
] + [*sorted(ROOT.glob("plugins/*/*.md")), *sorted(ROOT.glob("examples/*/*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(page: str, language: str) -> list[str]:
    return programs(ROOT / page, language)


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What GitHub calls the sections of a page."""
    heads = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_to_files_and_sections_that_are_there(page: Path) -> None:
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        name, _, section = link.partition("#")
        if name.startswith(("http:", "https:")):
            continue
        path = page.parent / name if name else page
        told = path / "README.md" if path.is_dir() else path
        if not path.exists() or (section and section not in anchors(told)):
            wrong.append(link)
    assert wrong == []


def test_the_key_of_descriptions_has_every_field_and_file() -> None:
    text = (ROOT / "hwdesc/README.md").read_text("utf-8")
    table, rest = text.split("\nUnits: ")
    keys: dict[str, set[str]] = {}
    for bold, key in re.findall(r"^\| (?:\*\*(.+?)\*\*|`([\w.]+)` \|).*$", table, flags=re.MULTILINE):
        if bold:
            told = keys.setdefault(bold.strip("`"), set())
        elif keys:
            told.add(key.partition(".")[0])
    own = {"the file": {"schema"}, "[[level]]": {"source"}, "a memory": {"source"}, "a link": {"source"}}
    records = (demitasse.Machine, demitasse.Level, demitasse.MemorySpace, demitasse.Link)
    for (name, told), record in zip(keys.items(), records, strict=True):
        given = {each.name for each in dataclasses.fields(record) if each.compare}
        assert told - own[name] == given - {"levels", "source"}, name
    files = {path.name for path in ROOT.glob("hwdesc/*.toml")}
    assert files == set(re.findall(r"`([\w-]+\.toml)`", rest))


DESCRIPTIONS = [
    pytest.param(text, id=f"{name}-{number}")
    for name in NAMES
    for number, text in enumerate(blocks(name, "toml"))
    if "[[level]]" in text or "[options" in text
]


@pytest.mark.parametrize("text", DESCRIPTIONS)
def test_descriptions_are_read_and_composed(text: str, tmp_path: Path) -> None:
    level = "" if "[[level]]" in text else '\n[[level]]\nname = "node"\n'
    path = tmp_path / "machine.toml"
    path.write_text(f'schema = 1\nname = "shown"\n{text}{level}')
    with demitasse.compose(path, plugins=["+cgdp", "+parameter_server", "+null"]) as runtime:
        runtime.explain()


LAYERS = """
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" convolution_param { num_output: 4
  kernel_size: 5 stride: 4 weight_filler { type: "xavier" } } }
layer { name: "ip" type: "InnerProduct" bottom: "conv1" top: "ip"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
"""
LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }'
SOLVER = """
net: "train_test.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 50
test_iter: 1 test_interval: 50 snapshot_after_train: false random_seed: 1
"""


def deploy(shape: tuple[int, ...], name: str = "data") -> str:
    dims = " ".join(f"dim: {extent}" for extent in shape)
    return (
        f'layer {{ name: "{name}" type: "Input" top: "data" input_param {{ shape {{ {dims} }} }} }}'
        f'{LAYERS} layer {{ name: "prob" type: "Softmax" bottom: "ip" top: "prob" }}'
    )


def idx(path: str, array: np.ndarray) -> None:
    """An IDX file of bytes."""
    shape = np.array(array.shape, ">u4").tobytes()
    Path(path).write_bytes(bytes([0, 0, 8, array.ndim]) + shape + array.astype(np.uint8).tobytes())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*programs: str, **names: Any) -> dict[str, Any]:
    """Run programs in turn with these names; what they then have."""
    for program in programs:
        exec(program, names)
    return names


def test_caffes_read_nets_solvers_and_weights_as_their_files_are(here: Path) -> None:
    import demitasse_caffe.pycaffe as caffe

    samples = "".join(
        f'layer {{ name: "mnist" type: "Data" top: "data" top: "label" include {{ phase: {phase} }} '
        f'data_param {{ source: "{source}" batch_size: 20 }} }}'
        for phase, source in (("TRAIN", "mnist_train_lmdb"), ("TEST", "mnist_test_lmdb"))
    )
    Path("train_test.prototxt").write_text(samples + LAYERS + LOSS)
    Path("lenet_solver.prototxt").write_text(SOLVER)
    Path("lenet.prototxt").write_text(deploy((1, 1, 28, 28)))
    random = np.random.default_rng(1)
    for part in ("train", "t10k"):
        idx(f"{part}-images-idx3-ubyte.gz", random.integers(0, 2, (60, 28, 28)))
        idx(f"{part}-labels-idx1-ubyte.gz", random.integers(0, 10, 60))
    with demitasse.compose() as runtime:
        net = runtime.net("lenet.prototxt")
        weights = demitasse.Weights(dict(net.params))
        runtime.write("lenet_iter_10000.caffemodel", weights)
    reading, importing, scripting = blocks("plugins/caffe/README.md", "python")
    made = run(reading, demitasse=demitasse)
    assert made["trainer"].solver.max_iterations == 100
    assert np.array_equal(made["net"].params["ip"][0], weights.parameters["ip"][0])
    for source in ("train", "t10k"):  # the script has no overrides
        text = Path("train_test.prototxt").read_text()
        old = "mnist_train_lmdb" if source == "train" else "mnist_test_lmdb"
        Path("train_test.prototxt").write_text(text.replace(old, f"{source}-images-idx3-ubyte.gz"))
    image = random.normal(size=(1, 1, 28, 28))
    try:
        made = run(importing, scripting, image=image)
    finally:
        caffe.use(None)
    assert made["prob"].shape == (1, 10) and made["prob"].sum() == pytest.approx(1)


def test_onnx_goes_out_and_in_and_trains(here: Path) -> None:
    Path("deploy.prototxt").write_text(deploy((2, 1, 8, 8)))
    going, training = blocks("plugins/onnx/README.md", "python")
    random = np.random.default_rng(1)
    images, labels = random.normal(size=(64, 1, 8, 8)), random.integers(0, 10, 64)
    with demitasse.compose() as runtime:
        net = runtime.net("deploy.prototxt")
        runtime.write("net.caffemodel", demitasse.Weights(dict(net.params)))
        run(going, demitasse=demitasse, image=images[:2])
        text = deploy((2, 1, 8, 8)).replace('"data"', '"x"')
        Path("deploy.prototxt").write_text(text.partition(' layer { name: "prob"')[0])
        runtime.program("export_onnx", "deploy.prototxt", "net.onnx", weights="net.caffemodel")
        shorter = training.replace("1000", "200")
        made = run(shorter, runtime=runtime, images=images, labels=labels)
        assert made["trainer"].iteration == 200
        found = made["net"].forward(x=images)["ip"].argmax(1)
        assert (found == labels).mean() > 0.5


def test_a_database_is_written_from_a_list_of_images(here: Path) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV 4 is not installed (opencv-python-headless<5)")
    (here / "images").mkdir()
    for number in range(3):
        cv2.imwrite(f"images/{number}.png", np.full((20, 30, 3), number, np.uint8))
    Path("list.txt").write_text("0.png 0\n1.png 1\n2.png 2\n")
    run(*blocks("plugins/datasets/README.md", "python"), demitasse=demitasse)
    with demitasse.compose() as runtime:
        source = runtime.open_source(demitasse.DataSpec("train_lmdb"))
        assert source.size == 3 and source.fields["data"].shape == (3, 256, 256)
        source.close()


def test_a_step_is_predicted(here: Path) -> None:
    Path("hwdesc").symlink_to(ROOT / "hwdesc")
    data = 'layer { name: "d" type: "Data" top: "data" top: "label" '
    data += 'data_param { source: "not here" batch_size: 8 } }'
    Path("train_test.prototxt").write_text(data + LAYERS + LOSS)
    Path("solver.prototxt").write_text(SOLVER)
    made = run(*blocks("plugins/simulator/README.md", "python"), demitasse=demitasse)
    assert made["done"].fits and made["done"].seconds > 0


def test_a_command_is_added() -> None:
    made = run(*blocks("plugins/cli/README.md", "python"))
    command = made["commands"]()["greet"]
    assert isinstance(command, click.Command) and command.help == "Say good day."


def test_arrays_are_summed_over_processes(here: Path) -> None:
    program = "\n".join(blocks("plugins/allreduce/README.md", "python"))
    said = "assert (array == 1).all() and (gradients == 0).all()\nprint('summed')"
    assert output(f"{program}\n{said}", here) == "summed\n"
