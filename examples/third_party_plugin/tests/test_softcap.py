"""SoftCap compared with its formula, and its gradient with finite differences."""

import numpy as np
import pytest
from demitasse_softcap.plugin import SOFTCAP, SOFTCAP_BACKWARD, SoftCap, kernels

from demitasse import Layer, Location, Place, Request, TensorSpec


def compute(operation, inputs, cap):
    spec = TensorSpec(inputs[0].shape, "float64")
    request = Request(operation, (spec,) * len(inputs), (spec,), {"cap": cap}, Place("machine"))
    (candidate,) = kernels(request)
    out = np.empty_like(inputs[0])
    workspace = np.empty(candidate.workspace, np.uint8) if candidate.workspace else None
    candidate.bind(inputs, [out], workspace)()
    return out


def test_it_is_cap_tanh_x_over_cap():
    x = np.linspace(-100, 100, 41).reshape(1, 41)
    assert np.allclose(compute(SOFTCAP, [x], 30.0), 30 * np.tanh(x / 30), rtol=1e-14)


def test_its_gradient_agrees_with_central_differences():
    x, dy, h = np.linspace(-5, 5, 21).reshape(3, 7), np.cos(np.arange(21.0)).reshape(3, 7), 1e-6
    y = compute(SOFTCAP, [x], 2.0)
    slope = (compute(SOFTCAP, [x + h], 2.0) - compute(SOFTCAP, [x - h], 2.0)) / (2 * h)
    assert np.allclose(compute(SOFTCAP_BACKWARD, [dy, y], 2.0), dy * slope, atol=1e-8)


def test_a_cap_of_zero_is_refused():
    layer = Layer("cap", "SoftCap", ("x",), ("y",), {"cap": 0.0}, Location("net.prototxt", 1))
    with pytest.raises(ValueError, match=r"cap 0\.0 should be positive"):
        SoftCap().build(layer, [None], None)
