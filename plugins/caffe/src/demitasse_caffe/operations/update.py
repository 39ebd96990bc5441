"""The updates of Caffe's solvers beyond momentum, of LARS and of LARC: operations on a slice of flat
memory.

In all of them g is ``scale * gradient + decay * parameter``, where the decay is multiplied by the
segment's own multiplier (L1: ``decay * sign(parameter)``). The rate is the iteration's rate times the
segment's multiplier; a missing ``scale`` is 1. ``segments`` are those of the core's momentum_update:
(start, stop, rate multiplier, decay multiplier) for each parameter's part of the slice, in order and
without gaps.

Source: Caffe 1.0's solvers, for the order of operations and the places of the small ``delta``; NVIDIA's
fork, for LARC.
"""

from __future__ import annotations

from functools import partial

from demitasse.operations import REQUIRED, define, nothing, per_element

_update = partial(define, "update", outputs="", shapes=nothing)
_COMMON = {"decay": 0.0, "regularization": "L2", "segments": REQUIRED}
_LAST = "rate scale?:float64"

OPERATIONS = (
    _update(
        "nesterov_update",
        "next = momentum * history + rate * g, then parameter -= (1 + momentum) * next - momentum * "
        "history and history = next: Nesterov's accelerated gradient, seen from the point ahead",
        inputs=f"parameter! gradient history! {_LAST}",
        flops=per_element("parameter", 9),
        attributes={"momentum": 0.0, **_COMMON},
    ),
    _update(
        "adagrad_update",
        "history += g^2, then parameter -= rate * g / (sqrt(history) + delta)",
        inputs=f"parameter! gradient history! {_LAST}",
        flops=per_element("parameter", 9),
        attributes={"delta": 1e-8, **_COMMON},
    ),
    _update(
        "rmsprop_update",
        "history = rms_decay * history + (1 - rms_decay) * g^2, then parameter -= rate * g / "
        "(sqrt(history) + delta)",
        inputs=f"parameter! gradient history! {_LAST}",
        flops=per_element("parameter", 11),
        attributes={"rms_decay": 0.99, "delta": 1e-8, **_COMMON},
    ),
    _update(
        "adadelta_update",
        "history = momentum * history + (1 - momentum) * g^2, step = g * sqrt((second + delta) / "
        "(history + delta)), second = momentum * second + (1 - momentum) * step^2, then parameter -= "
        "rate * step",
        inputs=f"parameter! gradient history! second! {_LAST}",
        flops=per_element("parameter", 18),
        attributes={"momentum": 0.0, "delta": 1e-8, **_COMMON},
    ),
    _update(
        "adam_update",
        "history = momentum * history + (1 - momentum) * g, second = momentum2 * second + "
        "(1 - momentum2) * g^2, then parameter -= rate * sqrt(1 - momentum2^t) / (1 - momentum^t) * "
        "history / (sqrt(second) + delta), where t is iteration + 1",
        inputs=f"parameter! gradient history! second! iteration {_LAST}",
        flops=per_element("parameter", 14),
        attributes={"momentum": 0.0, "momentum2": 0.999, "delta": 1e-8, **_COMMON},
    ),
    _update(
        "lars_update",
        "history = momentum * history + rate * local * g, then parameter -= history, where local = "
        "trust * |parameter| / (|scale * gradient| + decay * |parameter|) by segment; squares has "
        "|parameter|^2 and |gradient|^2 of each segment's whole parameter. Local is 1 where a norm is "
        "0, and where the decay multiplier is 0: so are biases and normalisers' parameters marked",
        inputs=f"parameter! gradient history! squares:float64 {_LAST}",
        flops=per_element("parameter", 6),
        attributes={"momentum": 0.0, "trust": 0.001, "decay": 0.0, "segments": REQUIRED},
    ),
    _update(
        "larc_update",
        "history = momentum * history + step * g, then parameter -= history, where step by segment is "
        "rate * local or, with ``clip``, the lesser of the iteration's rate and local; local = trust * "
        "|parameter| / |scale * gradient|, or 1 where a norm is 0, in place of the rate multiplier: 0 "
        "where that is. squares is as in lars_update",
        inputs=f"parameter! gradient history! squares:float64 {_LAST}",
        flops=per_element("parameter", 6),
        attributes={"momentum": 0.0, "trust": 0.001, "clip": False, "decay": 0.0, "segments": REQUIRED},
    ),
    define(
        "reduction",
        "squares",
        "total = the sums of parameter^2 and of gradient^2 in each segment, two numbers a segment, "
        "added in float64; what was in total before does not count",
        inputs="parameter gradient total!:float64",
        outputs="",
        shapes=nothing,
        flops=per_element("parameter", 4),
        attributes={"segments": REQUIRED},
    ),
)
