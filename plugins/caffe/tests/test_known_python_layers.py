"""Python layers whose modules many nets name: what they are replaced by, and when they are not
replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import Layer, ModelError

INPUT = "layer {{ name: '{0}' type: 'Input' top: '{0}' input_param {{ shape {{ {1} }} }} }}\n"
PYTHON = (
    "layer {{ name: 'l' type: 'Python' {} "
    "python_param {{ module: '{}' layer: '{}' param_str: \"{}\" }} }}"
)
PROPOSED = "bottom: 'scores' bottom: 'told' bottom: 'im_info' top: 'rois'"
PROPOSAL = ("rpn.proposal_layer", "ProposalLayer")
DROPOUT = ("spatial_dropout", "SpatialDropoutLayer")

Read = Callable[..., tuple[Layer, tuple[str, ...]]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a layer as defined in a phase, and the notes about it."""

    def read(text: str, phase: str = "test", plugins: tuple[str, ...] = ("-tuning",)) -> Any:
        path = tmp_path / "net.prototxt"
        path.write_text(text)
        with demitasse.compose(plugins=list(plugins)) as runtime:
            net = runtime.read(path).net(phase)
        return net.layers[-1], net.notes

    return read


@pytest.mark.parametrize(
    ("text", "stride", "scales"),
    [
        ("'feat_stride': 16", 16, []),
        ("{'feat_stride': 8}", 8, []),
        (r"{\"feat_stride\": 16, \"scales\": [2, 4, 8]}", 16, [2, 4, 8]),
        ("feat_stride: 32\\n'scales': !!python/tuple [4, 8]\\n", 32, [4, 8]),
        ("{'feat_stride': 16, 'scales': (2, 4, 8)}", 16, [2, 4, 8]),
    ],
)
def test_faster_rcnns_proposals_need_no_module(
    text: str, stride: int, scales: list[float], read: Read
) -> None:
    layer, notes = read(PYTHON.format(PROPOSED, *PROPOSAL, text))
    about = layer.parameters.proposal_param
    assert layer.type == "Proposal"
    assert (about.feat_stride, list(about.scale)) == (stride, scales)
    assert (about.pre_nms_topn, about.post_nms_topn, about.min_size) == (6000, 300, 16)
    assert (
        len(notes) == 1 and "rpn.proposal_layer.ProposalLayer is computed by type Proposal" in notes[0]
    )
    training, _ = read(PYTHON.format(PROPOSED, *PROPOSAL, text), "train")
    about = training.parameters.proposal_param
    assert (about.pre_nms_topn, about.post_nms_topn) == (12000, 2000)


def test_whoever_runs_python_layers_runs_the_module(read: Read) -> None:
    text = PYTHON.format(PROPOSED, *PROPOSAL, "'feat_stride': 16")
    layer, notes = read(text, plugins=("-tuning", "+python_layer"))
    assert layer.type == "Python" and not notes


def test_without_the_type_that_computes_it_a_layer_stays_what_it_is(read: Read) -> None:
    text = PYTHON.format(PROPOSED, *PROPOSAL, "'feat_stride': 16")
    layer, notes = read(text, plugins=("-tuning", "-detection"))
    assert layer.type == "Python" and not notes


def test_other_modules_are_not_taken_for_known_ones(read: Read) -> None:
    layer, notes = read(PYTHON.format("bottom: 'x' top: 'y'", "rpn.proposal_layer", "Other", ""))
    assert layer.type == "Python" and not notes


@pytest.mark.parametrize("more", ["'has_extra': True", "'has_extra': 1"])
def test_a_module_that_is_asked_for_more_is_another(more: str, read: Read) -> None:
    text = f"{{'feat_stride': 16, {more}}}"
    layer, notes = read(PYTHON.format(PROPOSED, *PROPOSAL, text))
    assert layer.type == "Python" and not notes


@pytest.mark.parametrize(
    ("named", "text"),
    [
        (PROPOSAL, "'feat_stride': 4,8,16,32,64"),
        (PROPOSAL, "{'feat_stride': [4, 8, 16, 32, 64]}"),
        (PROPOSAL, "{'feat_stride': 16, 'scales': [[8], [16]]}"),
        (DROPOUT, "{'phase': 'TRAIN', 'p': [0.1, 0.2]}"),
    ],
)
def test_a_value_of_another_kind_is_another_modules(
    named: tuple[str, str], text: str, read: Read
) -> None:
    layer, notes = read(PYTHON.format(PROPOSED, *named, text))
    assert layer.type == "Python" and not notes
    assert not layer.parameters.HasField("proposal_param")


@pytest.mark.parametrize(
    ("named", "text", "message"),
    [
        (PROPOSAL, "feat_stride", "cannot use param_str 'feat_stride'"),
        (
            PROPOSAL,
            "'scales': [16]",
            "ProposalLayer cannot use param_str .*: it has no 'feat_stride'",
        ),
        (PROPOSAL, "'feat_stride': __import__('os').abort()", "cannot use param_str"),
        (PROPOSAL, "{'feat_stride': -1}", "cannot use param_str"),
        (DROPOUT, "{'phase': 'TEST', 'p': '1'}", "cannot use param_str"),
        (DROPOUT, "[1]", "cannot use param_str"),
        (PROPOSAL, "{'feat_stride': " + "[" * 3000, r"\(3,018 characters\): .*nested"),
        (PROPOSAL, '{\\"feat_stride\\": ' + "[" * 3000, r"\(3,018 characters\): .*nested"),
        (PROPOSAL, "'feat_stride': " + "-" * 100_000 + "1", "it is nested too deep"),
    ],
)
def test_parameters_that_the_module_could_not_read_are_told(
    named: tuple[str, str], text: str, message: str, read: Read
) -> None:
    with pytest.raises(ModelError, match=rf"net.prototxt:1: layer 'l' \(Python\): .*{message}"):
        read(PYTHON.format("bottom: 'x' top: 'y'", *named, text))


def run(path: Path, phase: str, **inputs: np.ndarray) -> Any:
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        net = runtime.net(path, phase=phase)
        made = {name: np.array(array) for name, array in net.forward(**inputs).items()}
        net.close()
    return made


@pytest.mark.parametrize("phase", ["train", "test"])
def test_whole_channels_are_dropped_and_the_rest_scaled(phase: str, tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    shape = INPUT.format("x", "dim: 8 dim: 50 dim: 3 dim: 2")
    blobs = "bottom: 'x' top: 'y'"
    path.write_text(shape + PYTHON.format(blobs, *DROPOUT, "{'phase': 'TRAIN', 'p': '0.25'}"))
    x = np.random.default_rng(0).normal(3, 1, (8, 50, 3, 2)).astype("f4")
    made = run(path, phase, x=x)["y"]
    kept = (made != 0).all((2, 3))
    np.testing.assert_array_equal(kept, (made != 0).any((2, 3)))
    np.testing.assert_allclose(made[kept], x[kept] / 0.75, rtol=1e-5)
    assert 0.15 < 1 - kept.mean() < 0.35
    assert len({tuple(row) for row in kept.tolist()}) == 8
    path.write_text(shape + PYTHON.format(blobs, *DROPOUT, "{'phase': 'TEST', 'p': '0.25'}"))
    np.testing.assert_allclose(run(path, phase, x=x)["y"], x / 0.75, rtol=1e-5)
