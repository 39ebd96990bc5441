"""The described rates of some operations are used for these operations, and for no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import demitasse
from demitasse import (
    Candidate,
    Level,
    Machine,
    MemorySpace,
    Place,
    Quantity,
    Rate,
    RatedOperation,
    Request,
    TensorSpec,
)
from demitasse.operations import VOCABULARY, define
from demitasse_simulator.operation_rates import OperationRates
from demitasse_simulator.program import Simulation
from demitasse_simulator.roofline import Roofline

LEVEL = """
[[level]]
name = "node"
memory = [{ space = "host", capacity = "1 GB", bandwidth = "1 PB/s", source = "assumed" }]

[level.sustained]
f32 = "50 GFLOP/s"
bf16 = "90 GFLOP/s"

[level.sustained.operations]
"""
"""A level whose memory is so fast that only arithmetic counts."""

GIVEN = """
convolution = { f32 = "4 GFLOP/s", bf16 = "7 GFLOP/s" }
convolution_backward_weights = "2 GFLOP/s"
pooling_max = "1 GFLOP/s (measured)"
"""
NO_RATE = "the description has no rate for bf16"
SAMPLES = {"data": (1, 12, 12), "label": ()}


def simulated(solver: Path, hw: Path, precision: str = "f32") -> Simulation:
    with demitasse.compose(hw) as runtime:
        found = runtime.simulate(solver, samples=SAMPLES, precision=precision)
    assert isinstance(found, Simulation)
    return found


def rates(done: Simulation) -> dict[tuple[str, str], float]:
    """Return the GFLOP/s by which the operations of layers and phases were costed."""
    costed = [each for each in done.timeline if each.facts.get("flops") and each.source == "roofline"]
    return {(each.name, each.phase): each.facts["flops"] / each.seconds / 1e9 for each in costed}


def test_an_operation_is_costed_by_its_own_rate_and_others_by_that_of_all(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    done = simulated(solver, machine(LEVEL + GIVEN))
    found = rates(done)
    assert done.notes == ()
    assert found["conv", "forward"] == pytest.approx(4)
    assert found["conv", "backward"] == pytest.approx(2)  # the data have no gradient
    assert found["pool", "forward"] == found["pool", "backward"] == pytest.approx(1)
    assert found["ip", "forward"] == found["loss", "forward"] == pytest.approx(50)
    (line,) = [line for line in done.sources if "convolution" in line]
    assert line == (
        "sustained 4 GFLOP/s (assumed) of convolution, 1 GFLOP/s (measured) of pooling_max, 2 GFLOP/s "
        "(assumed) of convolution_backward_weights x 1 at level 'node'"
    )


def test_an_operations_rate_in_a_precision_is_its_own_or_that_of_all(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    """A product without a rate of its own in the precision has the rate of all products; an operation
    that is not a product has its own rate."""
    wide = {"layer.conv.convolution_param.kernel_size": 5, "layer.conv.convolution_param.num_output": 64}
    with demitasse.compose(machine(LEVEL + GIVEN)) as runtime:
        done = runtime.simulate(solver, samples=SAMPLES, precision="bf16", overrides=wide)
    found = rates(done)
    assert found["conv", "forward"] == pytest.approx(7)
    assert found["conv", "backward"] == pytest.approx(90)
    assert found["pool", "forward"] == pytest.approx(1)
    assert not [note for note in done.notes if NO_RATE in note]


def test_a_rate_in_the_runs_precision_is_of_what_is_no_product_too(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    pooled = 'pooling_max = { f32 = "1 GFLOP/s", bf16 = "3 GFLOP/s" }\n'
    done = simulated(solver, machine(LEVEL + pooled), "bf16")
    assert rates(done)["pool", "forward"] == rates(done)["pool", "backward"] == pytest.approx(3)
    assert not [note for note in done.notes if NO_RATE in note]
    plain = simulated(solver, machine(LEVEL.replace('bf16 = "90 GFLOP/s"', "") + pooled), "bf16")
    assert rates(plain)["pool", "forward"] == pytest.approx(3)


def test_what_is_double_goes_by_no_rate_of_single_precision() -> None:
    """In a run in float32, some operations, such as sums, may be in float64."""
    single, double = Quantity(8e9, "FLOP/s"), {"f64": Quantity(2e9, "FLOP/s")}
    known = {"relu": Rate(*vars(single).values(), double), "softmax": single}
    level = Level(
        "node",
        memory=(MemorySpace("host", bandwidth=Quantity(1e15, "B/s")),),
        sustained=Rate(4e9, "FLOP/s", others={"f64": Quantity(1e9, "FLOP/s")}, operations=known),
    )
    roofline = Roofline(Machine("m", (level,)), Place("node"), {})

    def seconds(name: str, dtype: str) -> float:
        x = TensorSpec((1000,), dtype)
        request = Request(VOCABULARY[name], (x,), (x,), {}, Place("node"))
        return roofline.cost("", Candidate("k", lambda *given: lambda: None), request, 8e9, 1.0).seconds

    assert seconds("relu", "float32") == pytest.approx(1)
    assert seconds("relu", "float64") == pytest.approx(4)
    assert seconds("softmax", "float64") == pytest.approx(8)
    assert not roofline.fallen_back


def test_where_no_rate_is_of_the_precision_an_operations_own_is_taken(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    plain = (LEVEL + GIVEN).replace('bf16 = "90 GFLOP/s"', "").replace(', bf16 = "7 GFLOP/s"', "")
    wide = {"layer.conv.convolution_param.kernel_size": 5, "layer.conv.convolution_param.num_output": 64}
    with demitasse.compose(machine(plain)) as runtime:
        done = runtime.simulate(solver, samples=SAMPLES, precision="bf16", overrides=wide)
    found = rates(done)
    assert found["conv", "forward"] == pytest.approx(4)
    assert found["conv", "backward"] == pytest.approx(2)
    assert [note for note in done.notes if NO_RATE in note]


def test_a_rate_that_is_of_no_operation_is_told(solver: Path, machine: Callable[[str], Path]) -> None:
    path = machine(LEVEL + 'convolutoin = "1 GFLOP/s"\n"convolution 3x3" = "4 GFLOP/s"\n')
    (note,) = simulated(solver, path).notes
    told = "the rate of 'convolutoin' belongs to no composed operation; did you mean 'convolution'?"
    assert note == f"{path}:6: {told}"
    assert rates(simulated(solver, path))["conv", "forward"] == pytest.approx(4)


def asked(name: str, filters: Sequence[int] = (), *, gradient: bool = False) -> Request:
    """Return a request of the named operation with such filters, or for their gradient."""
    about = {"shape": tuple(filters)} if gradient else {}
    operation = define(
        "test", name, "", "dy x" if gradient else "x w?", "dw" if gradient else "y", lambda s, a: ()
    )
    w = TensorSpec(tuple(filters), "float32") if filters and not gradient else None
    return Request(operation, (None, w), (), about, Place("node"))


CHOICES = [
    (["convolution", "convolution_backward_data"], "convolution_backward_data", (8, 4, 3, 3), 1),
    (["convolution", "convolution_backward_data"], "convolution_relu", (8, 4, 3, 3), 0),
    (["convolution"], "convolutional", (8, 4, 3, 3), None),
    (["convolution_relu"], "convolution", (8, 4, 3, 3), None),
    (["convolution", "convolution 3x3", "convolution 1x1"], "convolution", (8, 4, 3, 3), 1),
    (["convolution", "convolution 3x3", "convolution 1x1"], "convolution", (8, 4, 5, 5), 0),
    (["convolution", "convolution 3x3"], "convolution", (8, 4, 4, 4), 0),
    (["convolution of 4", "convolution_backward_data"], "convolution_backward_data", (8, 3, 3, 3), 1),
    (["convolution 3x3", "convolution 7x7"], "convolution", (8, 4, 6, 6), 1),
    (["convolution 3x3", "convolution 1x1"], "convolution", (8, 4, 1, 7), 0),
    (
        ["convolution 3x3", "convolution 3x3 of 4", "convolution 3x3 of 1"],
        "convolution",
        (8, 5, 3, 3),
        0,
    ),
    (
        ["convolution 3x3", "convolution 3x3 of 4", "convolution 3x3 of 1"],
        "convolution",
        (8, 4, 3, 3),
        1,
    ),
    (
        ["convolution 3x3", "convolution 3x3 of 4", "convolution 3x3 of 1"],
        "convolution",
        (8, 1, 3, 3),
        2,
    ),
    (["convolution 3x3 of 1", "convolution 7x7 of 4"], "convolution", (8, 1, 7, 7), 0),
    (["convolution 3x3 of 4"], "convolution", (8, 5, 3, 3), None),
    (["convolution of 4", "convolution 5x5"], "convolution", (8, 3, 5, 5), 0),
    (["convolution 3x3x3", "convolution 3x3"], "convolution", (8, 3, 3, 3, 3), 0),
    (["inner_product 3x3", "inner_product of 4"], "inner_product", (8, 3), None),
    (["inner_product"], "inner_product_relu", (8, 3), 0),
    ([], "convolution", (8, 3, 3, 3), None),
]


@pytest.mark.parametrize(("names", "operation", "filters", "expected"), CHOICES)
def test_the_nearest_rate_is_taken(
    names: list[str], operation: str, filters: tuple[int, ...], expected: int | None
) -> None:
    known = {name: Quantity(1 + i, "FLOP/s") for i, name in enumerate(names)}
    for order in (list(known), list(reversed(known))):
        found = OperationRates(Rate(9, "FLOP/s", operations={name: known[name] for name in order}))
        for gradient in (False, True):
            which = found.find(asked(operation, filters, gradient=gradient))
            assert (None if which is None else str(which)) == (
                None if expected is None else names[expected]
            )
            assert which is None or found[which] == known[str(which)]


@given(
    st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True),
    st.lists(st.integers(1, 99), max_size=3),
    st.none() | st.integers(1, 4096),
)
def test_what_a_rate_is_of_is_read_as_it_prints(
    name: str, window: list[int], channels: int | None
) -> None:
    rated = RatedOperation(name, tuple(window), channels)
    assert RatedOperation.parse(str(rated)) == rated
