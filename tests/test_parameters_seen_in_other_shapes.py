"""A parameter that one layer sees in another shape and another wants in a layout of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import demitasse

NET = """
name: "one parameter, two readers"
input: "data" input_shape {{ dim: 1 dim: 16 dim: 9 dim: 9 }}
{first}
{second}
"""
CONVOLUTION = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { name: "w" }
        convolution_param { num_output: 32 kernel_size: 3 bias_term: false
                            weight_filler { type: "gaussian" std: 1 } } }
"""
VIEW = """
layer { name: "learned" type: "Parameter" top: "learned" param { name: "w" }
        parameter_param { shape { dim: 32 dim: 16 dim: 3 dim: 3 } } }
layer { name: "flat" type: "Flatten" bottom: "learned" top: "flat" }
"""


@pytest.mark.parametrize("order", [(CONVOLUTION, VIEW), (VIEW, CONVOLUTION)], ids=["last", "first"])
def test_a_view_shows_the_values_in_their_logical_order(tmp_path: Path, order: tuple[str, str]) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(NET.format(first=order[0], second=order[1]))
    data = np.random.default_rng(3).standard_normal((1, 16, 9, 9)).astype(np.float32)
    results = []
    for plugins in (["caffe", "training", "datasets", "reference"], None):
        with demitasse.compose(plugins=plugins) as runtime:
            net = runtime.net(path)
            results.append(net.forward(data=data))
            assert np.array_equal(results[-1]["flat"], net.params["conv"][0].reshape(32, -1))
    np.testing.assert_allclose(results[0]["conv"], results[1]["conv"], rtol=1e-4, atol=1e-4)
