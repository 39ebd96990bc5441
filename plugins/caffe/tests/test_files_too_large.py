"""Numbers that do not fit into any protobuf file are rejected, and no file is left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from demitasse import ModelError, Weights
from demitasse_caffe.plugin import model_reader, model_writer


def test_numbers_that_no_message_of_protobuf_holds_are_refused_before_any_is_copied(
    tmp_path: Path,
) -> None:
    """Python's protobuf would write 2 GiB in several blobs, in a file that Caffe cannot read. All
    numbers here are one number in memory, broadcast."""
    wide = np.broadcast_to(np.float32(0), (2**28, 1))  # 1 GiB
    two = {"a": [wide], "b": [wide]}
    path, told = (
        tmp_path / "a.caffemodel",
        r"2,147,483,648 bytes do not fit .* write a\.caffemodel\.h5 \(",
    )
    for weights in (
        Weights(two),
        Weights({"a": [wide]}, gradients={"a": [wide]}),
        Weights({"a": [np.broadcast_to(0.0, (2**28, 1))]}),
    ):
        with pytest.raises(ModelError, match=told):
            model_writer(path, weights)
    assert list(tmp_path.iterdir()) == []


def test_no_weights_are_written_beside_a_state_that_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = {"a": [np.ones(100, np.float32)]}
    weights = Weights(layers, 3, {"history": layers, "second": layers})
    monkeypatch.setattr("demitasse_caffe.weights.LARGEST_FILE", 799)
    with pytest.raises(ModelError, match=r"s\.solverstate: 800 bytes .* write s\.solverstate\.h5"):
        model_writer(tmp_path / "s.solverstate", weights)
    assert list(tmp_path.iterdir()) == []
    model_writer(tmp_path / "s.solverstate.h5", weights)
    reader = model_reader(tmp_path / "s.solverstate.h5", {})
    assert reader is not None
    found = reader.weights()
    np.testing.assert_array_equal(found.state["second"]["a"][0], layers["a"][0])


def test_a_message_is_measured_with_all_that_is_around_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, weights = tmp_path / "a.caffemodel", Weights({"a": [np.ones(5, np.float32)]})
    model_writer(path, weights)
    size = path.stat().st_size
    monkeypatch.setattr("demitasse_caffe.weights.LARGEST_FILE", size)
    model_writer(path, weights)
    monkeypatch.setattr("demitasse_caffe.weights.LARGEST_FILE", size - 1)
    with pytest.raises(ModelError, match=f"{size} bytes do not fit"):
        model_writer(path, weights)
