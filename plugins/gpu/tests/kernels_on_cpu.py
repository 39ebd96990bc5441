"""Kernels of the gpu plugin on the emulated device, compared with the reference's on the same
request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from agreement import hook, make_request
from agreement import run as run_on_host

from demitasse import PLAIN, Candidate, Layout, Place, Request, TensorSpec
from demitasse_gpu.array import DeviceArray, empty
from demitasse_gpu.device import Device
from demitasse_gpu.kernels import candidates
from demitasse_gpu.kernels.layouts import NHWC

GPU = Place("device", space="gpu")
TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "bf16": 2**-7}
"""Relative to each number and to the largest: what rounding explains. bfloat16 has 8 bits; its inputs
are rounded before either computes."""

_GUARD = 256
_MARK = 0xA5


def request_of(
    name: str, inputs: Sequence[Any], attributes: dict[str, Any], dtype: str, order: tuple[int, ...] = ()
) -> Request:
    """Return the request that a plan makes on a device. ``dtype`` is float32, float64 or bf16 (a
    precision); images have their dimensions in ``order``."""
    halved = dtype == "bf16"
    request = make_request(name, list(inputs), attributes, "float32" if halved else dtype)
    layout = Layout("NHWC", order) if order else PLAIN
    lying = tuple(
        replace(s, layout=layout) if s is not None and len(s.shape) == 4 else s for s in request.inputs
    )
    return replace(request, inputs=lying, place=GPU, precision="bf16" if halved else "f32")


class Guarded:
    """An array in device memory between bytes that must not change."""

    def __init__(self, device: Device, spec: TensorSpec, values: Any = None) -> None:
        self._room = empty(device, (spec.nbytes + 2 * _GUARD,), "uint8")
        marks = np.full(spec.nbytes + 2 * _GUARD, _MARK, np.uint8)
        self._room[...] = marks
        part = self._room[_GUARD : _GUARD + spec.nbytes]
        self.array: DeviceArray = part.view(spec.array_type).reshape(spec.physical)
        if values is not None:
            self.array[...] = np.reshape(values, spec.physical)

    @property
    def intact(self) -> bool:
        """Whether nothing outside the array was written."""
        host = np.asarray(self._room)
        return bool((host[:_GUARD] == _MARK).all() and (host[len(host) - _GUARD :] == _MARK).all())


def bound(device: Device, candidate: Candidate, inputs: Sequence[Any]) -> tuple[list[Any], Any]:
    """Return device arrays with a candidate's inputs in its layouts, and its scratch memory."""
    arrays = []
    for x in inputs:
        arrays.append(empty(device, x.shape, x.dtype))
        arrays[-1][...] = x
    return arrays, empty(device, (max(1, candidate.workspace),), "uint8")


def run(device: Device, candidate: Candidate, request: Request, inputs: Sequence[Any]) -> list[Any]:
    """Return what a candidate leaves in the inputs and outputs, in logical order."""
    taken = candidate.input_layouts or (PLAIN,) * len(inputs)
    made = candidate.output_layouts or (PLAIN,) * len(request.outputs)
    specs = [
        spec and replace(spec, layout=layout)
        for operands, layouts in ((request.inputs, taken), (request.outputs, made))
        for spec, layout in zip(operands, layouts, strict=True)
    ]
    packed = [None if x is None else layout.pack(x) for x, layout in zip(inputs, taken, strict=True)]
    packed += [None] * len(request.outputs)
    guarded = [
        None if spec is None else Guarded(device, spec, values)
        for spec, values in zip(specs, packed, strict=True)
    ]
    arrays = [None if each is None else each.array for each in guarded]
    scratch = None
    if candidate.workspace:
        scratch = Guarded(device, TensorSpec((candidate.workspace,), "uint8"))
    work = candidate.bind(
        arrays[: len(inputs)], arrays[len(inputs) :], None if scratch is None else scratch.array
    )
    work()
    assert all(each is None or each.intact for each in (*guarded, scratch)), "written beside an array"
    return [
        None if spec is None else spec.layout.unpack(np.asarray(array), spec.shape)
        for spec, array in zip(specs, arrays, strict=True)
    ]


def rounded(candidate: Candidate, inputs: Sequence[Any]) -> list[Any]:
    """Return inputs as the candidate's layouts store them."""
    taken = candidate.input_layouts or (PLAIN,) * len(inputs)
    return [
        x if x is None or layout.stored != "bfloat16" else _as_stored(layout, x)
        for x, layout in zip(inputs, taken, strict=True)
    ]


def _as_stored(layout: Layout, x: Any) -> Any:
    return np.ascontiguousarray(layout.unpack(layout.pack(x), x.shape))


def check(
    device: Device,
    name: str,
    inputs: Sequence[Any],
    attributes: dict[str, Any],
    dtype: str,
    order: tuple[int, ...] = (),
    within: float | None = None,
    without: Sequence[int] = (),
) -> None:
    """Check that all of our kernels leave what the reference's does, except for rounding, and write
    nowhere else. ``without`` are the positions of unwanted outputs."""
    request = request_of(name, inputs, attributes, dtype, order)
    some = tuple(None if i in without else s for i, s in enumerate(request.outputs))
    request = replace(request, outputs=some)
    found = list(candidates(request))
    assert found, f"nothing is offered for {name}"
    within = TOLERANCE[dtype] if within is None else within
    for candidate in found:
        given = rounded(candidate, inputs)
        plain = replace(make_request(name, given, attributes, _real(dtype)), outputs=some)
        (reference,) = hook("reference")(plain)
        expected = run_on_host(reference, plain, given)
        for ours, theirs in zip(run(device, candidate, request, given), expected, strict=True):
            if ours is None or theirs is None:
                continue
            scale = max(1.0, float(np.abs(theirs.astype(np.float64)).max(initial=0.0)))
            np.testing.assert_allclose(ours, theirs, rtol=within, atol=within * scale)


def _real(dtype: str) -> str:
    return "float32" if dtype == "bf16" else dtype


ORDERS = ((), NHWC.order)


def innermost(device: Device, values: np.ndarray) -> DeviceArray:
    """Return images or filters on a device, in float32 with channels innermost."""
    lying = np.ascontiguousarray(values.transpose(0, 2, 3, 1)).astype(np.float32)
    made = empty(device, lying.shape, "float32")
    made[...] = lying
    return made
