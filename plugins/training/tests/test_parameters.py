"""Parameters and state by layer: their order, what is loaded and what is kept, and how states in other
formats are matched with their parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import ModelError, PluginError, RandomStream, ShapeError, SnapshotError, Weights
from demitasse_training import parameters

Train = Callable[..., Any]


def saved(trainer: Any, tmp_path: Path) -> Weights:
    """Return what a snapshot of a trainer contains."""
    return trainer.runtime.read(trainer.snapshot(tmp_path / "toy")).weights()  # type: ignore[no-any-return]


def frozen(toy: ModuleType) -> Any:
    """The classifier with ``first`` not trained; its ``third`` shares the weights of ``second``."""
    layers = [
        toy.layer(
            "first", each.type, " ".join(each.bottoms), " ".join(each.tops), **each.parameters, rate=0.0
        )
        if each.name == "first"
        else each
        for each in toy.classifier().layers
    ]
    return toy.net(*layers)


def sharing(toy: ModuleType) -> Any:
    """Two layers that share their weights."""
    return toy.net(
        toy.layer("samples", "Samples", "", "data label", batch=5),
        toy.layer("below", "InnerProduct", "data", "low", outputs=36),
        toy.layer("zeta", "InnerProduct", "low", "middle", outputs=36, share="w"),
        toy.layer("alpha", "InnerProduct", "middle", "high", outputs=36, share="w"),
        toy.layer("scores", "InnerProduct", "high", "scores", outputs=3),
        toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
    )


def test_layers_are_in_the_order_of_the_net(train: Train, tmp_path: Path) -> None:
    trainer = train()
    order = ["first", "second", "third", "scores"]
    assert list(trainer.net.params) == order
    weights = saved(trainer, tmp_path)
    assert list(weights.parameters) == order
    assert all(list(layers) == order for layers in weights.state.values())


@pytest.mark.parametrize("made", [np.ones(7), np.float64(1), np.ones((5, 2)), np.ones(20)])
def test_a_filler_that_makes_another_shape_names_its_layer(
    toy: ModuleType, train: Train, monkeypatch: pytest.MonkeyPatch, made: Any
) -> None:
    monkeypatch.setattr(RandomStream, "uniform", lambda *_: made)
    with pytest.raises(PluginError, match=r"layer 'first': the filler of its parameter 1 made \("):
        train()


def test_state_lies_beside_parameters_and_is_empty_where_nothing_is_trained(
    toy: ModuleType, train: Train, tmp_path: Path
) -> None:
    trainer = train(frozen(toy))
    trainer.step(1)
    weights = saved(trainer, tmp_path)
    (history,) = weights.state.values()
    for layer, arrays in weights.parameters.items():
        kept = layer in ("second", "scores")
        expected = [a.shape if kept else (0,) for a in arrays]
        assert [a.shape for a in history[layer]] == expected


def test_the_state_of_a_shared_parameter_is_its_first_layers(
    toy: ModuleType, train: Train, copied: Any, differ: Any, tmp_path: Path
) -> None:
    trainer = train(sharing(toy))
    trainer.step(2)
    path = trainer.snapshot(tmp_path / "toy")
    (history,) = trainer.runtime.read(path).weights().state.values()
    assert [a.shape for a in history["zeta"]] == [(36, 36), (36,)]
    assert [a.shape for a in history["alpha"]] == [(0,), (0,)]
    trainer.step(2)
    again = train(sharing(toy), resume=path)
    again.step(2)
    assert differ(copied(again.net), copied(trainer.net)) == 0.0


def plain(weights: Weights) -> dict[str, Any]:
    """Return the state as a list in the net's order: shared ones once, zeros for what is not trained."""
    (name,) = weights.state
    arrays = [
        state if state.size else np.zeros_like(parameter)
        for layer, layers in weights.parameters.items()
        if layer != "third"
        for parameter, state in zip(layers, weights.state[name][layer], strict=True)
    ]
    return {name: {"": arrays}}


def of_trained(weights: Weights) -> dict[str, Any]:
    """Return the state as in older snapshots: without what is not trained."""
    return {
        name: {k: kept for k, v in layers.items() if (kept := [a for a in v if a.size])}
        for name, layers in weights.state.items()
    }


@pytest.mark.parametrize("form", [plain, of_trained])
def test_states_of_other_forms_go_on_to_the_same_bits(
    toy: ModuleType, train: Train, copied: Any, differ: Any, tmp_path: Path, form: Any
) -> None:
    trainer = train(frozen(toy))
    trainer.step(2)
    weights = saved(trainer, tmp_path)
    weights.state = form(weights)
    path = trainer.runtime.write(tmp_path / "other.demitasse", weights)
    trainer.step(3)
    again = train(frozen(toy), resume=path)
    again.step(3)
    assert differ(copied(again.net), copied(trainer.net)) == 0.0


def test_a_list_of_another_length_or_order_is_of_another_net(train: Train, tmp_path: Path) -> None:
    trainer = train()
    weights = saved(trainer, tmp_path)
    (name,) = weights.state
    arrays = plain(weights)[name][""]
    for wrong, message in (
        (arrays[1:], r"belongs to another net: it has 5 arrays, this net 6 parameters"),
        (arrays[::-1], r"belongs to another net: layer 'first': .* there, .* here; layer 'sco"),
    ):
        weights.state = {name: {"": wrong}}
        path = trainer.runtime.write(tmp_path / "wrong.demitasse", weights)
        with pytest.raises(SnapshotError, match=message):
            train(resume=path)


# Weights that fit only in part.


def load(trainer: Any, arrays: dict[str, list[np.ndarray]], **options: Any) -> parameters.Loaded:
    worker = trainer._workers[0]
    return parameters.load(worker.graph, worker.plan, worker.flat.parameters, arrays, "file", **options)


def test_what_is_loaded_missing_and_unused_is_told(train: Train) -> None:
    trainer = train()
    shapes = {k: [a.shape for a in v] for k, v in trainer.net.params.items()}
    arrays = {"first": [np.full(s, 2.0) for s in shapes["first"]], "other": [np.ones(3)]}
    before = trainer.net.params["second"][0].copy()
    found = load(trainer, arrays)
    assert found.loaded == ("first",)
    assert found.missing == ("scores", "second")
    assert (found.unfit, found.unused) == ((), ("other",))
    assert (trainer.net.params["first"][0] == 2).all()
    assert np.array_equal(trainer.net.params["second"][0], before)


def test_numbers_that_are_not_finite_are_told_with_their_layers(
    train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = train()
    arrays = {k: [a.copy() for a in v] for k, v in trainer.net.params.items()}
    assert load(trainer, arrays).not_finite == ()
    assert not caplog.records
    arrays["first"][0].flat[3] = np.nan
    arrays["scores"][1][-1] = -np.inf
    found = load(trainer, arrays)
    assert sorted(found.not_finite) == ["first", "scores"]
    (line,) = caplog.messages
    assert line.startswith("file: parameters that are not finite in layer '")
    assert "'first'" in line
    assert "'scores'" in line
    assert "not finite: " in str(found)


def test_numbers_beyond_the_element_type_are_not_finite(train: Train) -> None:
    trainer = train(precision="f32")
    arrays = {k: [a.astype(np.float64) for a in v] for k, v in trainer.net.params.items()}
    arrays["first"][0].flat[3] = 1e39
    assert load(trainer, arrays).not_finite == ("first",)


def test_layers_of_other_shapes_are_left_only_when_asked(train: Train) -> None:
    trainer = train()
    arrays = {k: [np.full(a.shape, 2.0) for a in v] for k, v in trainer.net.params.items()}
    arrays["second"][1] = np.ones(77)
    before = [a.copy() for a in trainer.net.params["second"]]
    with pytest.raises(
        ShapeError, match=r"file: layer 'second', parameter 1: the file's shape is \(77,"
    ):
        load(trainer, arrays)
    assert not (trainer.net.params["first"][0] == 2).all(), "nothing is copied before all is checked"
    found = load(trainer, arrays, partial=True)
    assert found.unfit == ("second",)
    assert set(found.loaded) == {"first", "scores"}
    for array, kept in zip(trainer.net.params["second"], before, strict=True):
        assert np.array_equal(array, kept)


def test_a_layer_of_more_parameters_in_the_file_does_not_fit(train: Train) -> None:
    trainer = train()
    arrays = {k: [a.copy() for a in v] for k, v in trainer.net.params.items()}
    arrays["second"].append(np.ones(3))
    with pytest.raises(
        ShapeError, match=r"file: layer 'second' has 3 parameters in the file, but 2 in the net"
    ):
        load(trainer, arrays)
    assert load(trainer, arrays, partial=True).unfit == ("second",)


def test_the_first_layer_that_does_not_fit_is_told_in_full_and_the_others_by_name(train: Train) -> None:
    trainer = train()
    arrays = {k: [np.ones((*a.shape, 2)) for a in v] for k, v in trainer.net.params.items()}
    with pytest.raises(ShapeError) as caught:
        load(trainer, arrays)
    message = str(caught.value)
    assert message.startswith("file: layer 'first', parameter 0: the file's shape is ")
    assert "others do not fit either: second, scores; rename a layer to start it afresh" in message


def test_nothing_that_fits_is_an_error_even_so(train: Train) -> None:
    with pytest.raises(
        ModelError, match=r"none of its layers \(first\) is in the net of fitting shapes"
    ):
        load(train(), {"first": [np.ones(1000)]}, partial=True)
