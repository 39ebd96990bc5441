"""Convolutions requested from a stand-in for cuDNN, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from cuda_on_cpu.driver import EmulatedDriver
from stand_in_cudnn import StandIn

from demitasse import Candidate, Place, Request, TensorSpec, Work
from demitasse.operations import VOCABULARY
from demitasse_gpu.array import empty
from demitasse_gpu.device import Device
from demitasse_gpu.libraries import convolutions, cudnn

GEOMETRIES = {
    "plain": {"stride": (1, 1), "pad": (0, 0), "dilation": (1, 1), "groups": 1},
    "all": {"stride": (2, 1), "pad": (2, 1), "dilation": (1, 2), "groups": 2},
}
TOLERANCE = {"f32": 1e-5, "tf32": 1e-5, "bf16": 2e-2}


def device_with(library: StandIn) -> Device:
    made = Device(EmulatedDriver())
    made.opened["cudnn"] = cudnn.Cudnn(made, library)
    return made


def request(name: str, inputs: Sequence[Any], told: dict[str, Any], precision: str) -> Request:
    word = VOCABULARY[name.removesuffix("_relu")]
    attributes = {**word.attributes, **told}
    specs = tuple(None if x is None else TensorSpec(x.shape, "float32") for x in inputs)
    names = [operand.name for operand in word.inputs]
    shapes = {n: None if x is None else x.shape for n, x in zip(names, specs, strict=False)}
    outputs = tuple(TensorSpec(tuple(s), "float32") for s in word.shapes(shapes, attributes))
    place = Place("gpu", "gpu")
    return Request(replace(word, name=name), specs, outputs, attributes, place, precision)


def bound(
    device: Device, asked: Request, inputs: Sequence[Any], candidate: Candidate | None = None
) -> tuple[Work, list[Any], list[Any]]:
    """Bind the candidate to operands packed as it asks for them. Return its work, and the specs and
    arrays of its outputs."""
    candidate = candidate or convolutions.candidates(asked)[0]
    given: list[Any] = []
    for x, layout in zip(inputs, candidate.input_layouts, strict=True):
        packed = None if x is None else layout.pack(x)
        given.append(None if packed is None else empty(device, packed.shape, packed.dtype))
        if packed is not None:
            given[-1][...] = packed
    specs = [
        replace(spec, layout=layout)
        for spec, layout in zip(asked.outputs, candidate.output_layouts, strict=False)
        if spec is not None
    ]
    made = [empty(device, spec.physical, spec.array_type) for spec in specs]
    # A plan's scratch memory is aligned to 64 bytes.
    room = empty(device, (candidate.workspace + 64,), "uint8")[64:]
    work = candidate.bind(given, made, room)
    return work, specs, made


def computed(device: Device, asked: Request, inputs: Sequence[Any]) -> list[np.ndarray]:
    """Return what the candidate computes, in logical order."""
    work, specs, made = bound(device, asked, inputs)
    for array in made:
        array[...] = 77
    work()
    return [s.layout.unpack(np.asarray(a), s.shape) for s, a in zip(specs, made, strict=True)]


def operands(groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    x, w, b = ((3, 4, 7, 6), (6, 4 // groups, 3, 2), (6,))
    return tuple(random.normal(size=shape).astype(np.float32) for shape in (x, w, b))  # type: ignore[return-value]


def geometry(told: dict[str, Any]) -> tuple[Any, Any, Any]:
    return told["stride"], told["pad"], told["dilation"]
