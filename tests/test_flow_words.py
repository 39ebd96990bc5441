"""The words of nets that find optical flow: the cpu plugin's kernels give what the plugin's own in NumPy
give, whatever is shared out among threads and whatever gradient nobody asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreement import hook
from drawn_examples import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from word_results import compute

from demitasse import Place, Request, TensorSpec
from demitasse.operations import VOCABULARY, extend
from demitasse_cpu.kernels import FACTORIES
from demitasse_optical_flow.operations import OPERATIONS

WORDS = extend(VOCABULARY, OPERATIONS, "optical_flow")
WITHIN = {"float32": 2e-5, "float64": 1e-12}
QUICK = ("cost_volume", "warp", "channel_norm")
PROPERTY = settings(max_examples=examples(25), suppress_health_check=list(HealthCheck), deadline=None)


def check(name: str, *inputs: np.ndarray, absent: Sequence[int] = (), **about: Any) -> list[Any]:
    """Both plugins' results, after they were compared; those of NumPy."""
    ours, theirs = (
        compute(plugin, name, *inputs, words=WORDS, absent=absent, **about)
        for plugin in ("cpu", "optical_flow")
    )
    for mine, other in zip(ours, theirs, strict=True):
        if other is not None:
            within = WITHIN[other.dtype.name]
            np.testing.assert_allclose(mine, other, rtol=within, atol=within)
    return theirs


def test_the_cpu_computes_what_takes_long_and_its_gradients() -> None:
    ours = {word.name for word in OPERATIONS} & set(FACTORIES)
    assert ours == {name + end for name in QUICK for end in ("", "_backward")}


@pytest.mark.parametrize("dtype", sorted(WITHIN))
@given(data=st.data())
@PROPERTY
def test_cost_volumes(dtype: str, data: st.DataObject) -> None:
    def number(low: int, high: int) -> int:
        return int(data.draw(st.integers(low, high)))

    random = np.random.default_rng(number(0, 999))
    shape = (number(1, 2), number(1, 27), number(1, 9), data.draw(st.sampled_from([1, 5, 16, 33, 70])))
    a, b = random.normal(size=(2, *shape)).astype(dtype)
    pad, reach, stride = number(0, 5), number(0, 6), number(1, 3)
    steps = tuple(range(-(reach // stride) * stride, reach + 1, stride))
    kernel = data.draw(st.sampled_from([1, 1, 3]))
    down = data.draw(st.sampled_from([steps, (0,)]))
    first = (reach - pad if down == steps else number(-1, 1), reach - pad)
    size = tuple(shape[2 + k] - first[k] + pad - reach - kernel + 1 for k in (0, 1))
    assume(min(size) >= 1)
    about = {"kernel": kernel, "first": first, "size": size, "down": down, "across": steps}
    (y,) = check("cost_volume", a, b, **about)
    dy = random.normal(size=y.shape).astype(dtype)
    for absent in ((), (0,), (1,)):
        check("cost_volume_backward", dy, a, b, absent=absent, **about)


PUBLISHED = {
    "FlowNet's": (20, 2, 1, True),
    "PWC-Net's": (4, 1, 1, True),
    "DispNet's": (40, 1, 1, False),
    "of patches": (7, 1, 3, True),
}
"""By whose they are: how far displacements reach, their stride, the kernel, whether rows have some."""


@pytest.mark.parametrize("dtype", sorted(WITHIN))
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_volumes_of_published_nets(dtype: str, name: str) -> None:
    """More displacements than a tile has sums, and more channels."""
    reach, stride, kernel, both = PUBLISHED[name]
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 2, 14, 9, 19)).astype(dtype)
    steps = tuple(range(-reach, reach + 1, stride))
    size = (9 - kernel + 1, 19 - kernel + 1)
    about = {"kernel": kernel, "size": size, "down": steps if both else (0,), "across": steps}
    (y,) = check("cost_volume", a, b, **about)
    dy = random.normal(size=y.shape).astype(dtype)
    for absent in ((), (0,), (1,)):
        check("cost_volume_backward", dy, a, b, absent=absent, **about)


@pytest.mark.parametrize("dtype", sorted(WITHIN))
@pytest.mark.parametrize("to_corners", [False, True])
@given(st.integers(0, 999))
@PROPERTY
def test_warped_images(dtype: str, to_corners: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = tuple(int(random.integers(1, 9)) for _ in range(4))
    x = random.normal(size=shape).astype(dtype)
    flow = random.normal(size=(shape[0], 2, *shape[2:])) * 2
    flow = np.where(random.uniform(size=flow.shape) < 0.4, np.round(flow), flow)
    flow[random.uniform(size=flow.shape) < 0.05] = math.nan
    about = {"to_corners": to_corners, "fill": math.nan if seed % 2 else 0.0}
    check("warp", x, flow.astype(dtype), **about)
    dy = random.normal(size=shape).astype(dtype)
    for absent in ((), (0,), (1,)):
        check("warp_backward", dy, x, flow.astype(dtype), absent=absent, **about)


@pytest.mark.parametrize("dtype", sorted(WITHIN))
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 4, 5), (3, 2, 40, 70)])
def test_norms_of_channels(dtype: str, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=shape).astype(dtype)
    x[..., 0] = 0
    (y,) = check("channel_norm", x)
    (dx,) = check("channel_norm_backward", random.normal(size=y.shape).astype(dtype), x, y)
    assert np.isfinite(dx).all()


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_number_of_threads_gives_the_same_numbers(threads: int) -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 2, 30, 24, 40)).astype(np.float32)
    steps = tuple(range(-4, 5))
    about = {"size": (24, 40), "down": steps, "across": steps}

    def made(count: int) -> list[Any]:
        volume = compute("cpu", "cost_volume", a, b, words=WORDS, threads=count, **about)
        given = (volume[0], a, b)
        slopes = compute("cpu", "cost_volume_backward", *given, words=WORDS, threads=count, **about)
        return [*volume, *slopes]

    for one, other in zip(made(1), made(threads), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_no_published_net_has_is_left_to_numpy() -> None:
    spec = TensorSpec((1, 2, 5, 5), "float32")
    about = {**WORDS["cost_volume"].attributes, "size": (3, 3), "down": (0,), "across": (0, 1)}
    out = TensorSpec((1, 2, 3, 3), "float32")
    request = Request(WORDS["cost_volume"], (spec, spec), (out,), about, Place("test"))
    assert len(list(hook("cpu")(request))) == 1
    for field, value in (("difference", True), ("stride", 2), ("across", (0, 1, 3))):
        other = replace(request, attributes={**about, field: value})
        assert list(hook("cpu")(other)) == []
        assert len(list(hook("optical_flow")(other))) == 1
