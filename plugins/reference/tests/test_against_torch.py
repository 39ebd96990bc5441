"""Comparison with the same operations in PyTorch, if it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional
Apply = Callable[..., Any]
RNG = np.random.default_rng(12)


def tensor(array: np.ndarray) -> Any:
    return torch.tensor(array, requires_grad=True)


def same(ours: np.ndarray, theirs: Any) -> bool:
    return np.allclose(ours, theirs.detach().numpy(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("stride", "pad", "dilation"), [((1, 1), (0, 0), (1, 1)), ((2, 3), (2, 1), (1, 2))]
)
def test_convolution(apply: Apply, groups: int, stride: Any, pad: Any, dilation: Any) -> None:
    x, w, b = (
        RNG.normal(size=(3, 4, 9, 8)),
        RNG.normal(size=(6, 4 // groups, 3, 2)),
        RNG.normal(size=6),
    )
    options = {"stride": stride, "pad": pad, "dilation": dilation, "groups": groups}
    tx, tw, tb = tensor(x), tensor(w), tensor(b)
    ty = F.conv2d(tx, tw, tb, stride, pad, dilation, groups)
    y = apply("convolution", x, w, b, **options)
    assert same(y, ty)
    dy = RNG.normal(size=y.shape)
    ty.backward(torch.tensor(dy))
    assert same(apply("convolution_backward_data", dy, w, shape=x.shape, **options), tx.grad)
    dw, db = apply("convolution_backward_weights", dy, x, shape=w.shape, **options)
    assert same(dw, tw.grad)
    assert same(db, tb.grad)


@pytest.mark.parametrize("rounding", ["ceil", "floor"])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad"),
    [((3, 3), (2, 2), (0, 0)), ((3, 2), (2, 1), (1, 1)), ((4, 3), (3, 2), (2, 1))],
)
def test_pooling(apply: Apply, kernel: Any, stride: Any, pad: Any, rounding: str) -> None:
    x = RNG.normal(size=(2, 3, 10, 8))
    options = {"kernel": kernel, "stride": stride, "pad": pad, "rounding": rounding}
    up = rounding == "ceil"
    tx = tensor(x)
    ty, places = F.max_pool2d(tx, kernel, stride, pad, ceil_mode=up, return_indices=True)
    y, argmax = apply("pooling_max", x, **options)
    assert same(y, ty)
    assert np.array_equal(argmax, places.numpy())
    dy = RNG.normal(size=y.shape)
    ty.backward(torch.tensor(dy))
    assert same(apply("pooling_max_backward", dy, argmax, shape=x.shape, **options), tx.grad)
    tx = tensor(x)
    ty = F.avg_pool2d(tx, kernel, stride, pad, ceil_mode=up)
    assert same(apply("pooling_average", x, **options), ty)
    ty.backward(torch.tensor(dy))
    assert same(apply("pooling_average_backward", dy, shape=x.shape, **options), tx.grad)


def test_local_response_normalisation(apply: Apply) -> None:
    x = RNG.normal(size=(2, 7, 3, 3))
    options = {"size": 5, "alpha": 0.3, "beta": 0.75, "k": 2.0}
    tx = tensor(x)
    ty = F.local_response_norm(tx, **options)
    y, scale = apply("lrn_across_channels", x, **options)
    assert same(y, ty)
    dy = RNG.normal(size=y.shape)
    ty.backward(torch.tensor(dy))
    assert same(apply("lrn_across_channels_backward", dy, x, y, scale, **options), tx.grad)


def test_softmax_loss(apply: Apply) -> None:
    x, label = RNG.normal(size=(4, 5, 3)), RNG.integers(0, 5, (4, 3))
    tx = tensor(x)
    theirs = F.cross_entropy(tx, torch.tensor(label), ignore_index=2)
    options = {"ignore_label": 2}
    loss, probability = apply("softmax_loss", x, label.astype(np.float64), **options)
    assert same(loss, theirs)
    theirs.backward()
    one = np.array(1.0)
    assert same(apply("softmax_loss_backward", one, probability, label, **options), tx.grad)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_momentum_at_a_constant_rate(apply: Apply, momentum: float) -> None:
    """PyTorch multiplies by the rate later, but at a constant rate the parameters are the same."""
    parameter, history = RNG.normal(size=8), np.zeros(8)
    theirs = tensor(parameter)
    solver = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, weight_decay=0.01)
    for _ in range(4):
        gradient = RNG.normal(size=8)
        theirs.grad = torch.tensor(gradient)
        solver.step()
        options = {"momentum": momentum, "decay": 0.01, "segments": ((0, 8, 1.0, 1.0),)}
        rate = np.array([0.1])
        parameter, history = apply("momentum_update", parameter, gradient, history, rate, **options)
    assert same(parameter, theirs)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (7, 3)])
def test_batch_normalisation_with_scales(apply: Apply, shape: tuple[int, ...], relu: bool) -> None:
    x, dy = RNG.normal(2, 3, size=shape), RNG.normal(size=shape)
    w, b = RNG.normal(size=3), RNG.normal(size=3)
    nothing = [np.zeros(3), np.zeros(3), np.zeros(1)]
    *_, y, average, inverse = apply("batch_norm", x, *nothing, w, b, epsilon=1e-3, relu=relu)
    tx, tw, tb = tensor(x), tensor(w), tensor(b)
    ty = F.batch_norm(tx, None, None, tw, tb, training=True, eps=1e-3)
    ty = F.relu(ty) if relu else ty
    ty.backward(torch.tensor(dy))
    assert same(y, ty)
    dx, dw, db = apply("batch_norm_backward", dy, x, w, b, average, inverse, relu=relu)
    assert same(dx, tx.grad)
    assert same(dw, tw.grad)
    assert same(db, tb.grad)


def test_kept_statistics(apply: Apply) -> None:
    """Sums that forget nothing (keep 1) equal PyTorch's cumulative average (momentum None)."""
    layer = torch.nn.BatchNorm2d(3, momentum=None, affine=False, dtype=torch.float64)
    kept = [np.zeros(3), np.zeros(3), np.zeros(1)]
    for _ in range(3):
        x = RNG.normal(1, 2, size=(4, 3, 5, 6))
        layer(torch.tensor(x))
        kept = list(apply("batch_norm", x, *kept, None, None, keep=1.0)[:3])
    assert same(kept[0] / kept[2], layer.running_mean)
    assert same(kept[1] / kept[2], layer.running_var)
    assert same(apply("batch_norm_inference", x, *kept, None, None), layer.eval()(torch.tensor(x)))
