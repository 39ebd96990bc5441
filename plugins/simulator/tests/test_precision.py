"""If something is costed as float32 although another precision was requested, this is reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import demitasse
from demitasse import Candidate, Layout, hookimpl
from demitasse_simulator.commands import simulate
from demitasse_simulator.program import Simulation
from demitasse_simulator.rates import INTENSE

NODE = """
[[level]]
name = "node"
memory = [{ space = "host", capacity = "1 GB", bandwidth = "10 GB/s", source = "assumed" }]
sustained = "50 GFLOP/s"
"""

SAMPLES = {"data": (1, 12, 12), "label": ()}
WIDE = {"layer.conv.convolution_param.kernel_size": 5, "layer.conv.convolution_param.num_output": 64}
"""Costed as a product: more than eight operations per byte."""


def simulated(solver: Path, hw: Path, precision: str, plugins: Any = None) -> Simulation:
    with demitasse.compose(hw, plugins) as runtime:
        found = runtime.simulate(solver, samples=SAMPLES, precision=precision, overrides=WIDE)
    assert isinstance(found, Simulation)
    return found


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_description_without_a_rate_gives_that_of_float32_and_says_so(
    precision: str, solver: Path, machine: Callable[[str], Path]
) -> None:
    plain, done = (simulated(solver, machine(NODE), each) for each in ("f32", precision))
    assert plain.notes == ()
    assert done.seconds == plain.seconds
    (note,) = done.notes
    assert note.startswith(f"precision {precision} falls back to f32: ")
    assert (
        f"the description has no rate for {precision}" in note
        and f'peak = {{ f32 = "...", {precision} = "..." }}' in note
    )
    assert ("no kernel chosen stores anything in 16 bits" in note) == (precision == "bf16")


def test_double_precision_at_float32s_peak_is_said_too(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    (note,) = simulated(solver, machine(NODE), "f64").notes
    assert note.startswith("precision f64 is costed as f32: the description has no rate for f64")


def offering(**about: Any) -> SimpleNamespace:
    """A plugin with kernels for everything, which are never called."""
    manifest = {"name": "stranger", "api": ">=0", "roles": {"kernels": {"priority": 9}}}
    return SimpleNamespace(
        manifest=manifest,
        kernels=hookimpl(lambda request: [Candidate("some", print, seconds=1e-6, **about)]),
    )


def test_kernels_that_say_what_they_take_in_float32_are_named(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    plugins = ["stranger", "caffe", "training", "reference", "simulator"]
    stranger = [offering(), *plugins[1:]]
    for precision in ("tf32", "bf16"):
        (note,) = simulated(solver, machine(NODE), precision, stranger).notes
        assert "kernels of stranger say what they take in float32" in note
        assert "no rate" not in note


def test_what_kernels_store_in_16_bits_is_not_denied(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    """A convolution that has it, on a machine whose peak is float32's."""
    half = Layout("bf16", stored="bfloat16")

    def convolution(request: Any) -> list[Candidate]:
        if request.operation.name != "convolution" or request.precision != "bf16":
            return []
        inputs = (half, *(Layout("plain"),) * (len(request.inputs) - 1))
        return [Candidate("some", print, input_layouts=inputs, output_layouts=(half,))]

    stranger = offering()
    stranger.kernels = hookimpl(convolution)
    given = [stranger, "caffe", "training", "reference", "simulator"]
    (note,) = simulated(solver, machine(NODE), "bf16", given).notes
    assert note.startswith("precision bf16 falls back to f32 except for what is stored in 16 bits: ")


def test_the_command_says_it_in_text_and_in_json(
    solver: Path, machine: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "s.json"
    given = [str(solver), "--hw", str(machine(NODE)), "--samples", "1x12x12", "--precision", "tf32"]
    given += [word for key, value in WIDE.items() for word in ("--set", f"{key}={value}")]
    result = CliRunner().invoke(simulate, [*given, "--json", str(out)], catch_exceptions=False)
    (note,) = json.loads(out.read_text())["notes"]
    assert note.startswith("precision tf32 falls back to f32: ")
    assert [line for line in result.stdout.splitlines() if "falls back" in line] == [f"note: {note}"]


RATES = NODE.replace('"50 GFLOP/s"', '{ f32 = "50 GFLOP/s", %s = "%s (vendor)", source = "paper" }')


@pytest.mark.parametrize("precision", ["tf32", "bf16", "f64"])
def test_products_are_costed_by_the_rate_of_their_precision(
    precision: str, solver: Path, machine: Callable[[str], Path]
) -> None:
    """Each operation takes the larger time of arithmetic and bytes. An operation that is not a product
    has float32's rate, except in f64, where this holds for none."""
    own, text = (20e9, "20 GFLOP/s") if precision == "f64" else (90e9, "90 GFLOP/s")
    done = simulated(solver, machine(RATES % (precision, text)), precision)
    products = 0
    for each in done.timeline:
        if "flops" not in each.facts:
            continue
        flops, moved = each.facts["flops"], each.facts["bytes"]
        is_product = flops > INTENSE * moved
        products += is_product
        rate = own if is_product or precision == "f64" else 50e9
        assert each.seconds == pytest.approx(max(flops / rate, moved / 10e9)), each.name
    assert products or precision == "f64"  # whose bytes are twice as many
    assert not [note for note in done.notes if "has no rate" in note]
    assert f"sustained {text} (vendor) in {precision} x 1 at level 'node'" in done.sources
    assert ("sustained 50 GFLOP/s (paper) x 1 at level 'node'" in done.sources) == (precision != "f64")


def test_what_is_sustained_in_a_precision_comes_before_its_peak(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    """The precision's own peak is preferred to the sustained rate in float32, which says nothing about
    it."""
    text = NODE + 'peak = { f32 = "100 GFLOP/s", tf32 = "90 GFLOP/s" }\n'
    bound = simulated(solver, machine(text), "tf32")
    assert any("by the peak 90 GFLOP/s (assumed) in tf32," in note for note in bound.notes)
    assert "sustained 50 GFLOP/s (assumed) x 1 at level 'node'" in bound.sources
    reached = text.replace('"50 GFLOP/s"', '{ f32 = "50 GFLOP/s", tf32 = "70 GFLOP/s" }')
    done = simulated(solver, machine(reached), "tf32")
    assert done.notes == ()
    assert "sustained 70 GFLOP/s (assumed) in tf32 x 1 at level 'node'" in done.sources
    assert done.seconds > bound.seconds
