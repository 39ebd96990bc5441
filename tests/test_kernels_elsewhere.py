"""A device whose plugin has few kernels: a host's compute the rest, on copies, as its manifest says."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated_files import annotated_database, rectangles
from detection_texts import LEARNT, NET
from made_up_device import PLUGINS, Device, Plain, machine, train
from remote_memory import Remote, kernels_inside

import demitasse
import demitasse_contracts.elsewhere
from demitasse import (
    PLAIN,
    Candidate,
    DataError,
    Layout,
    Level,
    Machine,
    PlanError,
    Request,
    TensorSpec,
    arrange,
    compose,
    fingerprint,
    hookimpl,
)

pytestmark = pytest.mark.usefixtures("threads_end")


class Sparse(Device):
    """The device, without the kernels of some words, or with those of few."""

    def __init__(
        self,
        *,
        lacks: Collection[str] = (),
        has: Collection[str] = (),
        otherwise: Any = "host",
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self._lacks, self._has, self.asked = lacks, has, set[str]()
        facts = {"priority": 90, "spaces": ["device"]} | ({"otherwise": otherwise} if otherwise else {})
        self.manifest = {**Device.manifest, "roles": {**Device.manifest["roles"], "kernels": facts}}

    @hookimpl
    def kernels(self, request: demitasse.Request) -> list[Candidate]:
        name = request.operation.name
        self.asked.add(name)
        assert request.place.space == "device"
        if name in self._lacks or (self._has and name not in self._has):
            return []
        return kernels_inside(request)


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was told before."""
    monkeypatch.setattr(demitasse_contracts.elsewhere, "_told", set())


def on_copies(trainer: Any) -> set[str]:
    """The operations that are computed so."""
    return {e.operation for e in trainer.plan.entries if e.kernel.endswith(", on copies in host")}


LACKS = (
    "convolution",
    "convolution_backward_weights",
    "softmax_loss",
    "momentum_update",
    "relu_backward",
)


@pytest.mark.parametrize("kind", [Remote, Plain])
@pytest.mark.parametrize("given", [{"lacks": LACKS}, {"has": ("relu",)}], ids=["lacks", "has"])
def test_it_trains_tests_and_saves_as_a_host(kind: type[Remote], given: Any, tmp_path: Path) -> None:
    """Forward, backward and the updates of parameters, which change what they are given."""
    host = Machine("host", (Level("machine"),), fingerprint=fingerprint())
    expected, expected_scores, expected_params = train(PLUGINS, host, tmp_path / "host")
    device = Sparse(kind=kind, **given)
    losses, scores, params = train([device, *PLUGINS], machine(1), tmp_path)
    assert losses == expected and scores == expected_scores
    for name, arrays in expected_params.items():
        for ours, theirs in zip(params[name], arrays, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert device.asked.issuperset(LACKS)


def test_who_computes_is_told_once_and_explained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        compose(machine(1), [Sparse(lacks=LACKS), *PLUGINS]) as runtime,
    ):
        for _ in range(2):
            trainer = runtime.trainer(Path("examples/digits/digits_solver.prototxt"))
            trainer.step()
        entries = {e.operation: e for e in trainer.plan.entries}
        assert on_copies(trainer) == set(LACKS) - {"momentum_update"}
    assert entries["convolution"].plugin == "reference"
    assert "not computed by device" in entries["convolution"].reason
    assert entries["inner_product"].plugin == "device"
    told = [record.getMessage() for record in caplog.records if "on copies" in record.getMessage()]
    assert len(told) == len(set(told)) == len(LACKS)
    who = "on copies in host, by plugin 'reference': no plugin computes it in device"
    assert f"convolution is computed {who}" in told


@pytest.mark.parametrize(("rate", "changes"), [(0.5, True), (-0.5, False), (0.0, False)])
def test_an_update_changes_nothing_for_the_rate_of_a_guard(rate: float, changes: bool) -> None:
    """Which an accelerator makes negative where the loss is no finite number."""
    with compose(machine(1), [Sparse(lacks=LACKS), *PLUGINS]) as runtime:
        (worker,) = arrange(runtime.machine, "float32")
        operation = runtime.vocabulary["momentum_update"]
        numbers = TensorSpec((4,), "float32"), TensorSpec((1,), "float64")
        inputs = (*numbers[:1] * 3, numbers[1], None)
        attributes = {**operation.attributes, "momentum": 0.0, "segments": ((0, 4, 1.0, 1.0),)}
        request = Request(operation, inputs, (), attributes, worker.place)
        plugin, candidate, _ = runtime.kernels(worker).choose(request, "solver")
        arrays = [Remote(np.full(4, value, np.float32)) for value in (1.0, 2.0, 0.0)]
        work = candidate.bind([*arrays, Remote(np.array([rate])), None], [], None)
        work()
    assert plugin == "reference"
    wanted = 1.0 - rate * 2 if changes else 1.0
    np.testing.assert_array_equal(np.asarray(arrays[0]), np.full(4, wanted, np.float32))


def test_without_the_word_of_its_manifest_nobody_else_is_asked() -> None:
    plugins = [Sparse(lacks=["convolution"], otherwise=""), *PLUGINS]
    with compose(machine(1), plugins) as runtime, pytest.raises(PlanError, match=r"asked: device\b"):
        runtime.trainer(Path("examples/digits/digits_solver.prototxt"))


def test_what_nobody_computes_names_all_that_were_asked() -> None:
    plugins = [Sparse(lacks=["convolution"], otherwise="moon"), *PLUGINS]
    with compose(machine(1), plugins) as runtime, pytest.raises(PlanError) as caught:
        runtime.trainer(Path("examples/digits/digits_solver.prototxt"))
    assert "no composed plugin computes convolution" in str(caught.value)
    plugins = [Sparse(otherwise=3), *PLUGINS]
    with pytest.raises(demitasse.PluginError, match=r"otherwise = 3 \(valid: a string\)"):
        compose(machine(1), plugins)


def test_kernels_in_layouts_of_their_own_are_passed_over(tmp_path: Path) -> None:
    """A copy has the logical order; who asks for another order, or another type, is not asked."""

    def kernels(request: demitasse.Request) -> list[Candidate]:
        def never(*given: Any) -> Any:
            raise AssertionError("its layouts are not plain")

        if request.place.space != "host" or request.operation.name != "relu":
            return []
        assert all(spec is None or spec.layout == PLAIN for spec in (*request.inputs, *request.outputs))
        odd = Layout("odd", order=(0, 2, 3, 1))
        return [Candidate("odd", never, (odd,), (odd,)), Candidate("half", never, (), (odd,))]

    toy = pytest.importorskip("toy")
    other = toy.plugin("other", roles={"kernels": {"priority": 99, "spaces": ["host"]}}, kernels=kernels)
    device = Sparse(lacks=["relu", "convolution_relu"])
    losses, *_ = train([other, device, *PLUGINS], machine(1), tmp_path)
    host = Machine("host", (Level("machine"),), fingerprint=fingerprint())
    assert losses == train(PLUGINS, host, tmp_path / "host")[0]


def test_a_net_of_ssds_trains_and_is_scored_on_a_device_that_knows_none_of_it(tmp_path: Path) -> None:
    """And what is wrong with its samples is told as on a host."""
    annotated_database(tmp_path / "train_lmdb", rectangles(40, 1))
    annotated_database(tmp_path / "test_lmdb", rectangles(20, 2))
    (tmp_path / "net.prototxt").write_text(NET.format(layers=LEARNT))
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" type: "Adam" base_lr: 0.003 momentum: 0.9 lr_policy: "fixed" max_iter: 9 '
        "test_iter: 2 test_interval: 9 snapshot_after_train: false random_seed: 1"
    )
    lacks = [
        *("multibox_loss", "multibox_loss_backward", "detections", "evaluate_detections"),
        *("permute", "permute_backward"),
    ]
    more = ["detection", "onnx"]
    results = []
    host = Machine("host", (Level("machine"),), fingerprint=fingerprint())
    for hw, plugins in ((host, [*PLUGINS, *more]), (machine(1), [Sparse(lacks=lacks), *PLUGINS, *more])):
        with compose(hw, plugins) as runtime:
            trainer = runtime.trainer(tmp_path / "solver.prototxt")
            results.append(([trainer.step().loss for _ in range(3)], trainer.test()))
            if hw is not host:
                words = {"permute", "permute_backward", "multibox_loss", "multibox_loss_backward"}
                assert on_copies(trainer) == words
    assert results[0] == results[1]
    wrong = [(pixels, [(7, *rest[1:]) for rest in objects]) for pixels, objects in rectangles(16, 3)]
    annotated_database(tmp_path / "wrong_lmdb", wrong)
    with compose(machine(1), [Sparse(lacks=lacks), *PLUGINS, *more]) as runtime:
        overrides = {"layer.data.data_param.source": str(tmp_path / "wrong_lmdb")}
        trainer = runtime.trainer(tmp_path / "solver.prototxt", overrides=overrides)
        with pytest.raises(DataError, match=r"layer 'loss' .* image \d+ and class 7"):
            trainer.step()


class ChannelsLast(Sparse):
    """The device, whose convolutions take and give channels last, and which lacks ``reorder``."""

    @hookimpl
    def kernels(self, request: demitasse.Request) -> list[Candidate]:
        found = super().kernels(request)
        if request.operation.name != "convolution":
            return found
        last, offered = Layout("NHWC", (0, 2, 3, 1)), found[0].bind

        def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Any:
            (x, w, b), (y,) = inputs, outputs
            turned, made = (
                Remote(np.zeros(spec.shape, np.float64))
                for spec in (request.inputs[0], request.outputs[0])
                if spec is not None
            )
            inner = offered([turned, w, b], [made], workspace)

            def work() -> None:
                turned.inside[...] = x.inside.transpose(0, 3, 1, 2)
                inner()
                y.inside[...] = made.inside.transpose(0, 2, 3, 1)

            return work

        return [Candidate("channels last", bind, (last, PLAIN, PLAIN), (last,), in_place=False)]


@pytest.mark.parametrize("channels", [5, 6], ids=["unlike", "a cube"])
def test_values_move_from_layouts_of_the_device_to_plain_ones(channels: int, tmp_path: Path) -> None:
    """On copies in these layouts; where all extents are alike, none that is wrong would be told."""
    net = tmp_path / "net.prototxt"
    net.write_text(f"""
        layer {{ name: "x" type: "Input" top: "x"
                 input_param {{ shape {{ dim: 2 dim: 8 dim: 8 dim: 8 }} }} }}
        layer {{ name: "conv" type: "Convolution" bottom: "x" top: "conv"
                 convolution_param {{ num_output: {channels} kernel_size: 3
                                      weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "scan" type: "Pooling" bottom: "conv" top: "pool"
                 pooling_param {{ pool: AVE kernel_size: 2 }} }}
    """)
    x = np.random.default_rng(1).normal(size=(2, 8, 8, 8))
    with compose(machine(1), [ChannelsLast(lacks=["reorder"]), *PLUGINS]) as runtime:
        planned = runtime.net(net, precision="f64")
        found = np.array(planned.forward(x=x)["pool"])
        weights, bias = (np.array(each) for each in planned.params["conv"])
        moved = [entry for entry in planned.plan.entries if entry.operation == "reorder"]
        assert len(moved) == 2 and all(each.kernel.endswith("on copies in host") for each in moved)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    y = np.einsum("nchwij,kcij->nkhw", windows, weights) + bias[:, None, None]
    expected = np.lib.stride_tricks.sliding_window_view(y, (2, 2), (2, 3)).mean((-2, -1))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


class Numbered(Sparse):
    """The device, whose memory is asked for by number alone."""

    @hookimpl
    def allocator(self, space: str, options: Any) -> Any:
        return super().allocator(space, options) if space == "device:0" else None


def test_a_step_is_simulated_in_the_memory_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are measured in what a description calls ``at``, which kernels know by another name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "net.prototxt").write_text("""
        layer { name: "d" type: "DummyData" top: "x" top: "t"
                dummy_data_param { shape { dim: 2 dim: 3 } shape { dim: 2 dim: 1 } } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
                inner_product_param { num_output: 1 } }
        layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }
    """)
    solver = tmp_path / "solver.prototxt"
    solver.write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1')
    with compose(machine(1), [Numbered(lacks=LACKS), *PLUGINS, "simulator"]) as runtime:
        (worker,) = arrange(runtime.machine, "float32")
        assert worker.space != worker.place.space
        done = runtime.simulate(solver)
    assert done.seconds > 0
    assert done.memory["runtime"] == 0, "a process's own memory is the host's"
