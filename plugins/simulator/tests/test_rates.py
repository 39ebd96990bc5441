"""Rates: measurements are remembered by kind and size, and damaged files do no harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import demitasse
from demitasse import Candidate, Place, Request, TensorSpec
from demitasse_simulator.rates import Measured, Sample, Table, table_file
from demitasse_simulator.trials import Bench


def test_between_two_sizes_there_is_a_power_law_and_beyond_them_a_rate() -> None:
    table = Table(None)
    table.add("kind", Sample(0, 1000, 1e-3))
    table.add("kind", Sample(0, 1400, 1.4e-3))
    assert table.find("kind", 0, 1200) == pytest.approx(1.2e-3)
    assert table.find("kind", 0, 1000) == pytest.approx(1e-3)
    assert table.find("kind", 0, 800) == pytest.approx(0.8e-3)
    assert table.find("kind", 0, 10_000) is None
    assert table.find("other", 0, 1000) is None


@given(
    flops=st.floats(0, 1e12),
    moved=st.floats(1, 1e9),
    seconds=st.floats(1e-9, 1e2),
    scale=st.floats(0.7, 1.4),
)
def test_a_near_size_costs_about_as_much(
    flops: float, moved: float, seconds: float, scale: float
) -> None:
    table = Table(None)
    table.add("kind", Sample(flops, moved, seconds))
    found = table.find("kind", flops * scale, moved * scale)
    assert found is not None and seconds / 1.6 < found < seconds * 1.6


def test_what_was_measured_is_found_again_and_kept_beside_others() -> None:
    path = table_file()
    assert path is not None
    for kind in ("first", "second"):
        table = Table(path)
        table.add(kind, Sample(1, 2, 3))
        table.process["warm"] = 5.0
        table.save()
    again = Table(path)
    assert again.kinds == {"first": [Sample(1, 2, 3)], "second": [Sample(1, 2, 3)]}
    assert again.process == {"warm": 5.0}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 3}', '{"schema": 2, "fingerprint": "other", "kinds": {}}']
)
def test_a_file_that_cannot_be_used_is_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "samples.json"
    path.write_text(text)
    table = Table(path)
    assert table.kinds == {}
    table.add("kind", Sample(1, 2, 3))
    table.save()
    assert Table(path).kinds == {"kind": [Sample(1, 2, 3)]}


def test_a_folder_that_cannot_be_written_is_told_and_costs_no_prediction(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    table = Table(tmp_path / "plain" / "samples.json")
    table.add("kind", Sample(1, 2, 3))
    assert "cannot be saved in" in table.save()


def test_numbers_that_cannot_be_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    table = Table(path)
    table.add("kind", Sample(1, 2, 3))
    table.save()
    whole = path.read_text()
    for number in ("NaN", "-3", "9" * 400, "1e999"):
        path.write_text(whole.replace(" 3,", f" {number},"))
        assert Table(path).kinds == {}


class Host:
    """An allocator of NumPy arrays."""

    space, allocations, bytes = "host", 0, 0

    def allocate(self, nbytes: int) -> Host:
        self.nbytes, self._block = nbytes, np.zeros(nbytes, np.uint8)
        return self

    def view(self, offset: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self._block[offset : offset + size].view(dtype).reshape(shape)

    def close(self) -> None:
        """Do nothing."""


def test_the_quickest_call_counts_and_operands_hold_small_numbers() -> None:
    with demitasse.compose(plugins=["reference"]) as runtime:
        relu = runtime.vocabulary["relu"]
    spec = TensorSpec((4, 1000), "float32")
    request = Request(relu, (spec,), (spec,), {"negative_slope": 0.0}, Place("node"))
    seen: list[float] = []
    ticks = iter(np.arange(0, 1e6, 0.01))

    def bind(inputs: list[np.ndarray], outputs: list[np.ndarray], workspace: object) -> object:
        assert np.abs(inputs[0]).max() <= 1 and np.unique(inputs[0]).size > 1000
        return lambda: seen.append(1.0)

    bench = Bench(Host(), clock=lambda: float(next(ticks)))  # type: ignore[arg-type]
    assert bench.seconds(request, Candidate("made up", bind)) == pytest.approx(0.01)  # type: ignore[arg-type]
    assert 3 < len(seen) < 20


@pytest.mark.parametrize(
    ("word", "shape"),
    [("gather", (7,)), ("gather", (2, 3)), ("pooling_regions", (4, 5)), ("unpooling", (2, 3, 8, 8))],
)
def test_numbers_of_rows_and_of_regions_are_valid_ones(word: str, shape: tuple[int, ...]) -> None:
    """They are stored as floating point; a kernel raises for a number that is not a valid row or
    region."""
    with demitasse.compose(plugins=["caffe", "reference"]) as runtime:
        operation = runtime.vocabulary[word]
    x, numbers = TensorSpec((2, 3, 8, 8), "float32"), TensorSpec(shape, "float32")
    request = Request(operation, (x, numbers), (), {}, Place("node"))

    def bind(inputs: list[np.ndarray], outputs: list[np.ndarray], workspace: object) -> object:
        assert inputs[0].any() and not inputs[1].any()
        return lambda: None

    candidate = Candidate("made up", bind)  # type: ignore[arg-type]
    assert Bench(Host()).seconds(request, candidate) >= 0  # type: ignore[arg-type]


def test_what_a_thread_waited_for_a_core_is_no_part_of_a_call() -> None:
    with demitasse.compose(plugins=["reference"]) as runtime:
        relu = runtime.vocabulary["relu"]
    spec = TensorSpec((4, 10), "float32")
    request = Request(relu, (spec,), (spec,), {}, Place("node"))
    now, waited = [0.0], [0.0]

    def work() -> None:
        now[0] += 0.02
        waited[0] += 0.0125

    candidate = Candidate("made up", lambda inputs, outputs, workspace: work)
    bench = Bench(Host(), clock=lambda: now[0], waits=lambda: {"1": waited[0]})  # type: ignore[arg-type]
    assert bench.seconds(request, candidate) == pytest.approx(0.0075)
    assert bench.disturbed
    bench = Bench(Host(), clock=lambda: now[0], waits=dict)  # type: ignore[arg-type]
    assert bench.seconds(request, candidate) == pytest.approx(0.02)
    assert not bench.disturbed


def test_parts_of_a_gradient_are_each_followed_by_their_update() -> None:
    with demitasse.compose(plugins=["reference"]) as runtime:
        words = runtime.vocabulary
    dy, x, dw = (TensorSpec(shape, "float32") for shape in ((4, 8), (4, 6), (8, 6)))
    about = {"axis": 1, "transpose": False, "shape": (8, 6)}
    gradient = Request(
        words["inner_product_backward_weights"], (dy, x), (dw, None), about, Place("node")
    )
    flat, rate = TensorSpec((12,), "float32"), TensorSpec((1,), "float64")
    update = Request(words["momentum_update"], (flat, flat, flat, rate, None), (), {}, Place("node"))
    now, seen, places = [0.0], list[str](), list[tuple[int, int, int]]()

    def bind_part(number: int, inputs: Any, outputs: Any, workspace: Any) -> Any:
        assert [a.shape for a in inputs] == [(4, 8), (4, 6)] and outputs[0].shape == (12,)

        def work() -> None:
            seen.append(f"part {number}")
            now[0] += 0.02

        return work

    def bind(inputs: Any, outputs: Any, workspace: Any) -> Any:
        places.append(tuple(a.ctypes.data for a in inputs[:3]))

        def work() -> None:
            seen.append("update")
            now[0] += 0.005

        return work

    candidate = Candidate("bands", bind, parts=4, bind_part=bind_part)
    bench = Bench(Host(), clock=lambda: now[0], waits=dict)  # type: ignore[arg-type]
    found = bench.in_parts(gradient, candidate, update, Candidate("update", bind))
    assert found == pytest.approx((4 * 0.02, 4 * 0.005))
    assert seen[:4] == ["part 0", "update", "part 1", "update"]
    parameters, gradients, histories = zip(*places, strict=True)
    assert len(set(gradients)) == 1 and len({*parameters, *histories}) == 8


class Disturbed:
    """A bench whose machine is busy for the first calls."""

    def __init__(self, *seconds: float) -> None:
        self._seconds, self.disturbed = list(seconds), True

    def seconds(self, request: Request, candidate: Candidate) -> float:
        self.disturbed = len(self._seconds) > 1
        return self._seconds.pop(0)


def test_what_was_disturbed_is_taken_again_until_it_is_not() -> None:
    with demitasse.compose(plugins=["reference"]) as runtime:
        relu = runtime.vocabulary["relu"]
    spec = TensorSpec((4, 10), "float32")
    request = Request(relu, (spec,), (spec,), {}, Place("node"))
    candidate = Candidate("made up", lambda inputs, outputs, workspace: lambda: None)
    path = table_file()
    bench = Disturbed(5.0, 6.0, 2.0)
    rates = Measured(Table(path), bench, {})  # type: ignore[arg-type]
    assert rates.cost("p", candidate, request, 40, 320).seconds == 5.0
    assert rates.again()
    assert rates.cost("p", candidate, request, 40, 320).seconds == 5.0
    rates.table.save()
    later = Measured(Table(path), bench, {})  # type: ignore[arg-type]
    assert later.cost("p", candidate, request, 40, 320).seconds == 5.0
    assert later.again()
    assert later.cost("p", candidate, request, 40, 320).seconds == 2.0
    assert not later.again()
