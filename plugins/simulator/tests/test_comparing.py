"""``demitasse simulate`` for several numbers of nodes and machines: the same predictions side by
side."""

from __future__ import annotations

import itertools
import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import demitasse
from demitasse import CompositionError
from demitasse_simulator import comparing
from demitasse_simulator.commands import node_counts, simulate

CLUSTER = """
[[level]]
name = "node"
count = 8
workers = "mpi"
memory = [{ space = "host", capacity = "1 GB", bandwidth = "%s", source = "assumed" }]
peak = "100 GFLOP/s (assumed)"
link = { latency = "2 us", bandwidth = "1 GB/s", source = "assumed" }
sync = { plugin = "simulator", algorithm = "ring" }
"""
SVG = "{http://www.w3.org/2000/svg}"


def run(solver: Path, *words: object) -> Result:
    given = [str(word) for word in (solver, "--samples", "1x12x12", *words)]
    return CliRunner().invoke(simulate, given, catch_exceptions=False)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("64", (64,)),
        ("1,4,16", (1, 4, 16)),
        ("1..8", (1, 2, 4, 8)),
        ("3..20", (3, 6, 12, 20)),
        ("1, 2..8 ,8", (1, 2, 4, 8)),
        ("5..5", (5,)),
    ],
)
def test_numbers_of_nodes_are_lists_and_doublings(text: str, counts: tuple[int, ...]) -> None:
    assert node_counts(text) == counts


@pytest.mark.parametrize("text", ["", "0", "1..", "8..1", "-4", "a", "1-8", "1,,2", "1..2..4", "9" * 40])
def test_what_is_no_number_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"nodes|end"):
        node_counts(text)


@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_rows_are_the_single_predictions(
    solver: Path, machine: Callable[[str], Path], tmp_path: Path, scaling: str
) -> None:
    hw, path = machine(CLUSTER % "10 GB/s"), tmp_path / "s.json"
    done = run(solver, "--hw", hw, "--nodes", "1..8", "--scaling", scaling, "--json", path)
    assert done.exit_code == 0
    runs = json.loads(path.read_text())["runs"]
    assert [each["nodes"] for each in runs] == [1, 2, 4, 8]
    with demitasse.compose(hw) as runtime:
        for each in runs:
            alone = runtime.simulate(
                solver, nodes=each["nodes"], scaling=scaling, samples={"data": (1, 12, 12), "label": ()}
            )
            assert {**each, **alone.to_dict()} == each
    rates = [each["samples_per_second"] for each in runs]
    assert [each["speedup"] for each in runs] == pytest.approx([rate / rates[0] for rate in rates])
    share = [rate / rates[0] / each["nodes"] for rate, each in zip(rates, runs, strict=True)]
    assert [each["efficiency"] for each in runs] == pytest.approx(share)
    lines = done.stdout.splitlines()
    assert lines[2].split()[:2] == ["nodes", "batch"] and len(lines) == 7
    assert [line.split()[0] for line in lines[3:]] == ["1", "2", "4", "8"]
    assert f"{100 * share[3]:.1f}%" in lines[6] and f"{1e3 * runs[3]['seconds']:,.2f}" in lines[6]


def two(machine: Callable[[str], Path], tmp_path: Path) -> tuple[Path, Path]:
    """A machine, and one with another name and slower memory."""
    slow = machine(CLUSTER % "1 GB/s").rename(tmp_path / "slow.toml")
    slow.write_text(slow.read_text().replace("made-up", "<slow>"))
    return machine(CLUSTER % "10 GB/s"), slow


def test_each_machine_is_efficient_by_its_own_first_and_faster_than_the_first_of_all(
    solver: Path, machine: Callable[[str], Path], tmp_path: Path
) -> None:
    fast, slow = two(machine, tmp_path)
    done = run(solver, "--hw", fast, "--hw", slow, "--hw", fast, "--nodes", "1,4", "--json", "-")
    told = json.loads(done.stdout)
    runs = told["runs"]
    assert [each["machine"] for each in runs] == ["made-up", "made-up", "<slow>", "<slow>"]
    assert list(told["compositions"]) == ["made-up", "<slow>"]
    rates = [each["samples_per_second"] for each in runs]
    assert rates[2] < rates[0]
    assert [each["speedup"] for each in runs] == pytest.approx([rate / rates[0] for rate in rates])
    assert [each["efficiency"] for each in runs] == pytest.approx(
        [1.0, rates[1] / rates[0] / 4, 1.0, rates[3] / rates[2] / 4]
    )


def test_machines_of_one_name_are_told_apart_by_their_files(
    solver: Path, machine: Callable[[str], Path], tmp_path: Path
) -> None:
    fast, slow = two(machine, tmp_path)
    slow.write_text(slow.read_text().replace("<slow>", "made-up"))
    done = run(solver, "--hw", fast, "--hw", slow, "--nodes", 1, "--json", "-")
    assert [each["machine"] for each in json.loads(done.stdout)["runs"]] == [str(fast), str(slow)]


def test_the_picture_has_a_line_a_machine_and_a_bar_a_step(
    solver: Path, machine: Callable[[str], Path], tmp_path: Path
) -> None:
    fast, slow = two(machine, tmp_path)
    path, record = tmp_path / "p.svg", tmp_path / "p.json"
    run(solver, "--hw", fast, "--hw", slow, "--nodes", "1..4", "--picture", path, "--json", record)
    runs = json.loads(record.read_text())["runs"]
    svg = ET.fromstring(path.read_text())
    points = [
        [tuple(map(float, point.split(","))) for point in str(line.get("points")).split()]
        for line in svg.iter(f"{SVG}polyline")
    ]
    assert [len(line) for line in points] == [3, 3]
    # Logarithmic: equal steps across, and up as the rates' logarithms are.
    (x1, y1), (x2, y2), (x3, y3) = points[0]
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    rates = [each["samples_per_second"] for each in runs]
    assert (y1 - y2) / (y1 - y3) == pytest.approx(
        math.log(rates[1] / rates[0]) / math.log(rates[2] / rates[0]), abs=0.01
    )
    bars = [float(str(each.get("height"))) for each in svg.iter(f"{SVG}rect") if len(each)]
    assert len(bars) == 6 * 4
    for number, each in enumerate(runs):
        phases, mine = each["phases"], bars[4 * number : 4 * number + 4]
        assert mine[1] / mine[2] == pytest.approx(phases["forward"] / phases["backward"], rel=0.01)
        assert sum(mine) <= comparing.BARS - 16 + 0.1
    assert "<slow>" in [text.text for text in svg.iter(f"{SVG}text")]


def overlapping(svg: ET.Element) -> list[tuple[str, str]]:
    """Return the texts of a picture that cover each other. A letter is 5 wide or more, a line 9 high."""
    boxes = []
    for text in svg.iter(f"{SVG}text"):
        words = text.text or ""
        wide = 5 * len(words)
        before = {"middle": wide / 2, "end": wide}.get(text.get("text-anchor", ""), 0)
        boxes.append((words, float(text.get("x", "")) - before, float(text.get("y", "")), wide))
    return [
        (a, b)
        for (a, x, y, wide), (b, u, v, broad) in itertools.combinations(boxes, 2)
        if abs(y - v) < 9 and x < u + broad and u < x + wide
    ]


@pytest.mark.parametrize("nodes", ["1..8", "1,7,8", "8,7,1", "1,2,3,4,5,6,7,8"])
def test_no_two_texts_cover_each_other(
    solver: Path, machine: Callable[[str], Path], tmp_path: Path, nodes: str
) -> None:
    fast, slow = two(machine, tmp_path)
    slow.write_text(
        slow.read_text().replace("<slow>", "a machine whose name is longer than its bars " * 3)
    )
    path = tmp_path / "p.svg"
    run(solver, "--hw", fast, "--hw", slow, "--nodes", nodes, "--picture", path)
    svg = ET.fromstring(path.read_text())
    # Lines may cross; what is said of their points is then close.
    said = [pair for pair in overlapping(svg) if not all(words.endswith("%") for words in pair)]
    assert said == []
    wide = float(svg.get("width", ""))
    assert all(5 * len(text.text or "") < wide - 80 for text in svg.iter(f"{SVG}text"))
    for line in svg.iter(f"{SVG}polyline"):  # from left to right, in whatever order they are given
        across = [float(point.split(",")[0]) for point in str(line.get("points")).split()]
        assert across == sorted(across)


def test_machines_can_be_told_apart_without_colours() -> None:
    assert len({comparing._marked(number, 0, 0) for number in range(4)}) == 4


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ((30.0, 1e6), [1e2, 1e3, 1e4, 1e5, 1e6]),
        ((30.0, 700.0), [30.0, 100.0, 300.0]),
        ((31816.0, 31848.0), [31820.0, 31830.0, 31840.0]),
        ((5.0, 5.0), [5.0]),
    ],
)
def test_an_axis_has_round_numbers_however_short_it_is(
    ends: tuple[float, float], told: list[float]
) -> None:
    assert comparing._Logarithm(*ends, 0.0, 100.0).round_numbers() == told


def test_numbers_are_told_without_exponents_and_small_parts_are_not_nothing() -> None:
    assert [*map(comparing._four_digits, (51962.15, 1000.0, 3.14159))] == ["51,962", "1,000", "3.142"]
    assert [*map(comparing._percent, (0.997, 0.5, 0.0026, 0.000024))] == [
        "100%",
        "50%",
        "0.3%",
        "0.002%",
    ]


def test_without_several_numbers_of_nodes_there_are_bars_alone(
    solver: Path, machine: Callable[[str], Path], tmp_path: Path
) -> None:
    fast, slow = two(machine, tmp_path)
    path = tmp_path / "p.svg"
    run(solver, "--hw", fast, "--hw", slow, "--picture", path)
    svg = ET.fromstring(path.read_text())
    assert not list(svg.iter(f"{SVG}polyline"))
    assert len([each for each in svg.iter(f"{SVG}rect") if len(each)]) == 2 * 4


def test_more_nodes_than_a_machine_has_are_told_before_anything_is_predicted(
    solver: Path, machine: Callable[[str], Path], tmp_path: Path
) -> None:
    fast, slow = two(machine, tmp_path)
    slow.write_text(slow.read_text().replace("count = 8", "count = 2"))
    with pytest.raises(CompositionError, match=r"4 nodes of '<slow>' \(valid: 1 to 2"):
        run(solver, "--hw", fast, "--hw", slow, "--nodes", "1,4", "--picture", tmp_path / "p.svg")
    assert not (tmp_path / "p.svg").exists()


def test_what_is_known_is_kept_where_a_later_one_fails(
    solver: Path, machine: Callable[[str], Path], tmp_path: Path
) -> None:
    fast, slow = two(machine, tmp_path)
    slow.write_text(slow.read_text().replace('peak = "100 GFLOP/s (assumed)"\n', ""))
    record = tmp_path / "p.json"
    given: list[Any] = [solver, "--samples", "1x12x12", "--hw", fast, "--hw", slow, "--json", record]
    done = CliRunner().invoke(simulate, [*map(str, given), "--nodes", "1,2"])
    assert isinstance(done.exception, demitasse.DescriptionError) and "peak" in str(done.exception)
    assert [each["nodes"] for each in json.loads(record.read_text())["runs"]] == [1, 2]
    assert len(done.stdout.splitlines()) == 5


def test_numbers_of_nodes_that_a_batch_does_not_reach_are_told(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    small = ("--set", "layer.data.data_param.batch_size=4")
    done = run(solver, "--hw", machine(CLUSTER % "1 GB/s"), "--nodes", "1..8", *small)
    assert "demitasse: 8 nodes: 4 of the workers have no sample" in done.stderr
    assert "4 nodes: " not in done.stderr
    tiny = ("--set", "layer.data.data_param.batch_size=1")
    done = run(solver, "--hw", machine(CLUSTER % "1 GB/s"), "--nodes", "1..8", *tiny)
    assert done.stderr.count("have no sample") == 1 and "2 nodes: 1 of the workers" in done.stderr


def test_a_timeline_is_of_one_step(solver: Path, machine: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(CompositionError, match="--timeline shows one step"):
        run(solver, "--hw", machine(CLUSTER % "1 GB/s"), "--nodes", "1,2", "--timeline", tmp_path / "t")
