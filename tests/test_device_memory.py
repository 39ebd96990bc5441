"""Training in memory that a host neither reads nor writes but through copies, on streams of its own.

Whoever in the runtime touches a device's memory as if it were a host's fails here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from made_up_device import (
    OVERRIDES,
    PLUGINS,
    SOLVER,
    Device,
    Engine,
    Line,
    Plain,
    lost,
    lost_still,
    machine,
    train,
)
from remote_memory import Giver, Remote, kernels_inside

import demitasse
from demitasse import (
    CompositionError,
    Level,
    Machine,
    MemorySpace,
    SyncSpec,
    compose,
    fingerprint,
    hookimpl,
)

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.mark.parametrize(("workers", "kind"), [(1, Remote), (2, Plain)])
def test_a_device_trains_tests_and_saves_as_a_host(
    workers: int, kind: type[Remote], tmp_path: Path
) -> None:
    device = Device(kind)
    hw = machine(workers)
    losses, scores, params = train([device, *PLUGINS], hw, tmp_path)
    host = Machine("host", (Level("machine"),), fingerprint=fingerprint())
    expected, expected_scores, expected_params = train(PLUGINS, host, tmp_path / "host")
    np.testing.assert_allclose(losses, expected, rtol=1e-10)
    assert scores == pytest.approx(expected_scores, rel=1e-10)
    for name, arrays in expected_params.items():
        for ours, theirs in zip(params[name], arrays, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    assert sorted(device.engines) == [f"device:{n}" for n in range(workers)]
    assert all(engine.copies for engine in device.engines.values()), "samples go through the engine"
    assert all(engine.closed == 1 for engine in device.engines.values())


def test_a_snapshot_of_a_device_goes_on_there(tmp_path: Path) -> None:
    whole, *_ = train([Device(), *PLUGINS], machine(1), tmp_path)
    with compose(machine(1), plugins=[Device(), *PLUGINS]) as runtime:
        resumed = runtime.trainer(
            SOLVER, overrides=OVERRIDES, precision="f64", resume=tmp_path / "kept_iter_3.demitasse"
        )
        again = resumed.step().loss
    with compose(machine(1), plugins=[Device(), *PLUGINS]) as runtime:
        trainer = runtime.trainer(SOLVER, overrides=OVERRIDES, precision="f64")
        losses = [trainer.step().loss for _ in range(4)]
    assert [*whole, again] == losses


def test_images_as_large_as_they_are_are_learned_from_as_on_a_host(tmp_path: Path) -> None:
    random, lines = np.random.default_rng(3), []
    for number, size in enumerate([(9, 12), (14, 8), (9, 12), (11, 11)]):
        cv2.imwrite(str(tmp_path / f"{number}.png"), random.integers(0, 256, (*size, 3), np.uint8))
        lines.append(f"{tmp_path}/{number}.png {number % 2}\n")
    (tmp_path / "list.txt").write_text("".join(lines))
    (tmp_path / "net.prototxt").write_text("""
        layer { name: "data" type: "ImageData" top: "data" top: "label"
          transform_param { scale: 0.01 mirror: true }
          image_data_param { source: "list.txt" batch_size: 1 shuffle: true } }
        layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
          convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } } }
        layer { name: "mean" type: "Pooling" bottom: "conv" top: "mean"
          pooling_param { pool: AVE global_pooling: true } }
        layer { name: "ip" type: "InnerProduct" bottom: "mean" top: "ip"
          inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
    """)
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.1 momentum: 0.9 lr_policy: "fixed" iter_size: 2 random_seed: 7 '
        "clip_gradients: 0.3 test_iter: 4 test_interval: 99"
    )

    def losses(plugins: list[Any], hw: Machine) -> list[float]:
        with (
            compose(hw, plugins=plugins) as runtime,
            runtime.trainer(tmp_path / "solver.prototxt", precision="f64") as trainer,
        ):
            return [*(trainer.step().loss for _ in range(6)), trainer.test()["loss"]]

    host = Machine("host", (Level("machine"),), fingerprint=fingerprint())
    device = losses([Device(Plain), *PLUGINS], machine(1))
    np.testing.assert_allclose(device, losses(PLUGINS, host), rtol=1e-10)


def test_clipping_measures_gradients_on_the_device(tmp_path: Path) -> None:
    clip = {"overrides": {"clip_gradients": 0.5}}
    host = Machine("host", (Level("machine"),), fingerprint=fingerprint())
    losses, *_ = train([Device(), *PLUGINS], machine(2), tmp_path, **clip)
    expected, *_ = train(PLUGINS, host, tmp_path / "host", **clip)
    unclipped, *_ = train(PLUGINS, host, tmp_path / "unclipped")
    np.testing.assert_allclose(losses, expected, rtol=1e-10)
    assert abs(losses[2] - unclipped[2]) > 1e-4


def test_an_interrupted_loss_is_explained_on_the_device(tmp_path: Path) -> None:
    with compose(machine(1), plugins=[Device(), *PLUGINS]) as runtime:
        trainer = runtime.trainer(SOLVER, overrides={**OVERRIDES, "base_lr": 1e30}, precision="f64")
        with pytest.raises(demitasse.NumericsError, match=r"no longer finite|not finite is"):
            trainer.step(4)


@pytest.mark.parametrize(("where", "workers"), [("copy", 1), ("record", 2), ("pinned", 1)])
def test_what_an_engine_raises_names_it_and_its_place(
    where: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine if where == "pinned" else Line, where, lost)
    monkeypatch.setattr(Engine, "close", lost_still)
    with (
        pytest.raises(demitasse.PluginError) as error,
        compose(machine(workers), plugins=[Device(), *PLUGINS]) as runtime,
    ):
        runtime.trainer(SOLVER, overrides=OVERRIDES).step()
    told = str(error.value)
    assert told.startswith("device:") and "raised OSError in " in told and "device lost" in told
    assert f"{Engine.__module__}" in told
    (note,) = error.value.__notes__
    assert note.startswith("closing it then raised PluginError: Engine of ")
    assert note.endswith(": raised OSError in close: it is lost still")


def test_a_net_names_the_device_that_its_forward_fails_in(monkeypatch: pytest.MonkeyPatch) -> None:
    with compose(machine(1), plugins=[Device(), *PLUGINS]) as runtime:
        net = runtime.net("examples/digits/digits_train_test.prototxt")
        monkeypatch.setattr(Line, "copy", lost)
        with pytest.raises(demitasse.PluginError, match=r"^device:0: Engine of .* in .*lost: device"):
            net.forward()


class Guard:
    """The sum of losses, which makes a rate negative that is not to be used."""

    def __init__(self, losses: Sequence[tuple[Remote, float]], rate: Remote) -> None:
        self.losses, self.rate, self.total = losses, rate, 0.0

    def work(self) -> None:
        self.total = sum(weight * float(loss.inside.sum()) for loss, weight in self.losses)
        if not np.isfinite(self.total):
            self.rate.inside[0] = -1

    def read(self) -> float:
        return self.total


class Guarding(Device):
    """A device of whose losses nobody waits for the sum in the middle of a step."""

    @hookimpl
    def allocator(self, space: str, options: Any) -> Giver | None:
        if (giver := super().allocator(space, options)) is not None:
            giver.guard = Guard  # type: ignore[attr-defined]
        return giver

    @hookimpl
    def kernels(self, request: demitasse.Request) -> list[demitasse.Candidate]:
        found = kernels_inside(request)
        return [self._minding(each) if request.operation.family == "update" else each for each in found]

    @staticmethod
    def _minding(candidate: demitasse.Candidate) -> demitasse.Candidate:
        def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Any:
            update, rate = candidate.bind(inputs, outputs, workspace), inputs[3].inside
            return lambda: update() if rate[0] >= 0 else None

        return replace(candidate, bind=bind)


def test_a_guarded_step_waits_at_its_end_and_a_bad_one_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with compose(machine(1), plugins=[Device(), *PLUGINS]) as runtime:
        expected = runtime.trainer(SOLVER, overrides=OVERRIDES).step().loss
    with compose(machine(1), plugins=[Guarding(), *PLUGINS]) as runtime:
        trainer = runtime.trainer(SOLVER, overrides={**OVERRIDES, "base_lr": 1e30})
        waited: list[Remote] = []
        monkeypatch.setattr(Remote, "sum", lambda self: waited.append(self) or float(self.inside.sum()))
        assert trainer.step().loss == expected and not waited

        def params() -> list[np.ndarray]:
            return [np.array(array) for row in trainer.net.params.values() for array in row]

        before = params()
        with pytest.raises(demitasse.NumericsError, match="the loss is"):
            trainer.step()
        assert all(map(np.array_equal, params(), before))


def test_a_net_on_a_device_says_that_it_cannot_be_walked() -> None:
    with compose(machine(1), plugins=[Device(Plain), *PLUGINS]) as runtime:
        net = runtime.net("examples/digits/digits_train_test.prototxt", retain="all")
        with pytest.raises(demitasse.ModelError) as error:
            net.walk  # noqa: B018  to ask is enough
    told = str(error.value)
    assert "running a net layer by layer needs host memory" in told
    assert "level 'accelerator' has it in 'device:0'" in told


def test_a_tuner_tries_kernels_in_memory_of_the_device() -> None:
    given: list[demitasse.Allocator] = []

    class Tries:
        manifest = {"name": "tries", "api": ">=0.1,<0.2", "roles": {"tuner": {"spaces": ["device"]}}}

        @hookimpl
        def tuner(self, allocator: demitasse.Allocator) -> Any:
            given.append(allocator)
            return SimpleNamespace(pick=lambda *offer: (0, "the first"), choices=dict, prefer=len)

    with compose(machine(1), plugins=[Device(), Tries(), *PLUGINS]) as runtime:
        runtime.trainer(SOLVER, overrides=OVERRIDES)
    assert [allocator.space for allocator in given] == ["device:0"]


def test_devices_are_numbered_over_all_sockets() -> None:
    socket = Level("socket", 2, workers="streams")
    gpu = replace(machine(2).levels[0], parent="socket", count=3)
    nested = Machine("sockets", (socket, gpu), fingerprint=fingerprint())
    assert [place.space for place in demitasse.arrange(nested, "float32")] == [
        f"device:{number}" for number in range(6)
    ]


def test_streams_that_nobody_serves_are_refused() -> None:
    memory = (MemorySpace("host", at="host"),)
    hw = Machine("m", (Level("gpu", workers="streams", memory=memory),), fingerprint=fingerprint())
    with compose(hw, plugins=PLUGINS) as runtime, pytest.raises(CompositionError) as error:
        runtime.trainer(SOLVER, overrides=OVERRIDES)
    assert "level 'gpu': no composed plugin has streams in 'host'; compose one" in str(error.value)


class Spaced(Device):
    """Its manifest names what a description calls ``at``, and not the ``space``."""

    manifest = {
        **{"name": "spaced", "api": ">=0.1,<0.2"},
        "roles": {
            "allocator": {},
            "kernels": {"spaces": ["device"]},
            "stream_engine": {"spaces": ["device:*", "board"]},
        },
    }


def test_streams_of_a_plugin_that_is_composed_and_not_asked_are_told(tmp_path: Path) -> None:
    memory = (MemorySpace("host", at="host"),)
    hw = Machine("m", (Level("gpu", workers="streams", memory=memory),), fingerprint=fingerprint())
    with compose(hw, [Spaced(), *PLUGINS]) as runtime, pytest.raises(CompositionError) as error:
        runtime.trainer(SOLVER, overrides=OVERRIDES)
    assert str(error.value) == (
        "machine 'm': level 'gpu': no composed plugin has streams in 'host', a memory of space 'host' "
        "(composed, but for others: spaced, whose 'spaces' are device:*, board)"
    )


def test_an_accelerator_that_is_not_there_has_the_descriptions_line(tmp_path: Path) -> None:
    path = tmp_path / "hw.toml"
    path.write_text("""schema = 1
name = "three"
fingerprint = "any"
[[level]]
name = "accelerator"
workers = "streams"
memory = [{ space = "npu", at = "npu:7" }]
""")
    hw = compose(path, plugins=[Device(), *PLUGINS])
    with hw as runtime, pytest.raises(CompositionError) as error:
        runtime.trainer(SOLVER, overrides=OVERRIDES)
    nobody = f"{path}:7: level 'accelerator': no composed plugin has streams in 'npu:7'"
    assert str(error.value) == f"{nobody} (asked, but has none of that name here: device)"


def test_accelerators_that_pass_their_gradients_on_have_arrays_that_are_no_more_than_asked(
    tmp_path: Path,
) -> None:
    hw = machine(2)
    hw = replace(hw, levels=(replace(hw.levels[0], sync=SyncSpec("cgdp", {"scheme": "typical"})),))
    found: dict[str, float] = {}
    for name, there in (("two", hw), ("one", machine(1))):
        with compose(there, plugins=[Device(Plain), "cgdp", *PLUGINS]) as runtime:
            trainer = runtime.trainer(SOLVER, overrides=OVERRIDES, precision="f64")
            found[name] = [trainer.step().loss for _ in range(2)][-1]
    assert found["two"] == pytest.approx(found["one"], rel=1e-10)


@pytest.mark.parametrize(
    ("plugin", "options"),
    [("numa", {}), ("parameter_server", {}), ("parameter_server", {"model": "asp"})],
)
def test_a_synchronisation_that_needs_the_hosts_memory_says_so(
    plugin: str, options: dict[str, Any], tmp_path: Path
) -> None:
    hw = machine(2)
    hw = replace(hw, levels=(replace(hw.levels[0], sync=SyncSpec(plugin, options)),))
    with pytest.raises(CompositionError) as error:
        train([Device(), *PLUGINS, plugin], hw, tmp_path)
    told = f"level 'accelerator': plugin {plugin!r} sums gradients in host memory"
    assert told in str(error.value) and "these are in 'device:" in str(error.value)
