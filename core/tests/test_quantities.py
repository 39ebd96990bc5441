"""Numbers with units: how they are read, and that they print in the form in which they are read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import DescriptionError, Quantity


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("1 us", 1e-6, "s"),
        ("3 ns", 3e-9, "s"),
        ("0 s", 0, "s"),
        ("7 ms", 7e-3, "s"),
        ("64 KiB", 65536, "B"),
        ("8GiB", 8589934592, "B"),
        ("1.5 kB", 1500, "B"),
        ("12 GB/s", 12e9, "B/s"),
        ("56 Gbit/s", 7e9, "B/s"),
        ("11.6 GFLOP/s", 11.6e9, "FLOP/s"),
        ("3e3 TFLOP/s", 3e15, "FLOP/s"),
        ("2.5 GHz", 2.5e9, "Hz"),
    ],
)
def test_quantities_are_in_base_units(text: str, value: float, unit: str) -> None:
    assert Quantity.parse(text, "vendor") == Quantity(value, unit, "vendor")


@given(
    st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    st.sampled_from(["s", "B", "B/s", "FLOP/s", "Hz"]),
)
def test_a_printed_quantity_reads_as_the_same_number(value: float, unit: str) -> None:
    quantity = Quantity(value, unit, "measured")
    assert Quantity.parse(str(quantity), "paper") == quantity


@pytest.mark.parametrize("text", ["12 GB/s (paper)", "64 KiB (vendor)", "1 us (assumed)"])
def test_quantities_print_in_the_unit_that_makes_them_short(text: str) -> None:
    assert str(Quantity.parse(text)) == text


@pytest.mark.parametrize("given", [2, 2.5, None, ["2 GHz"]])
def test_a_quantity_that_is_no_text_is_refused_like_one_without_a_unit(given: Any) -> None:
    with pytest.raises(DescriptionError) as caught:
        Quantity.parse(given, unit="Hz", where="options.npu: clock = ")
    valid = "valid: a number above 0 with its unit, like '3 GHz'"
    assert str(caught.value) == f"options.npu: clock = {given!r} ({valid})"


@pytest.mark.parametrize(
    ("given", "unit", "meant"),
    [
        ("50 Gb/s (vendor)", "B/s", "Gbit/s"),  # as bytes it would be eight times as much
        ("100 Gbps", "B/s", "Gbit/s"),
        ("10 Gbits/s", "B/s", "Gbit/s"),
        ("12 GBps", "B/s", "GB/s"),
        ("96 gb", "B", "GB"),
        ("96 Gbit", "B", None),
        ("2,000 GFLOP/s", "FLOP/s", None),  # its unit is right
        ("6 x 21.3 GB/s", "B/s", None),
        ("1 \xb5s", "s", "us"),
    ],
)
def test_a_unit_that_is_suggested_is_the_one_that_was_meant(
    given: str, unit: str, meant: str | None
) -> None:
    with pytest.raises(DescriptionError) as caught:
        Quantity.parse(given, "vendor", unit)
    told = str(caught.value)
    assert f"; did you mean {meant!r}?" in told if meant else "did you mean" not in told
