"""Nets of SegNet's fork: ENet, whose maxima are put back where pooling took them."""

from __future__ import annotations

import numpy as np
import pytest
from real_files import DATA
from test_opencv_agrees import random_weights

import demitasse

ENET = DATA / "prototxt" / "TimoSaemann+ENet" / "prototxts" / "enet_deploy_final.prototxt"


@pytest.mark.skipif(not ENET.is_file(), reason=f"no ENet under {DATA}")
def test_enet_puts_maxima_back_where_they_were() -> None:
    """A plain loop over planes gives what both of its Upsample layers give."""
    image = np.random.default_rng(2).normal(0, 1, (1, 3, 32, 64)).astype("f4")
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        net = runtime.net(ENET, retain="all")
        for name, arrays in random_weights(net).parameters.items():
            for kept, array in zip(net.params[name], arrays, strict=True):
                kept[...] = array
        net.forward(data=image)
        layers = [layer for layer in net.definition.layers if layer.type == "Upsample"]
        assert len(layers) == 2
        for layer in layers:
            x, place, y = (np.array(net.blobs[name].data) for name in (*layer.bottoms, *layer.tops))
            expected = np.zeros((*y.shape[:2], y[0, 0].size), np.float32)
            for plane in np.ndindex(x.shape[:2]):
                for value, at in zip(x[plane].ravel(), place[plane].ravel(), strict=True):
                    expected[plane][int(at)] = value
            assert np.ptp(x) > 0 and y.shape[2:] == (2 * x.shape[2], 2 * x.shape[3])
            np.testing.assert_array_equal(y, expected.reshape(y.shape))
