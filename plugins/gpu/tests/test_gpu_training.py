"""Training whole nets on a stand-in for a GPU: the same CUDA sources, compiled for this processor."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from cuda_on_cpu.driver import EmulatedDriver
from stand_in_cublaslt import StandInBlas
from stand_in_cudnn import StandIn
from threaded_driver import ThreadedDriver

import demitasse
from demitasse import Candidate, Level, Machine, MemorySpace, Request, SyncSpec, fingerprint
from demitasse_gpu import libraries
from demitasse_gpu.libraries import convolutions, cublaslt, cudnn, products
from demitasse_training import worker

ROOT = Path(__file__).resolve().parents[3]
ORDER_BACK = "order: 1 order: 3 order: 0 order: 2"
EXAMPLE = ROOT / "examples" / "digits" / "digits_solver.prototxt"
BATCH = 16
PLUGINS = ["caffe", "training", "datasets", "gpu", "cpu", "reference", "snapshots"]
SLOW = pytest.mark.slow


def machine(**about: Any) -> Machine:
    gpu = Level("gpu", workers="streams", memory=(MemorySpace("gpu", at="gpu:*"),), **about)
    host = Level("node", memory=(MemorySpace("host"),))
    return Machine("stand-in", (host, gpu), fingerprint=fingerprint())


def on_gpu(driver: Any, **options: Any) -> demitasse.Runtime:
    return demitasse.compose(machine(), PLUGINS, {"gpu": {"driver": driver, **options}})


def on_cpu(plugin: str) -> demitasse.Runtime:
    names = ["caffe", "training", "datasets", plugin, "snapshots"]
    return demitasse.compose(Machine("host", (Level("node"),), fingerprint=fingerprint()), names)


def losses(trainer: Any, iterations: int) -> list[float]:
    return [trainer.step().loss for _ in range(iterations)]


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's solver, with small batches: with 64, a stand-in takes four times as long."""
    folder, net = tmp_path_factory.mktemp("digits"), "digits_train_test.prototxt"
    text = (EXAMPLE.parent / net).read_text()
    for size, smaller in ((64, BATCH), (359, 4 * BATCH)):
        assert f"batch_size: {size} " in text
        text = text.replace(f"batch_size: {size} ", f"batch_size: {smaller} ")
    (folder / net).write_text(text)
    path = folder / EXAMPLE.name
    path.write_text(EXAMPLE.read_text())
    return path


@pytest.fixture(scope="module")
def reference(solver: Path) -> list[float]:
    """Return the losses of the same training with the reference kernels."""
    with on_cpu("reference") as runtime:
        return losses(runtime.trainer(solver), 4)


@pytest.fixture
def gpu() -> Iterator[demitasse.Runtime]:
    """A device whose streams are threads, so that a missing wait is found."""
    with on_gpu(ThreadedDriver) as runtime:
        yield runtime


@pytest.mark.parametrize("driver", [EmulatedDriver, ThreadedDriver])
def test_losses_agree_with_the_reference_kernels(
    solver: Path, driver: Any, reference: list[float]
) -> None:
    with on_gpu(driver) as runtime:
        trainer = runtime.trainer(solver)
        assert np.allclose(losses(trainer, 4), reference, rtol=1e-5)
        (worker,) = trainer._workers
        assert {entry.plugin for entry in worker.plan.entries} == {"gpu"}


def test_images_of_their_own_sizes_are_learned_from_as_on_a_host(
    gpu: demitasse.Runtime, tmp_path: Path
) -> None:
    """Each size has a plan, and a graph on the device. Three of six images have a size that came
    before."""
    random, lines = np.random.default_rng(3), []
    for number, size in enumerate([(9, 12), (14, 8), (9, 12), (11, 11), (14, 8), (9, 12)]):
        cv2.imwrite(str(tmp_path / f"{number}.png"), random.integers(0, 256, (*size, 3), np.uint8))
        lines.append(f"{tmp_path}/{number}.png {number % 2}\n")
    (tmp_path / "list.txt").write_text("".join(lines))
    (tmp_path / "net.prototxt").write_text("""
        layer { name: "data" type: "ImageData" top: "data" top: "label"
          transform_param { scale: 0.01 mirror: true }
          image_data_param { source: "list.txt" batch_size: 1 } }
        layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
          convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
        layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
        layer { name: "mean" type: "Pooling" bottom: "conv" top: "mean"
          pooling_param { pool: AVE global_pooling: true } }
        layer { name: "ip" type: "InnerProduct" bottom: "mean" top: "ip"
          inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
    """)
    path = tmp_path / "solver.prototxt"
    path.write_text(
        'net: "net.prototxt" base_lr: 0.1 momentum: 0.9 lr_policy: "fixed" iter_size: 2 random_seed: 7 '
        "test_iter: 6 test_interval: 99"
    )
    found = []
    for runtime in (gpu, on_cpu("reference")):
        with runtime, runtime.trainer(path) as trainer:
            found.append([*losses(trainer, 6), trainer.test()["loss"], *losses(trainer, 2)])
    np.testing.assert_allclose(*found, rtol=2e-5)


@pytest.mark.parametrize("scheme", ["cgdp", "typical"])
def test_two_devices_train_as_one(solver: Path, scheme: str, reference: list[float]) -> None:
    sync = SyncSpec("cgdp", {"scheme": scheme})
    two = machine(count=2, sync=sync)
    with demitasse.compose(two, [*PLUGINS, "cgdp"], {"gpu": {"driver": ThreadedDriver}}) as runtime:
        assert np.allclose(losses(runtime.trainer(solver), 4), reference, rtol=1e-5)


def test_without_graphs_a_step_gives_the_same_bits(solver: Path, gpu: demitasse.Runtime) -> None:
    trainer = gpu.trainer(solver)
    graphs = losses(trainer, 4)
    with on_gpu(EmulatedDriver, graphs=False) as runtime:
        assert losses(runtime.trainer(solver), 4) == graphs


def test_copies_of_parameters_in_16_bits_are_made_first_by_one_launch_to_the_same_bits(
    solver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries read such copies; here they are replaced by stand-ins."""

    def offers(request: Request, options: Any) -> list[Candidate]:
        if request.operation.family == "convolution":
            return convolutions.candidates(request, 2**20)
        return products.candidates(request) if request.operation.family == "inner product" else []

    monkeypatch.setattr(libraries, "library_candidates", offers)
    for module in (convolutions, cublaslt):  # otherwise other ways may be chosen
        monkeypatch.setattr(module, "quickest", lambda device, ways: 0)
    found = []
    for most in (worker.TOGETHER, 0):
        monkeypatch.setattr(worker, "TOGETHER", most)
        with on_gpu(EmulatedDriver, graphs=False, remember=False) as runtime:
            device: Any = runtime.allocator("gpu:0").device  # type: ignore[attr-defined]
            device.opened |= {"cudnn": cudnn.Cudnn(device, StandIn())}
            device.opened |= {"cublasLt": cublaslt.CublasLt(device, StandInBlas())}
            trainer = runtime.trainer(solver, precision="bf16")
            first = losses(trainer, 1)
            device.driver.launches.clear()
            first += losses(trainer, 1)
            launches, (training,) = dict(device.driver.launches), trainer._workers
            words = [entry.operation for entry in training.plan.entries]
            found.append((first, launches, words, training.plan.arena_bytes))
    (ours, together, words, arena), (theirs, apart, others, least) = found
    assert ours == theirs
    copies = next(number for number, word in enumerate(words) if word != "reorder")
    assert copies == 8  # filters and biases of four layers
    assert others[0] != "reorder" and sorted(words) == sorted(others)
    assert (together.pop("convert_arrays"), apart.pop("convert_arrays")) == (1, 4)
    assert together == apart
    assert arena <= 1.01 * least


def test_scores_and_parameters_are_those_of_the_host(solver: Path, gpu: demitasse.Runtime) -> None:
    trainer = gpu.trainer(solver)
    losses(trainer, 2)
    with on_cpu("cpu") as runtime:
        other = runtime.trainer(solver)
        losses(other, 2)
        mine, theirs = trainer.net.params, other.net.params
        assert mine.keys() == theirs.keys()
        for layer in mine:
            for a, b in zip(mine[layer], theirs[layer], strict=True):
                assert np.allclose(a, b, rtol=1e-4, atol=1e-6)
        ours, expected = trainer.test(), other.test()
        assert ours.keys() == expected.keys()
        for name, value in expected.items():
            assert np.allclose(ours[name], value, rtol=1e-4)


def test_a_training_goes_on_from_its_snapshot_as_if_it_had_not_stopped(
    solver: Path, gpu: demitasse.Runtime, tmp_path: Path
) -> None:
    first = gpu.trainer(solver)
    losses(first, 2)
    path = first.snapshot(tmp_path / "digits")
    expected = losses(first, 2)
    with on_gpu(EmulatedDriver) as runtime:
        assert losses(runtime.trainer(solver, resume=path), 2) == expected


def test_a_snapshot_of_a_gpu_goes_on_on_the_host(solver: Path, tmp_path: Path) -> None:
    with on_gpu(EmulatedDriver) as runtime:
        trainer = runtime.trainer(solver)
        losses(trainer, 2)
        path = trainer.snapshot(tmp_path / "digits")
        expected = losses(trainer, 2)
    with on_cpu("cpu") as runtime:
        assert np.allclose(losses(runtime.trainer(solver, resume=path), 2), expected, rtol=1e-4)


def test_half_precision_trains_close_to_single(
    solver: Path, gpu: demitasse.Runtime, reference: list[float]
) -> None:
    trainer = gpu.trainer(solver, precision="bf16")
    assert np.allclose(losses(trainer, 4), reference, rtol=2e-2)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("driver", [EmulatedDriver, ThreadedDriver])
def test_what_it_has_no_kernel_for_is_computed_by_the_hosts_on_copies(
    solver: Path, driver: Any, precision: str, reference: list[float], tmp_path: Path
) -> None:
    """Axes are swapped and swapped back between the layers for digits: two words of plugin onnx."""
    text = (solver.parent / "digits_train_test.prototxt").read_text()
    before, after = text.split('layer {\n  name: "conv2"')
    for name, bottom in (("there", "pool1"), ("back", "there")):
        order = "order: 2 order: 0 order: 3 order: 1" if name == "there" else ORDER_BACK
        before += f'layer {{ name: "{name}" type: "Permute" bottom: "{bottom}" top: "{name}" '
        before += f"permute_param {{ {order} }} }}\n"
    after = after.replace('bottom: "pool1"', 'bottom: "back"', 1)
    (tmp_path / "digits_train_test.prototxt").write_text(f'{before}layer {{\n  name: "conv2"{after}')
    (tmp_path / "solver.prototxt").write_text(solver.read_text())
    options = {"gpu": {"driver": driver}}
    with demitasse.compose(machine(), [*PLUGINS, "onnx"], options) as runtime:
        trainer = runtime.trainer(tmp_path / "solver.prototxt", precision=precision)
        found = losses(trainer, 4)
        elsewhere = {e.layer for e in trainer.plan.entries if e.kernel.endswith("on copies in host")}
    assert elsewhere == {"there", "back"}
    assert np.allclose(found, reference, rtol=2e-2 if precision == "bf16" else 1e-5)


def test_a_net_runs_forward_with_arrays_of_the_host(solver: Path, gpu: demitasse.Runtime) -> None:
    path = solver.parent / "digits_train_test.prototxt"
    net = gpu.net(path)
    with on_cpu("reference") as runtime:
        other = runtime.net(path)
        for name, value in other.forward().items():
            assert np.allclose(net.forward()[name], value, rtol=1e-4, atol=1e-6)
            break


def test_memory_is_given_back_when_a_runtime_is_closed(solver: Path) -> None:
    drivers: list[EmulatedDriver] = []

    def make(number: int) -> EmulatedDriver:
        drivers.append(EmulatedDriver(number))
        return drivers[-1]

    with demitasse.compose(machine(), PLUGINS, {"gpu": {"driver": make}}) as runtime:
        trainer = runtime.trainer(solver)
        losses(trainer, 1)
        pool = runtime.allocator("gpu:0").device.pool
        assert pool.statistics.used > 0
        trainer.close()
        del trainer
    gc.collect()
    assert pool.statistics.used == 0


SOLVERS = ["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"]


@pytest.mark.parametrize(
    ("type_", "graphs"),
    [
        pytest.param(name, graphs, marks=() if name == "SGD" or graphs == (number % 2 == 0) else SLOW)
        for number, name in enumerate(SOLVERS)
        for graphs in (True, False)
    ],
)
def test_a_loss_that_is_no_number_reaches_no_parameter(solver: Path, type_: str, graphs: bool) -> None:
    """In the fast tests the first solver runs with and without graphs, and the others alternate; the
    slow tests have the rest."""
    asked = {"type": type_, "momentum": 0.9 if type_ in ("SGD", "Nesterov", "AdaDelta", "Adam") else 0.0}
    asked |= {"rms_decay": 0.9} if type_ == "RMSProp" else {}
    with on_gpu(ThreadedDriver, graphs=graphs) as runtime:
        trainer = runtime.trainer(solver, overrides={**asked, "delta": 1e-6})
        trainer.step(3)
        (worker,) = trainer._workers
        good = trainer.net.params["ip2"][1].copy()
        flat = worker.flat.parameters
        bias = next(slot for slot in worker.plan.slots if slot.owners[0] == ("ip2", 1))
        flat[bias.span.start : bias.span.start + 1] = np.nan
        before = np.array(flat), {name: np.array(state) for name, state in worker.flat.state.items()}
        with pytest.raises(demitasse.NumericsError, match="'ip2'"):
            trainer.step()
        assert np.array_equal(np.array(flat), before[0], equal_nan=True)
        for name, state in worker.flat.state.items():
            assert np.array_equal(np.array(state), before[1][name])
        flat[bias.span.start : bias.span.start + 1] = good[:1]
        after = trainer.step(2).loss
    assert np.isfinite(after) and trainer.iteration == 5


@pytest.mark.parametrize("graphs", [True, False])
def test_a_label_that_is_no_class_is_named_with_its_sample(solver: Path, graphs: bool) -> None:
    draw = np.random.default_rng(5)
    data = draw.normal(size=(4 * BATCH, 1, 8, 8)).astype(np.float32)
    label = draw.integers(0, 10, size=4 * BATCH).astype(np.float32)
    label[2 * BATCH + 7] = 12
    with on_gpu(ThreadedDriver, graphs=graphs) as runtime:
        trainer = runtime.trainer(solver, data={"train": {"data": data, "label": label}})
        trainer.step(2)
        (worker,) = trainer._workers
        before = np.array(worker.flat.parameters)
        told = r"label 12 of sample 7 of the batch is not a class .*; the sample is arrays: number 39\b"
        with pytest.raises(demitasse.DataError, match=told):
            trainer.step()
        assert np.array_equal(np.array(worker.flat.parameters), before)


class Read(ThreadedDriver):
    """Keeps the bytes of each copy within the device and from it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.within: list[int] = []
        self.told: list[int] = []

    def copy(self, target: int, source: int, nbytes: int, kind: str, stream: int) -> None:
        super().copy(target, source, nbytes, kind, stream)
        if kind != "h2d":
            (self.told if kind == "d2h" else self.within).append(nbytes)


def normalised(folder: Path) -> Path:
    """Return a solver for two convolutions with normalisations, the second of which does not learn."""
    layers = [
        f"""
        layer {{ name: "conv{i}" type: "Convolution" bottom: "{below}" top: "conv{i}"
          param {{ lr_mult: {1 - i} }} param {{ lr_mult: {1 - i} }}
          convolution_param {{ num_output: 6 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "bn{i}" type: "BatchNorm" bottom: "conv{i}" top: "conv{i}" }}"""
        for i, below in enumerate(["data", "conv0"])
    ]
    (folder / "net.prototxt").write_text(f"""
        layer {{ name: "data" type: "Data" top: "data" top: "label"
          data_param {{ source: "given" batch_size: 4 }} }}
        {"".join(layers)}
        layer {{ name: "ip" type: "InnerProduct" bottom: "conv1" top: "ip"
          inner_product_param {{ num_output: 10 weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
    """)
    path = folder / "solver.prototxt"
    path.write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" random_seed: 7')
    return path


def test_running_statistics_are_kept_on_the_device_and_come_back(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    data = draw.normal(size=(16, 3, 8, 8)).astype(np.float32)
    data[12:] = np.nan
    samples = {"train": {"data": data, "label": np.zeros(16, np.float32)}}
    made: list[Read] = []

    def make(number: int) -> Read:
        made.append(Read(number))
        return made[-1]

    with on_gpu(make) as runtime:
        trainer = runtime.trainer(normalised(tmp_path), data=samples)
        losses(trainer, 2)
        made[0].told.clear()
        made[0].within.clear()
        losses(trainer, 1)
        # Means, variances and what both are divided by. The filters between them are there too, and
        # stay.
        assert made[0].told == [] and made[0].within.count(3 * 64) == 2
        before = {name: [array.copy() for array in trainer.net.params[name]] for name in ("bn0", "bn1")}
        assert all(np.any(array) for arrays in before.values() for array in arrays)
        with pytest.raises(demitasse.NumericsError, match="iteration 3"):
            trainer.step()
        for name, arrays in before.items():
            for one, other in zip(arrays, trainer.net.params[name], strict=True):
                assert np.array_equal(one, other), name


class Watched(ThreadedDriver):
    """Records which copies to the device were requested. Whoever waits for the default stream also waits
    for as many batches as there must be by then."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.batches: list[int] = []
        self.expected = 0

    def copy(self, target: int, source: int, nbytes: int, kind: str, stream: int) -> None:
        super().copy(target, source, nbytes, kind, stream)
        if kind == "h2d" and nbytes == IMAGES:
            self.batches.append(stream)

    def launch_graph(self, graph: int, stream: int) -> None:
        until = time.monotonic() + 20
        while len(self.batches) < self.expected and time.monotonic() < until:
            time.sleep(1e-3)
        super().launch_graph(graph, stream)


IMAGES = BATCH * 8 * 8
"""Bytes of one step's images of digits, as in the source."""


def test_samples_of_the_next_step_come_beside_this_one(solver: Path, reference: list[float]) -> None:
    made: list[Watched] = []

    def make(number: int) -> Watched:
        made.append(Watched(number))
        return made[-1]

    with on_gpu(make) as runtime:
        trainer = runtime.trainer(solver)
        found = losses(trainer, 2)
        (driver,), default = made, runtime.allocator("gpu:0").device.stream
        for step in (3, 4):  # a graph is launched, and continues once the next step's are there
            driver.expected = step + 1
            found.append(trainer.step().loss)
            assert len(driver.batches) == step + 1
        assert default not in driver.batches
    assert np.allclose(found, reference, rtol=1e-5)


class Failing:
    """A stream that at some point cannot be read."""

    def __init__(self, stream: Any, good: int) -> None:
        self.stream, self.good = stream, good

    def read(self, out: Any) -> None:
        if not self.good:
            raise demitasse.DataError("the disk is gone")
        self.good -= 1
        self.stream.read(out)

    def close(self) -> None:
        self.stream.close()


def test_samples_that_fail_ahead_fail_the_step_that_needs_them(
    solver: Path, reference: list[float]
) -> None:
    with on_gpu(ThreadedDriver) as runtime:
        trainer = runtime.trainer(solver)
        found = losses(trainer, 1)
        (worker,) = trainer._workers
        streams = worker.reading._streams
        streams[:] = [Failing(stream, 1) for stream in streams]
        found += losses(trainer, 2)
        with pytest.raises(demitasse.DataError, match="the disk is gone"):
            trainer.step()
        assert trainer.iteration == 3
        found += losses(trainer, 1)
    assert np.allclose(found, reference, rtol=1e-5)


def test_tests_and_looks_read_samples_of_their_own(solver: Path, reference: list[float]) -> None:
    with on_gpu(ThreadedDriver) as runtime, on_cpu("reference") as host:
        trainer, other = runtime.trainer(solver), host.trainer(solver)
        found = []
        for _ in range(4):
            found += losses(trainer, 1)
            other.step()
            mine, theirs = trainer.test(), other.test()
            assert mine.keys() == theirs.keys()
            trainer._workers[0].peek(0)
    assert np.allclose(found, reference, rtol=1e-5)
