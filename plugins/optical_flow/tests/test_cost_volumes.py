"""Correlation and Correlation1D compared with loops written from their definition, their slopes, and
mistakes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse_optical_flow.volumes import volume, volume_backward

PROPERTY = settings(max_examples=examples(40), suppress_health_check=list(HealthCheck), deadline=None)
LAYER = "layer {{ name: 'c' type: '{}' bottom: 'a' bottom: 'b' top: 'c' correlation_param {{ {} }} }}"


class Fields(NamedTuple):
    """The fields of a correlation_param."""

    pad: int
    kernel_size: int
    max_displacement: int
    stride_1: int
    stride_2: int
    single_direction: int = 0
    subtract: bool = False

    @property
    def text(self) -> str:
        given = " ".join(
            f"{name}: {value}" for name, value in self._asdict().items() if name != "subtract"
        )
        return given + (" correlation_type: SUBTRACT" if self.subtract else "")


def slow(a: np.ndarray, b: np.ndarray, f: Fields, one: bool) -> np.ndarray | None:
    """Repeat the fork's loops, number by number, on padded images. They start at the first place whose
    displacements do not reach beyond the padded border. Return None if there is no such place."""
    samples, channels, height, width = a.shape
    radius, r2 = f.kernel_size // 2, f.max_displacement // f.stride_2
    rows, columns = height + (0 if one else 2 * f.pad), width + 2 * f.pad
    edge = f.max_displacement + radius
    tall = math.ceil((rows - 2 * (radius if one else edge)) / f.stride_1)
    wide = math.ceil((columns - 2 * edge) / f.stride_1)
    if min(tall, wide) < 1:
        return None
    steps = range(-r2, r2 + 1)
    if f.single_direction:
        steps = range(r2 + 1) if f.single_direction > 0 else range(-r2 - 1, 0)
    pairs = [(0, o) for o in steps] if one else [(p, o) for p in steps for o in steps]

    def pixel(x: np.ndarray, n: int, c: int, i: int, j: int) -> float:
        i, j = i - (0 if one else f.pad), j - f.pad
        return float(x[n, c, i, j]) if 0 <= i < height and 0 <= j < width else 0.0

    made = np.zeros((samples, len(pairs), tall, wide))
    for n, d, y, x in np.ndindex(made.shape):
        p, o = pairs[d]
        y1 = y * f.stride_1 + (0 if one else f.max_displacement)
        x1 = x * f.stride_1 + f.max_displacement
        total = 0.0
        for c, j, i in np.ndindex(channels, f.kernel_size, f.kernel_size):
            near = pixel(a, n, c, y1 + j, x1 + i)
            far = pixel(b, n, c, y1 + j + p * f.stride_2, x1 + i + o * f.stride_2)
            total += abs(near - far) if f.subtract else near * far
        made[n, d, y, x] = total / (f.kernel_size**2 * channels)
    return made


FIELDS = st.builds(
    Fields,
    pad=st.integers(0, 4),
    kernel_size=st.sampled_from([1, 1, 3]),
    max_displacement=st.integers(0, 4),
    stride_1=st.integers(1, 2),
    stride_2=st.integers(1, 3),
    single_direction=st.just(0),
    subtract=st.booleans(),
)


def images(seed: int) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.random.default_rng(seed).normal(size=(2, 2, 3, 7, 8))
    return a, b


@given(st.integers(0, 999), FIELDS, st.sampled_from([None, -1, 0, 1]))
@PROPERTY
def test_a_volume_is_that_of_the_definition(
    run: Any, seed: int, f: Fields, direction: int | None
) -> None:
    a, b = images(seed)
    one = direction is not None
    f = f._replace(single_direction=direction or 0)
    expected = slow(a, b, f, one)
    assume(expected is not None)
    made = run(LAYER.format("Correlation1D" if one else "Correlation", f.text), a=a, b=b)["c"]
    np.testing.assert_allclose(made, expected, rtol=1e-12, atol=1e-12)


def test_shapes_are_those_of_the_published_nets(run: Any) -> None:
    a = np.random.default_rng(0).normal(size=(1, 4, 48, 64))
    flownet = Fields(20, 1, 20, 1, 2)
    assert run(LAYER.format("Correlation", flownet.text), a=a, b=a)["c"].shape == (1, 441, 48, 64)
    pwc = Fields(4, 1, 4, 1, 1)
    assert run(LAYER.format("Correlation", pwc.text), a=a, b=a)["c"].shape == (1, 81, 48, 64)
    dispnet = Fields(40, 1, 40, 1, 1, -1)
    assert run(LAYER.format("Correlation1D", dispnet.text), a=a, b=a)["c"].shape == (1, 41, 48, 64)


def test_an_image_is_most_like_itself_where_it_was_moved_to(run: Any) -> None:
    a = np.random.default_rng(0).normal(size=(1, 64, 9, 12))
    made = run(
        LAYER.format("Correlation", Fields(3, 1, 3, 1, 1).text), a=a, b=np.roll(a, (2, -1), (2, 3))
    )
    best = made["c"][0, :, 3:6, 4:8].argmax(0)
    assert (best == (2 + 3) * 7 + (-1 + 3)).all()


@given(st.integers(0, 999), FIELDS, st.booleans())
@PROPERTY
def test_gradients_are_the_slopes(seed: int, f: Fields, one: bool) -> None:
    """Products are linear in each image, so both sides agree to the last bits; differences are compared
    with the slopes of small steps."""
    a, b = images(seed)
    expected = slow(a, b, f, one)
    assume(expected is not None)
    steps = tuple(n * f.stride_2 for n in range(-(f.max_displacement // f.stride_2), 99))
    steps = tuple(n for n in steps if n <= f.max_displacement)
    about = {
        "kernel": f.kernel_size,
        "stride": f.stride_1,
        "first": (0 if one else f.max_displacement - f.pad, f.max_displacement - f.pad),
        "size": expected.shape[2:],
        "down": (0,) if one else steps,
        "across": steps,
        "difference": f.subtract,
    }
    random = np.random.default_rng(seed + 1)
    dy, move_a, move_b = random.normal(size=expected.shape), *random.normal(size=(2, *a.shape))
    da, db = volume_backward(dy, a, b, about)
    h = 1e-6
    for slope, moved in (
        ((da * move_a).sum(), [(a + s * h * move_a, b) for s in (1, -1)]),
        ((db * move_b).sum(), [(a, b + s * h * move_b) for s in (1, -1)]),
    ):
        up, low = ((dy * volume(*pair, about)).sum() for pair in moved)
        assert slope == pytest.approx((up - low) / (2 * h), rel=2e-5, abs=2e-5)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("Correlation", "max_displacement: 1", r"correlation_param { kernel_size } is not given"),
        ("Correlation", "kernel_size: 1", r"correlation_param { max_displacement } is not given"),
        ("Correlation", "kernel_size: 2 max_displacement: 1", "kernel_size 2 has no middle"),
        (
            "Correlation",
            "kernel_size: 1 max_displacement: 1 stride_2: 0",
            r"{ stride_2 } is 0; it must be 1 or more",
        ),
        ("Correlation", "kernel_size: 1 max_displacement: 9", "no place of .* up to 9 .* a pad of 0"),
        (
            "Correlation",
            "kernel_size: 1 max_displacement: 1 single_direction: 1",
            "belongs to Correlation1D",
        ),
        (
            "Correlation1D",
            "kernel_size: 1 max_displacement: 1 single_direction: 2",
            r"single_direction 2 is not -1 \(left\), 0 \(both\) or 1 \(right\)",
        ),
        ("Correlation", "kernel_size: 1 max_displacment: 1", "did you mean 'max_displacement'"),
    ],
)
def test_a_wrong_field_is_told_with_its_layer(run: Any, kind: str, fields: str, message: str) -> None:
    a, b = images(0)
    with pytest.raises(demitasse.ModelError, match=message) as caught:
        run(LAYER.format(kind, fields), a=a, b=b)
    assert "net.prototxt:3" in str(caught.value)


def test_images_of_two_shapes_are_told(run: Any) -> None:
    a, b = images(0)
    with pytest.raises(demitasse.ModelError, match="do not have the same shape"):
        run(LAYER.format("Correlation", "kernel_size: 1 max_displacement: 1"), a=a, b=b[:, :2])


def test_what_the_fork_reads_over_is_told(runtime: demitasse.Runtime, written: Any, run: Any) -> None:
    a, b = images(0)
    fields = Fields(1, 1, 1, 1, 1).text
    plain = run(LAYER.format("Correlation", fields), a=a, b=b)["c"]
    layer = LAYER.format("Correlation", f"{fields} do_abs: true")
    made = run(layer, a=a, b=b)["c"]
    np.testing.assert_array_equal(made, plain)
    assert (made < 0).any()
    (note,) = runtime.read(written(layer, a=a, b=b)).net("test").notes
    assert "of FlowNet's fork that have no effect here: do_abs (line 3; nor is it in the fork)" in note
