"""A label that is no class is told with the place that its sample is from: a list's line, a number."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sample_files import image_list
from small_nets import WORKERS

import demitasse
from demitasse import DataError, DataSource, SampleError
from demitasse_training.origins import origins

NET = """
name: "wrong labels"
layer {{ name: "data" type: "{type}" top: "data" top: "label" {samples} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
        inner_product_param {{ num_output: {classes} weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
"""
ARRAYS = 'data_param {{ source: "given" batch_size: {batch} shuffle: {shuffle} }}'
SOLVER = (
    'net: "net.prototxt"\nbase_lr: 0\nlr_policy: "fixed"\nmax_iter: 20\nsnapshot_after_train: false\n'
)
WRONG = 13


def written(folder: Path, type: str, samples: str, more: str = "", classes: int = 5) -> Path:
    (folder / "net.prototxt").write_text(NET.format(type=type, samples=samples, classes=classes))
    (folder / "solver.prototxt").write_text(f'{SOLVER}snapshot_prefix: "{folder}/s"\n{more}')
    return folder / "solver.prototxt"


def arrays(count: int = 20) -> dict[str, Any]:
    """Samples of which one has a label that is no class."""
    labels = np.arange(count) % 5
    labels[WRONG] = 5
    return {"data": np.zeros((count, 3), np.float32), "label": labels}


def refused(solver: Path, hw: Any = "auto", plugins: Any = None, data: Any = None) -> str:
    """What is said of the wrong label."""
    data = {"train": arrays() if data is None else data}
    with (
        demitasse.compose(hw, plugins=plugins) as runtime,
        runtime.trainer(solver, data=data) as trainer,
        pytest.raises(DataError, match=r"is not a class|is not one of the") as caught,
    ):
        trainer.run()
    return str(caught.value)


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize(
    ("plugins", "more", "workers"),
    [
        ("-cpu", "", 1),
        ("+cpu", "", 1),
        ("+cpu", "iter_size: 2", 1),
        ("+cpu", "", 2),
        ("+cpu", "iter_size: 2", 2),
    ],
    ids=["reference", "one worker", "two passes", "two workers", "two workers, two passes"],
)
def test_the_sample_of_a_wrong_label_is_told_by_its_number(
    tmp_path: Path, plugins: str, more: str, workers: int, shuffle: bool
) -> None:
    solver = written(tmp_path, "Data", ARRAYS.format(batch=4, shuffle=str(shuffle).lower()), more)
    hw: Any = "auto"
    if workers > 1:
        hw = tmp_path / "workers.toml"
        hw.write_text(WORKERS.format(count=workers))
    told = refused(solver, hw, plugins)
    assert told.startswith("layer 'loss': label 5 of sample ")
    assert told.count("; the sample is ") == 1
    assert f"; the sample is arrays: number {WRONG}" in told, told


def test_the_line_of_a_list_is_told_in_training_and_in_tests(tmp_path: Path) -> None:
    image_list(tmp_path, count=6, same=True)  # the labels 10 to 15
    about = f'image_data_param {{ source: "list.txt" batch_size: 2 root_folder: "{tmp_path}/" }}'
    solver = written(tmp_path, "ImageData", about, classes=13)
    line = f"; the sample is {tmp_path / 'list.txt'}:4: {tmp_path}/3.png"
    with demitasse.compose() as runtime:
        with runtime.trainer(solver) as trainer, pytest.raises(SampleError) as caught:
            trainer.run()
        assert line in str(caught.value)
        with runtime.net(tmp_path / "net.prototxt", phase="test") as net:
            net.forward()
            with pytest.raises(SampleError) as caught:
                net.forward()
        assert str(caught.value).endswith(line)


def test_images_of_several_sizes_are_told_too(tmp_path: Path) -> None:
    image_list(tmp_path, count=6)
    about = f'image_data_param {{ source: "list.txt" batch_size: 1 root_folder: "{tmp_path}/" }}'
    net = NET.replace('"data" top: "ip"', '"pool" top: "ip"').replace(
        'layer {{ name: "ip"',
        'layer {{ name: "pool" type: "Pooling" bottom: "data" top: "pool"\n'
        '        pooling_param {{ pool: AVE global_pooling: true }} }}\nlayer {{ name: "ip"',
    )
    (tmp_path / "net.prototxt").write_text(net.format(type="ImageData", samples=about, classes=13))
    (tmp_path / "solver.prototxt").write_text(f'{SOLVER}snapshot_prefix: "{tmp_path}/s"\n')
    with demitasse.compose() as runtime, runtime.trainer(tmp_path / "solver.prototxt") as trainer:
        with pytest.raises(SampleError) as caught:
            trainer.run()
        assert trainer.iteration == 3
    assert str(caught.value).count(f"; the sample is {tmp_path / 'list.txt'}:4: ") == 1


HALVES = 'type: "Slice" {0} top: "{1}0" top: "{1}" slice_param {{ axis: 0 }}'
PAIRS = 'type: "Reshape" {0} top: "{1}" reshape_param {{ shape {{ dim: 2 dim: 2 dim: {2} }} }}'


@pytest.mark.parametrize("plugins", ["-cpu", "+cpu"])
@pytest.mark.parametrize(("batch", "moved"), [(2, HALVES), (4, PAIRS)], ids=["halves", "two by two"])
def test_where_layers_have_moved_samples_nothing_is_told(
    tmp_path: Path, plugins: str, batch: int, moved: str
) -> None:
    """Number 13 is the second of its batch, and the first one of what the loss is given."""
    solver = written(tmp_path, "Data", ARRAYS.format(batch=batch, shuffle="false"))
    layers = [
        f'layer {{ name: "moved {name}" {moved.format(f"bottom: {name!r}", f"part of {name}", rest)} }}'
        for name, rest in (("ip", 5), ("label", 1))
    ]
    net = tmp_path / "net.prototxt"
    head, loss, rest = net.read_text().partition('layer { name: "loss"')
    rest = rest.replace('"ip"', '"part of ip"').replace('"label"', '"part of label"')
    axis = "" if moved is HALVES else " softmax_param { axis: 2 }"
    net.write_text(head + "\n".join(layers) + "\n" + loss + rest.replace(" }", axis + " }"))
    told = refused(solver, plugins=plugins)
    assert "label 5 of sample 0 of the batch" in told
    assert "the sample is" not in told


@pytest.mark.parametrize("model", ["bsp", "asp"])
@pytest.mark.parametrize("more", ["", "iter_size: 2"], ids=["one pass", "two passes"])
def test_workers_that_read_ahead_or_go_ahead_tell_their_own_samples(
    tmp_path: Path, model: str, more: str
) -> None:
    solver = written(tmp_path, "Data", ARRAYS.format(batch=4, shuffle="true"), more)
    hw = tmp_path / "workers.toml"
    sync = f'sync = {{ plugin = "parameter_server", model = "{model}" }}\n'
    hw.write_text(WORKERS.format(count=2).split("sync =")[0] + sync)
    told = refused(solver, hw, "+parameter_server")
    assert told.count(f"; the sample is arrays: number {WRONG}") == 1, told


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_that_share_a_tests_batches_tell_theirs(tmp_path: Path, workers: int) -> None:
    test = "test_iter: 5\ntest_interval: 100\ntest_initialization: false"
    solver = written(tmp_path, "Data", ARRAYS.format(batch=12, shuffle="false"), test)
    hw = tmp_path / "workers.toml"
    hw.write_text(WORKERS.format(count=workers))
    right, wrong = arrays(60), arrays(60)
    right["label"][WRONG] = 0
    with (
        demitasse.compose(hw if workers > 1 else "auto") as runtime,
        runtime.trainer(solver, data={"train": right, "test": wrong}) as trainer,
        pytest.raises(SampleError) as caught,
    ):
        trainer.test()
    assert str(caught.value).count(f"; the sample is arrays: number {WRONG}") == 1


def test_a_source_of_two_layers_is_told_once(tmp_path: Path) -> None:
    solver = written(tmp_path, "Data", ARRAYS.format(batch=4, shuffle="false"))
    net = tmp_path / "net.prototxt"
    head, loss, rest = net.read_text().partition('layer { name: "ip"')
    more = head[head.index("layer") :].replace('"data"', '"more"').replace('"label"', '"other"')
    silent = 'layer { name: "silent" type: "Silence" bottom: "more" bottom: "other" }'
    net.write_text("\n".join([head, more, silent, loss + rest]))
    told = refused(solver)
    assert told.count(f"arrays: number {WRONG}") == 1


@pytest.mark.parametrize(
    ("sample", "samples", "said"),
    [(3, 4, [13]), (3, 0, [13]), (4, 0, []), (3, 2, []), (3, 8, [])],
)
def test_only_samples_that_were_read_are_looked_for(sample: int, samples: int, said: list[int]) -> None:
    feed = SimpleNamespace(source=SimpleNamespace(origin=lambda number: number), count=4)
    found = origins(SampleError("label 5", sample, samples), [(feed, 10)])  # type: ignore[list-item]
    assert found == [str(number) for number in said]


class Own(DataSource):
    """Samples of a stranger's source."""

    def __init__(self, tells: Any) -> None:
        given = arrays()
        self.fields = {name: demitasse.Field(a.shape[1:], "float32") for name, a in given.items()}
        self.size, self._arrays = len(given["label"]), given
        if tells is not None:
            self.origin = tells

    def stream(self, first: int, count: int, step: int) -> Any:
        return OwnStream(self._arrays, first, count, step)

    def close(self) -> None:
        """Nothing is open."""


class OwnStream:
    def __init__(self, arrays: Any, first: int, count: int, step: int) -> None:
        self._arrays, self.cursor, self._count, self._step = arrays, first, count, step

    def read(self, out: Any) -> None:
        for name, array in out.items():
            array[...] = self._arrays[name][self.cursor : self.cursor + self._count]
        self.cursor += self._step

    def close(self) -> None:
        """Nothing is open."""


def fails(number: int) -> str:
    return {}[number]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("tells", "said"),
    [
        (lambda number: f"page {number}", "; the sample is page 13"),
        (
            fails,
            "; the sample is number 13 of Own of tests.test_origins_of_samples, which raised KeyError",
        ),
        (None, None),
    ],
    ids=["it tells", "it fails", "it does not"],
)
def test_a_strangers_source_may_tell(tmp_path: Path, toy: Any, tells: Any, said: str | None) -> None:
    own = toy.plugin("own", data_source=lambda spec: Own(tells) if spec.source == "own" else None)
    about = ARRAYS.format(batch=4, shuffle="false").replace("given", "own")
    solver = written(tmp_path, "Data", about)
    plugins = [own, "caffe", "training", "reference"]
    with (
        demitasse.compose(plugins=plugins) as runtime,
        runtime.trainer(solver) as trainer,
        pytest.raises(SampleError) as caught,
    ):
        trainer.run()
    told = str(caught.value)
    assert "label 5 of sample 1 of the batch" in told
    assert said in told if said else "the sample is" not in told


def test_an_error_about_a_sample_is_whole_when_it_was_copied() -> None:
    error = copy.copy(SampleError("label 5 of sample 3", 3))
    assert isinstance(error, SampleError) and (str(error), error.sample) == ("label 5 of sample 3", 3)
