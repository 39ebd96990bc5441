"""Operands and attributes of those operations of the core that the gpu plugin serves."""

from __future__ import annotations

from agreement import Case, Values, hook, make_request, run
from kernel_cases import CASES, pooling

from demitasse.operations import VOCABULARY
from demitasse_gpu.kernels import FACTORIES


def _pooling_max_backward(v: Values) -> Case:
    """Indices are those of maxima, because our kernel looks for them in their windows."""
    x, attributes = pooling(v)
    request = make_request("pooling_max", [x], attributes, v.dtype)
    (reference,) = hook("reference")(request)
    _, y, argmax = run(reference, request, [x])
    return [v.real(*y.shape), argmax], {**attributes, "shape": x.shape}


SERVED = {name: case for name, case in CASES.items() if name in VOCABULARY and name in FACTORIES}
SERVED["pooling_max_backward"] = _pooling_max_backward
