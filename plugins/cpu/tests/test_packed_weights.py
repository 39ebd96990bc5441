"""Inner products of a few samples with fixed weights in 12 bits. Not one bit of a weight is lost, and
sums are those of NumPy's products of the rounded numbers in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_problems import BFLOAT16, ask, near, rounded

import demitasse
from demitasse import PLAIN, Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_cpu.kernels import candidates, packed_weights
from demitasse_cpu.kernels.packed_weights import LAYOUT
from demitasse_cpu.onednn.inner_product import knows_pairs


@pytest.fixture(scope="module", autouse=True)
def a_processor_with_pairs() -> None:
    if not knows_pairs(ask("inner_product", [(8, 32), (32, 32)], (8, 32), {}, 1)):
        pytest.skip("this processor has no AVX512-BF16, or there is no oneDNN")


@pytest.fixture(scope="module", autouse=True)
def however_few_weights() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_weights, "FEWEST_WEIGHTS", 1)
        yield


def pack(w: Any, threads: int = 1, given: Layout = PLAIN) -> Any:
    """Return packed weights, in memory that was full of garbage."""
    specs = TensorSpec(w.shape, "float32", given), TensorSpec(w.shape, "float32", LAYOUT)
    place = Place("test", threads=threads)
    request = Request(VOCABULARY["reorder"], specs[:1], specs[1:], {}, place, "bf16", True)
    (candidate,) = candidates(request)
    target = np.full(specs[1].physical, b"\xa5\xa5", "V2")
    candidate.bind([given.pack(w)], [target], scratch(candidate.workspace))()
    return target


def scratch(nbytes: int) -> Any:
    room = np.full(nbytes + 64, 255, np.uint8)
    return room[-room.ctypes.data % 64 :][:nbytes]


def unpack(kept: Any, shape: tuple[int, int]) -> tuple[Any, list[bool]]:
    """Return the bits of packed weights, following the description of their form, and whether each block
    is packed."""
    raw, (outputs, inputs) = np.ascontiguousarray(kept).view(np.uint8).reshape(-1), shape
    panels, blocks, found = -(-outputs // 32), -(-inputs // 256), list[bool]()
    bits = np.zeros((panels * 32, blocks * 256), np.uint16)
    for panel in range(panels):
        at = panel * blocks * 16384
        for block in range(blocks):
            head = raw[at : at + 64]
            found.append(int(head[:2].view(np.uint16)[0]) == 0xFFFF)
            if not found[-1]:
                words = raw[at : at + 16384].view(np.uint16).copy()
                at += 16384
            else:
                words, at = _unpack_block(raw, at, int(head[2:4].view(np.uint16)[0]))
            square = words.reshape(128, 32, 2)  # pairs of inputs, outputs, the two inputs of a pair
            rows, columns = slice(panel * 32, panel * 32 + 32), slice(block * 256, block * 256 + 256)
            bits[rows, columns] = square.transpose(1, 0, 2).reshape(32, 256)
    assert not bits[outputs:].any() and not bits[:, inputs:].any()
    return bits[:outputs, :inputs], found


def _unpack_block(raw: Any, at: int, others: int) -> tuple[Any, int]:
    upper, lowest = (raw[at + i : at + i + 16].astype(np.uint16) for i in (16, 32))
    lines = raw[at + 64 : at + 64 + 12288].reshape(64, 3, 64)
    fractions = lines[:, :2].reshape(128, 64).astype(np.uint16)
    halves = lines[:, 2].reshape(128, 32)
    codes = np.stack([halves & 15, halves >> 4], axis=2).reshape(128, 64)
    signs, fractions = fractions & 0x80, fractions & 0x7F
    words = (signs | upper[codes]) << 8 | lowest[codes] | fractions
    # Quarters with eight bytes of the first vector and eight of the second.
    words = words.reshape(128, 4, 2, 8).transpose(0, 2, 1, 3).reshape(-1)
    at += 64 + 12288
    listed = raw[at : at + 4 * others].view(np.uint16).reshape(-1, 2)
    assert not words[listed[:, 0]].any()
    words[listed[:, 0]] = listed[:, 1]
    return words, at + -(-4 * others // 64) * 64


WEIGHTS = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "of many sizes": lambda random, shape: (
        random.standard_normal(shape) * 2.0 ** random.integers(-20, 1, shape)
    ),
    "one large": lambda random, shape: np.where(
        np.arange(np.prod(shape)).reshape(shape) == 5, 1e20, random.standard_normal(shape)
    ),
    "pruned": lambda random, shape: random.standard_normal(shape) * (random.random(shape) < 0.1),
    "small": lambda random, shape: random.standard_normal(shape) * 1e-38,
    "of all bits": lambda random, shape: random.integers(0, 2**32, shape, np.uint32).view(np.float32),
    "zeros of both signs": lambda random, shape: np.where(random.random(shape) < 0.5, 0.0, -0.0),
}


@settings(max_examples=examples(60))
@given(
    kind=st.sampled_from(sorted(WEIGHTS)),
    outputs=st.sampled_from([1, 3, 31, 32, 33, 50, 97]),
    inputs=st.sampled_from([4, 20, 252, 256, 260, 512, 1000]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_not_a_bit_is_lost(kind: str, outputs: int, inputs: int, threads: int, seed: int) -> None:
    w = WEIGHTS[kind](np.random.default_rng(seed), (outputs, inputs)).astype(np.float32)
    bits, _ = unpack(pack(w, threads), w.shape)
    np.testing.assert_array_equal(bits, BFLOAT16.pack(w))


@pytest.mark.parametrize(
    ("kind", "is_packed"),
    [("normal", True), ("pruned", True), ("one large", False), ("of all bits", False)],
)
def test_usual_weights_take_three_quarters_of_the_bytes(kind: str, is_packed: bool) -> None:
    w = WEIGHTS[kind](np.random.default_rng(1), (32, 256)).astype(np.float32)
    assert unpack(pack(w), w.shape)[1] == [is_packed]


@pytest.mark.parametrize("count", [0, 1, 16, 17, 1007, 1008, 1009])
def test_others_are_listed_up_to_where_the_block_has_room(count: int) -> None:
    w = np.ones((32, 256), np.float32)
    w.reshape(-1)[np.random.default_rng(2).permutation(w.size)[:count]] = 2.0**-15
    bits, (is_packed,) = unpack(pack(w), w.shape)
    np.testing.assert_array_equal(bits, BFLOAT16.pack(w))
    assert is_packed == (count <= 1008)


def product(operands: list[Any], threads: int, relu: bool = False, fixed: bool = True) -> Any:
    """Return what the kernel computes in memory full of garbage, called twice."""
    x, w, *_ = operands
    name = "inner_product_relu" if relu else "inner_product"
    request = ask("inner_product", [each.shape for each in operands], (len(x), len(w)), {}, threads)
    operation = replace(request.operation, name=name)
    (candidate,) = packed_weights.forward(replace(request, operation=operation, fixed=fixed))
    layouts = candidate.input_layouts
    assert layouts[1] == LAYOUT
    sources = [BFLOAT16.pack(x), pack(w, threads), *operands[2:]]
    target = np.full((len(x), len(w)), 0xFFFF, np.uint16)
    work = candidate.bind(sources, [target], scratch(candidate.workspace))
    work()
    work()
    return BFLOAT16.unpack(target, target.shape)


@settings(max_examples=examples(60))
@given(
    kind=st.sampled_from(["normal", "of many sizes", "one large", "pruned", "small"]),
    samples=st.integers(1, 8),
    outputs=st.sampled_from([1, 3, 10, 20, 32, 50, 97, 160]),
    inputs=st.sampled_from([4, 20, 252, 256, 260, 512, 1000]),
    threads=st.integers(1, 3),
    bias=st.booleans(),
    relu=st.booleans(),
    seed=st.integers(0, 99),
)
def test_products_of_packed_weights(
    kind: str,
    samples: int,
    outputs: int,
    inputs: int,
    threads: int,
    bias: bool,
    relu: bool,
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    x, b = (random.standard_normal(n).astype(np.float32) for n in ((samples, inputs), outputs))
    w = WEIGHTS[kind](random, (outputs, inputs)).astype(np.float32)
    expected = rounded(x) @ rounded(w).T + (b if bias else 0)
    expected = np.maximum(expected, 0) if relu else expected
    size = np.abs(rounded(x)) @ np.abs(rounded(w)).T
    near(product([x, w, b] if bias else [x, w], threads, relu), expected, size)


def test_the_number_of_threads_and_of_samples_changes_no_bit() -> None:
    random = np.random.default_rng(4)
    x, w = (random.standard_normal(n).astype(np.float32) for n in ((8, 1000), (97, 1000)))
    w[:, 300:] *= 2.0 ** random.integers(-20, 1, (97, 700))
    whole = product([x, w], 1)
    assert whole.tobytes() == product([x, w], 3).tobytes()
    for i in range(8):
        assert product([x[i : i + 1], w], 2).tobytes() == whole[i : i + 1].tobytes()


@pytest.mark.parametrize("none", [np.nan, np.inf])
def test_weights_that_are_no_numbers_stay_so(none: float) -> None:
    x, w = np.ones((2, 300), np.float32), np.ones((40, 300), np.float32)
    w[7, 3] = none
    y = product([x, w], 2)
    assert not np.isfinite(y[:, 7]).any()
    assert np.isfinite(np.delete(y, 7, axis=1)).all()


def test_weights_that_lie_otherwise_are_packed_alike() -> None:
    """This is the layout that another layer uses which shares the parameter."""
    w = np.random.default_rng(3).standard_normal((64, 512)).astype(np.float32)
    w = BFLOAT16.unpack(BFLOAT16.pack(w), w.shape)
    for layout in (Layout("turned", (1, 0)), Layout("ab16b64a", blocks=((1, 16), (0, 64))), BFLOAT16):
        assert pack(w, 2, layout).tobytes() == pack(w, 2).tobytes()


def test_only_large_fixed_weights_of_few_samples_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    def offered(samples: int = 1, inputs: int = 512, **changes: Any) -> list[str]:
        shapes = [(samples, inputs), (512, inputs)]
        request = replace(ask("inner_product", shapes, (samples, 512), {}, 2), fixed=True)
        return [each.kernel for each in candidates(replace(request, **changes))]

    ours = [packed_weights.KERNEL]
    assert offered() == offered(samples=8) == ours
    assert ours[0] not in offered(samples=9)
    assert ours[0] not in offered(inputs=510)
    assert ours[0] not in offered(fixed=False)
    assert ours[0] not in offered(precision="f32")
    assert ours[0] not in offered(place=Place("test", simulated=True))
    monkeypatch.setattr(packed_weights, "FEWEST_WEIGHTS", 512 * 512 + 1)
    assert ours[0] not in offered()


NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 6 dim: 10 dim: 10 } } }
layer { name: "first" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {
  num_output: 70 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }
layer { name: "second" type: "InnerProduct" bottom: "y" top: "z" inner_product_param {
  num_output: 12 bias_term: false weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "last" type: "TanH" bottom: "z" top: "out" }
"""


def test_a_net_packs_its_weights_once(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    with demitasse.compose(plugins=["caffe", "training", "cpu", "reference"]) as runtime:
        net, plain = (runtime.net(path, precision=kind, seed=1) for kind in ("bf16", "f32"))
        for seed in range(3):
            x = np.random.default_rng(seed).standard_normal((1, 6, 10, 10)).astype(np.float32)
            (found,), (expected,) = (each.forward(x=x).values() for each in (net, plain))
            np.testing.assert_allclose(found, expected, rtol=0, atol=0.02)
        kernels = [each.kernel for each in net.plan.entries if each.operation.startswith("inner")]
        once = [each for each in net.plan.entries if each.kernel == kernels[0] and each.once]
    assert kernels[0] == packed_weights.KERNEL  # the second one has 70 inputs, not a multiple of four
    assert [(each.layer, each.operation) for each in once] == [("first", "reorder")]
