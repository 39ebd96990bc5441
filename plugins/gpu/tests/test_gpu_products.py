"""The requests to cuBLASLt: column-major matrices, transposes, epilogues. A stand-in executes them."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cuda_on_cpu.driver import EmulatedDriver
from stand_in_cublaslt import StandInBlas

from demitasse import Place, PlanError, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_gpu.array import empty
from demitasse_gpu.device import Device
from demitasse_gpu.libraries import cublaslt, products

GPU = Place("gpu", "gpu")


@pytest.fixture
def device() -> Device:
    made = Device(EmulatedDriver())
    made.opened["cublasLt"] = cublaslt.CublasLt(made, StandInBlas())
    return made


def request(name: str, inputs: Sequence[Any], attributes: dict[str, Any], **about: Any) -> Request:
    word = VOCABULARY[name.removesuffix("_relu")]
    if name.endswith("_relu"):
        from dataclasses import replace

        word = replace(word, name=name)
    given = {**word.attributes, **attributes}
    specs = tuple(None if x is None else TensorSpec(x.shape, str(x.dtype)) for x in inputs)
    names = [operand.name for operand in word.inputs]
    shapes = word.shapes(
        {n: x if x is None else x.shape for n, x in zip(names, specs, strict=False)}, given
    )
    outputs = tuple(TensorSpec(tuple(shape), str(inputs[0].dtype)) for shape in shapes)
    return Request(word, specs, outputs, given, GPU, **about)


def computed(device: Device, asked: Request, inputs: Sequence[Any]) -> list[np.ndarray]:
    (candidate,) = products.candidates(asked)
    given = []
    for x in inputs:
        given.append(None if x is None else empty(device, x.shape, x.dtype))
        if x is not None:
            given[-1][...] = x
    made = [empty(device, spec.shape, spec.dtype) for spec in asked.outputs if spec is not None]
    work = candidate.bind(given, made, empty(device, (candidate.workspace,), "uint8"))
    for array in made:
        array[...] = 99
    work()
    return [np.asarray(array) for array in made]


def values(*extents: int) -> list[np.ndarray]:
    """Return two matrices, of which the second has as many rows as the first has columns."""
    draw = np.random.default_rng(3).normal
    return [draw(size=pair).astype(np.float32) for pair in itertools.pairwise(extents)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", ["inner_product", "inner_product_relu"])
def test_forward(device: Device, name: str, bias: bool, transpose: bool, dtype: str) -> None:
    random = np.random.default_rng(1)
    x, w = random.normal(size=(7, 3, 4)).astype(dtype), random.normal(size=(5, 12)).astype(dtype)
    b = random.normal(size=5).astype(dtype) if bias else None
    expected = x.reshape(7, 12) @ w.T + (0 if b is None else b)
    expected = np.maximum(expected, 0) if name.endswith("relu") else expected
    given = [x, np.ascontiguousarray(w.T) if transpose else w, b]
    (y,) = computed(device, request(name, given, {"transpose": transpose}), given)
    assert np.allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("axis", [1, 2])
def test_gradients(device: Device, axis: int, transpose: bool) -> None:
    random = np.random.default_rng(2)
    x = random.normal(size=(6, 3, 4)).astype(np.float32)
    rows, inputs = (6, 12) if axis == 1 else (18, 4)
    w = random.normal(size=(5, inputs)).astype(np.float32)
    dy = random.normal(size=(*x.shape[:axis], 5)).astype(np.float32)
    flat, slope = x.reshape(rows, inputs), dy.reshape(rows, 5)
    stored = np.ascontiguousarray(w.T) if transpose else w
    about = {"axis": axis, "transpose": transpose}
    asked = request("inner_product_backward_data", [dy, stored], {**about, "shape": x.shape})
    (dx,) = computed(device, asked, [dy, stored])
    assert np.allclose(dx.reshape(rows, inputs), slope @ w, atol=1e-5)
    asked = request("inner_product_backward_weights", [dy, x], {**about, "shape": stored.shape})
    dw, db = computed(device, asked, [dy, x])
    assert np.allclose(dw.T if transpose else dw, slope.T @ flat, atol=1e-5)
    assert np.allclose(db, slope.sum(0), atol=1e-5)


def test_precisions_choose_how_products_are_computed(device: Device) -> None:
    x, w = np.ones((4, 8), np.float32), np.ones((2, 8), np.float32)
    for precision, stored in (("f32", ""), ("tf32", ""), ("bf16", "bfloat16")):
        asked = request("inner_product", [x, w, None], {}, precision=precision)
        (candidate,) = products.candidates(asked)
        assert candidate.kernel == f"cublasLt {precision}"
        assert {layout.stored for layout in candidate.input_layouts} == {stored}
    assert cublaslt.COMPUTE == {"f32": 68, "tf32": 77, "f64": 70}


def test_a_product_is_measured_once(device: Device) -> None:
    library: StandInBlas = device.opened["cublasLt"]._library
    x, w = np.ones((4, 8), np.float32), np.ones((2, 8), np.float32)
    asked = request("inner_product", [x, w, None], {})
    for _ in range(3):
        computed(device, asked, [x, w, None])
    assert library.products == 3  # only one algorithm is usable, and it is not measured


@pytest.mark.parametrize("fails", [False, True])
def test_what_described_a_product_goes_with_it(device: Device, fails: bool) -> None:
    library: StandInBlas = device.opened["cublasLt"]._library
    before = dict(library.made)
    x, w = np.ones((4, 8), np.float32), np.ones((2, 8), np.float32)
    asked = request("inner_product", [x, w, None], {})
    if fails:
        library.failing["cublasLtMatmulAlgoGetHeuristic"] = 15
        with pytest.raises(PlanError, match="not supported"):
            computed(device, asked, [x, w, None])
    else:
        computed(device, asked, [x, w, None])
    gc.collect()
    assert library.made == before


def test_the_library_is_told_how_memory_is_aligned(device: Device) -> None:
    asked = request("inner_product_backward_data", values(6, 5, 3), {"shape": (6, 3)})
    (candidate,) = products.candidates(asked)
    room = empty(device, (10_000,), "float32")
    room = room[-room.address % 512 // 4 :]
    dy, w, dx = (room[at : at + size] for at, size in ((16, 30), (64, 15), (1028, 18)))
    candidate.bind([dy, w], [dx], empty(device, (candidate.workspace,), "uint8"))
    library = device.opened["cublasLt"]._library
    assert library.aligned == [[256, 64, 16, 16]]  # a, b, c and d


def test_where_it_has_no_epilogue_a_kernel_of_our_own_adds_the_bias(device: Device) -> None:
    device.opened["cublasLt"]._library.plain = True
    x, w = values(6, 5, 3)[0], np.random.default_rng(4).normal(size=(4, 5)).astype(np.float32)
    b = np.arange(4, dtype=np.float32) - 2
    asked = request("inner_product_relu", [x, w, b], {})
    (y,) = computed(device, asked, [x, w, b])
    assert np.allclose(y, np.maximum(x @ w.T + b, 0), rtol=1e-5)


def test_what_it_does_not_compute_is_left_to_others() -> None:
    whole = np.ones((4, 8), np.int32)
    assert products.candidates(request("inner_product", [whole, whole[:2], None], {})) == []
    assert products.candidates(request("relu", [np.ones((4, 8), np.float32)], {})) == []


def test_what_fails_is_said_in_words() -> None:
    device = Device(EmulatedDriver())
    with pytest.raises(PlanError, match=r"^gpu:0: cublasLtCreate: it is not initialised$"):
        cublaslt.CublasLt(device, StandInBlas({"cublasLtCreate": 1}))
    with pytest.raises(MemoryError, match="use a smaller batch"):
        cublaslt.CublasLt(device, StandInBlas({"cublasLtCreate": 3}))
