"""Convolution, both kernels and all passes, compared with sums over taps in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mesh_problems import close, drawn, numbers

from demitasse import PLAIN, Request, TensorSpec
from demitasse_sw26010.kernels import candidates
from demitasse_sw26010.kernels.convolution import RCNB

Run = Callable[..., list[Any]]
Ask = Callable[..., Request]

fixed = drawn(20)


def padded(x: Any, pad: tuple[int, int]) -> Any:
    return np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad[0],) * 2, (pad[1],) * 2))


def taps(w: tuple[int, ...], y: tuple[int, ...], about: dict[str, Any]) -> Any:
    """Yield each tap, and the part of the padded x that it sees."""
    for r, s in product(range(w[2]), range(w[3])):
        (sh, sw), (dh, dw) = about["stride"], about["dilation"]
        rows = slice(r * dh, r * dh + (y[2] - 1) * sh + 1, sh)
        columns = slice(s * dw, s * dw + (y[3] - 1) * sw + 1, sw)
        yield r, s, rows, columns


def forward(x: Any, w: Any, b: Any, about: dict[str, Any], y: tuple[int, ...]) -> Any:
    wide, g = padded(x, about["pad"]), about["groups"]
    made = np.zeros(y)
    for part in range(g):
        c = slice(part * w.shape[1], (part + 1) * w.shape[1])
        k = slice(part * w.shape[0] // g, (part + 1) * w.shape[0] // g)
        for r, s, rows, columns in taps(w.shape, y, about):
            made[:, k] += np.einsum(
                "nchw,kc->nkhw", wide[:, c, rows, columns], w[k, :, r, s].astype(float)
            )
    return made if b is None else made + b.reshape(1, -1, 1, 1)


def backward(dy: Any, x: Any, w: Any, about: dict[str, Any]) -> tuple[Any, Any, Any]:
    wide, g = padded(x, about["pad"]), about["groups"]
    dwide, dw, dy = np.zeros(wide.shape), np.zeros(w.shape), dy.astype(float)
    for part in range(g):
        c = slice(part * w.shape[1], (part + 1) * w.shape[1])
        k = slice(part * w.shape[0] // g, (part + 1) * w.shape[0] // g)
        for r, s, rows, columns in taps(w.shape, dy.shape, about):
            dwide[:, c, rows, columns] += np.einsum(
                "nkhw,kc->nchw", dy[:, k], w[k, :, r, s].astype(float)
            )
            dw[k, :, r, s] = np.einsum("nkhw,nchw->kc", dy[:, k], wide[:, c, rows, columns])
    ph, pw = about["pad"]
    dx = dwide[:, :, ph : ph + x.shape[2], pw : pw + x.shape[3]]
    return dx, dw, dy.sum((0, 2, 3))


def check(
    run: Run, ask: Ask, x: Any, w: Any, b: Any, about: dict[str, Any], kernel: str, passes: str = "fwd"
) -> None:
    (spec,) = ask("convolution", (x, w, b), about).outputs
    assert spec is not None
    dy = numbers(*spec.shape, seed=3)
    dx, dw, db = backward(dy, x, w, about)
    if "f" in passes:
        (y,) = run("convolution", (x, w, b), about, kernel)
        close(y, forward(x, w, b, about, spec.shape))
    if "d" in passes:
        (found,) = run("convolution_backward_data", (dy, w), {**about, "shape": x.shape}, kernel)
        close(found, dx)
    if "w" in passes:
        found, sums = run("convolution_backward_weights", (dy, x), {**about, "shape": w.shape}, kernel)
        close(found, dw)
        close(sums, db)


@fixed
@given(st.data())
def test_explicit_gemm_is_the_sum_over_taps(run: Run, ask: Ask, data: st.DataObject) -> None:
    draw = data.draw
    groups, kernel = draw(st.integers(1, 2)), (draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    dilation, stride = (draw(st.integers(1, 2)),) * 2, (draw(st.integers(1, 3)), draw(st.integers(1, 2)))
    pad = (draw(st.integers(0, kernel[0] - 1)), draw(st.integers(0, kernel[1] - 1)))
    extent = [d * (k - 1) + draw(st.integers(1, 7)) for d, k in zip(dilation, kernel, strict=True)]
    x = numbers(draw(st.integers(1, 3)), groups * draw(st.integers(1, 4)), *extent)
    w = numbers(groups * draw(st.integers(1, 4)), x.shape[1] // groups, *kernel, seed=1)
    b = numbers(w.shape[0], seed=2) if draw(st.booleans()) else None
    about = {"stride": stride, "pad": pad, "dilation": dilation, "groups": groups}
    check(run, ask, x, w, b, about, "explicit")


PLAIN_3X3 = {"stride": (1, 1), "pad": (1, 1), "dilation": (1, 1), "groups": 1}


@pytest.mark.parametrize(
    ("x", "w", "about"),
    [
        ((1, 40, 9, 9), (300, 40, 3, 3), PLAIN_3X3),
        ((2, 256, 8, 8), (256, 256, 1, 1), {**PLAIN_3X3, "pad": (0, 0)}),
        ((1, 2, 80, 80), (5, 2, 5, 5), {**PLAIN_3X3, "pad": (2, 2)}),
    ],
    ids=["several tiles of rows and of depth", "whole tiles", "several tiles of columns"],
)
def test_products_are_blocked(run: Run, ask: Ask, x: Any, w: Any, about: dict[str, Any]) -> None:
    check(run, ask, numbers(*x), numbers(*w, seed=1), numbers(w[0], seed=2), about, "explicit")


@pytest.mark.parametrize(
    ("batch", "stride", "pad", "kernel", "inputs", "outputs"),
    [(8, 1, 1, 3, 128, 136), (64, 2, 1, 3, 130, 128), (16, 1, 0, 1, 128, 640), (8, 2, 2, 5, 520, 128)],
)
def test_implicit_gemm_is_the_sum_over_taps(
    run: Run, ask: Ask, batch: int, stride: int, pad: int, kernel: int, inputs: int, outputs: int
) -> None:
    about = {"stride": (stride,) * 2, "pad": (pad,) * 2, "dilation": (1, 1), "groups": 1}
    x, w = numbers(batch, inputs, 5, 6), numbers(outputs, inputs, kernel, kernel, seed=1)
    check(run, ask, x, w, numbers(outputs, seed=2), about, "implicit")


def test_implicit_gemm_is_offered_where_channels_fill_the_mesh(ask: Ask) -> None:
    def offered(name: str, *shapes: tuple[int, ...], **about: Any) -> set[str]:
        arrays = [np.zeros(shape, np.float32) for shape in shapes]
        return {each.kernel for each in candidates(ask(name, arrays, {**PLAIN_3X3, **about}))}

    image = (8, 64, 4, 4)
    assert offered("convolution", image, (64, 64, 3, 3)) == {"explicit gemm", "implicit gemm"}
    assert offered("convolution", (8, 3, 4, 4), (64, 3, 3, 3)) == {"explicit gemm"}
    assert offered("convolution", (7, 64, 4, 4), (64, 64, 3, 3)) == {"explicit gemm"}
    data = "convolution_backward_data"
    assert offered(data, image, (64, 64, 3, 3), shape=image) == {"explicit gemm"}


def test_the_weights_gradient_takes_images_together_that_im2col_puts_there(ask: Ask) -> None:
    """Four images of 3 x 3 taps cost less than four times as much as one. Without im2col they cost four
    times as much, because each is a product of its own."""

    def seconds(batch: int, window: int) -> float:
        dy, x = numbers(batch, 128, 14, 14), numbers(batch, 96, 14, 14)
        about = {"pad": (window // 2,) * 2, "shape": (128, 96, window, window)}
        explicit, *_ = candidates(ask("convolution_backward_weights", (dy, x), about))
        assert explicit.kernel == "explicit gemm"
        assert explicit.seconds is not None
        return explicit.seconds

    assert seconds(4, 3) < 3.5 * seconds(1, 3)
    assert seconds(4, 1) > 3.9 * seconds(1, 1)


def test_what_a_kernel_does_not_get_is_no_number(
    ask: Ask, bind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns' DMA is skipped, and everything else happens."""
    import types

    from demitasse_sw26010.loops import explicit

    x, w = numbers(1, 3, 6, 6), numbers(4, 3, 3, 3, seed=1)
    asked = ask("convolution", (x, w, None), PLAIN_3X3)
    (candidate,) = candidates(asked)
    work, _, (y,) = bind(asked, candidate, (x, w, None))
    work()
    assert np.isfinite(y).all()

    def skipped(*arguments: Any) -> None:
        """Stand in for im2col, and move nothing."""

    plain = explicit.forward
    scope = {**plain.__globals__, "im2col": skipped}
    lazy = types.FunctionType(plain.__code__, scope, "forward")
    monkeypatch.setattr(explicit, "forward", lazy)
    work, _, (y,) = bind(asked, candidate, (x, w, None))
    work()
    assert np.isnan(y).all()


@fixed
@given(st.integers(1, 140), st.integers(1, 4), st.integers(1, 5), st.integers(1, 70), st.booleans())
def test_the_tensor_transformation_turns_batch_first_into_batch_last(
    ask: Ask, bind: Callable[..., Any], n: int, c: int, h: int, w: int, inwards: bool
) -> None:
    x = numbers(n, c, h, w)
    source, target = (PLAIN, RCNB) if inwards else (RCNB, PLAIN)
    asked = ask("reorder", (x,), {}, layouts=(source,))
    asked = replace(asked, outputs=(TensorSpec(x.shape, "float32", target),))
    (candidate,) = candidates(asked)
    work, _, (y,) = bind(asked, candidate, (x,))
    work()
    assert (target.unpack(y, x.shape) == x).all()
