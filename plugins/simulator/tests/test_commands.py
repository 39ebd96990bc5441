"""``demitasse simulate`` and ``demitasse reproduce``: what they print and write."""

from __future__ import annotations

import json
import math
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from demitasse import CompositionError, ModelError, PluginError, load_machine
from demitasse_simulator import commands, drawing, papers, report, scalability
from demitasse_simulator.commands import _Progress, reproduce, shapes, simulate
from demitasse_simulator.happenings import Happening

NODE = """
[[level]]
name = "node"
memory = [{ space = "host", capacity = "1 GB", bandwidth = "10 GB/s", source = "assumed" }]
peak = "100 GFLOP/s"
"""


def run(command: Any, *words: object) -> Any:
    done = CliRunner().invoke(command, [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def test_simulate_prints_a_table_and_writes_what_is_asked_for(
    solver: Path, machine: Callable[[str], Path], tmp_path: Path
) -> None:
    files = {name: tmp_path / name for name in ("a.json", "a.trace", "a.svg")}
    done = run(
        simulate, solver, "--hw", machine(NODE), "--samples", "1x12x12",
        "--json", files["a.json"], "--timeline", files["a.trace"], "--picture", files["a.svg"],
    )  # fmt: skip
    text = done.output
    for part in ("small on made-up: 1 worker, batch 16", "simulated", "samples/s", "the batch fits in",
                 "peak 100 GFLOP/s (assumed)"):  # fmt: skip
        assert part in text
    told = json.loads(files["a.json"].read_text())
    assert told["source"] == "simulated" and told["batch"] == 16 and told["fits"] is True
    assert told["samples_per_second"] == pytest.approx(16 / told["seconds"])
    assert sum(told["phases"].values()) == pytest.approx(told["seconds"])
    layers = {(row["layer"], row["phase"]) for row in told["layers"]}
    assert {("conv", "forward"), ("conv", "backward"), ("ip", "forward")} <= layers
    assert told["composition"]["machine"] == "made-up"
    svg = ET.fromstring(files["a.svg"].read_text())
    assert svg.tag.endswith("svg") and len(svg) > 10


def test_options_reach_the_plugins_as_they_do_in_a_training(
    solver: Path, machine: Callable[[str], Path], tmp_path: Path
) -> None:
    """An option sets the cost of kernels of a machine that is only described."""
    plugins = ["--plugins", "null,caffe,training,reference,simulator"]
    asked = [simulate, solver, "--hw", machine(NODE), "--samples", "1x12x12", *plugins]
    seconds = []
    for rate in ("1 GFLOP/s", "2 GFLOP/s"):
        run(*asked, "--option", f"null.peak={rate}", "--json", tmp_path / "told.json")
        ours = json.loads((tmp_path / "told.json").read_text())["layers"]
        seconds.append({row["layer"]: row["seconds"] for row in ours if row["phase"] == "forward"})
    assert seconds[0]["conv"] == pytest.approx(2 * seconds[1]["conv"])
    with pytest.raises(
        CompositionError, match=r"options\.null: unknown option 'paek'; did you mean 'peak'"
    ):
        run(*asked, "--option", "null.paek=1")
    done = CliRunner().invoke(simulate, [str(solver), "--option", "peak=1"])
    assert done.exit_code == 2 and "'peak=1' is not PLUGIN.KEY=VALUE" in done.output


def test_the_trace_is_what_chrome_reads(
    solver: Path, machine: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "step.json"
    run(simulate, solver, "--hw", machine(NODE), "--samples", "1x12x12", "--timeline", path)
    told = json.loads(path.read_text())
    assert told["displayTimeUnit"] == "ms"
    events = [event for event in told["traceEvents"] if event["ph"] == "X"]
    named = {e["tid"] for e in told["traceEvents"] if e["name"] == "thread_name"}
    for event in events:
        assert event["ts"] >= 0 and event["dur"] > 0 and event["tid"] in named
        assert event["cat"] in ("read", "forward", "backward", "synchronise")
        assert event["args"]["time"].startswith("simulated, ")
    by_row = sorted((e for e in events if e["tid"] == 1), key=lambda e: e["ts"])
    # In whole nanoseconds, as Perfetto reads times; it omits events that overlap.
    ends = [(round(e["ts"] * 1e3), round((e["ts"] + e["dur"]) * 1e3)) for e in by_row]
    assert all(stop <= start for (_, stop), (start, _) in pairwise(ends))


def test_neighbours_in_a_trace_do_not_overlap_by_rounding() -> None:
    starts = [number * 1.00000051e-6 / 3 for number in range(200)]
    row = [
        Happening("compute", "conv1", "forward", start, stop - start, "kernel")
        for start, stop in pairwise(starts)
    ]
    told = json.loads(drawing.trace(row, "a step"))["traceEvents"]
    drawn = [event for event in told if event["ph"] == "X"]
    ends = [(round(e["ts"] * 1e3), round((e["ts"] + e["dur"]) * 1e3)) for e in drawn]
    assert all(before[1] == after[0] for before, after in pairwise(ends))


@pytest.mark.parametrize(
    ("seconds", "last"),
    [
        (13.09, "12 s"),
        (8.932e-3, "8 ms"),
        (0.2, "200 ms"),
        (4.2e-6, "4 us"),
        (3e-8, "0.03 us"),
        (1, "1 s"),
        (12345.0, "12,000 s"),
    ],
)
def test_a_picture_has_round_times_below(seconds: float, last: str) -> None:
    waited = Happening("compute", "samples", "read", 0.0, seconds, "wait")
    svg = ET.fromstring(drawing.picture([waited], "a step"))
    texts = [(float(str(each.get("x"))), each) for each in svg.iter("{http://www.w3.org/2000/svg}text")]
    times = [(x, each) for x, each in texts if str(each.text)[0].isdigit()]
    assert 5 <= len(times) <= 11
    assert (times[0][1].text or "").startswith("0 ") and times[-1][1].text == last
    for x, each in times:  # a letter is at most 8 wide
        wide = 8 * len(str(each.text))
        assert x + (wide / 2 if each.get("text-anchor") == "middle" else 0) <= drawing.WIDTH
    assert "wait" in [each.text for _, each in texts]


def test_a_picture_marks_where_the_step_ends_if_reading_goes_on() -> None:
    works = [Happening("compute", "conv", "forward", 0.0, 1.0, "kernel")]
    reads = [*works, Happening("storage", "samples", "read", 0.0, 4.0, "description")]
    assert "end of the step" not in drawing.picture(works, "a step", 1.0)
    svg = ET.fromstring(drawing.picture(reads, "a step", 1.0))
    ends = [
        line for line in svg.iter("{http://www.w3.org/2000/svg}line") if line.get("stroke-dasharray")
    ]
    (end,) = ends
    bars = [each for each in svg.iter("{http://www.w3.org/2000/svg}rect") if len(each)]
    right = float(bars[0].get("x", "")) + float(bars[0].get("width", ""))
    assert float(end.get("x1", "")) == pytest.approx(right, abs=0.1)


def test_a_picture_names_the_phases_that_it_has_and_shortens_a_long_title() -> None:
    works = [Happening("compute", "conv", "forward", 0.0, 1.0, "kernel")]
    svg = ET.fromstring(drawing.picture(works, "a" * 90 + "b" * 90))
    said = [text.text or "" for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "forward" in said and "read" not in said and "wait" not in said
    assert re.fullmatch("a+…b+", said[0]) and len(said[0]) * 8 < drawing.WIDTH * 1.01


def test_phases_differ_in_lightness() -> None:
    """As they must in print without colours."""

    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light = sorted(map(lightness, [*drawing.COLOURS.values(), drawing.WAIT]))
    assert min(b - a for a, b in pairwise(light)) > 30


def test_json_on_standard_output_is_alone(solver: Path, machine: Callable[[str], Path]) -> None:
    done = run(simulate, solver, "--hw", machine(NODE), "--samples", "1x12x12", "--json", "-")
    assert json.loads(done.stdout)["net"] == "small"


def test_shapes_are_read_as_they_are_written() -> None:
    assert shapes(["3x227x227"]) == {"data": (3, 227, 227), "label": ()}
    assert shapes(["image=1x28x28", "class="]) == {"image": (1, 28, 28), "class": ()}
    for wrong in ("", "3x-1", "axb", "3x99999999"):
        with pytest.raises(Exception, match="is not a shape like 3x227x227"):
            shapes([wrong])


CELLS = [
    {"table": "Table I", "row": "a", "column": "x", "unit": "s", "paper": 2.0, "predicted": 2.2},
    {"table": "Table I", "row": "b", "column": "x", "unit": "s", "paper": None, "predicted": 3.0},
    {"table": "Table II", "row": "a", "column": "y", "unit": "s", "paper": 1.0, "predicted": 1.3},
]


def test_a_comparison_has_each_cells_error_and_a_summary() -> None:
    text = report.compared(CELLS)
    assert "+10.0%" in text and "+30.0%" in text
    assert (
        "Table I: median error 10.0%, 100% within 15%, 100% within 35% of 1 printed cells; 1 more"
        in text
    )
    assert "all tables: median error 20.0%, 50% within 15%, 100% within 35% of 2 printed cells" in text
    assert report.error_of(CELLS[1]) is None


def test_reproduce_writes_the_agreed_form(tmp_path: Path) -> None:
    path = tmp_path / "cells.json"
    done = run(reproduce, "swcaffe", "--plugins", "simulator", "--json", path)
    told = json.loads(path.read_text())
    assert told["paper"] == "swcaffe" and told["notes"]
    for cell in told["cells"]:
        assert set(cell) == {"table", "row", "column", "unit", "paper", "predicted"}
    assert "withheld" in done.output and "residual" in done.output


def test_a_paper_that_nobody_knows_is_answered_with_the_nearest() -> None:
    with pytest.raises(ModelError, match="unknown paper 'swcafe'; did you mean 'swcaffe'"):
        papers.gather("swcafe", ["simulator"])


def test_a_paper_that_no_composed_plugin_knows_has_those_who_do() -> None:
    with pytest.raises(ModelError, match=r"knows the paper 'swcaffe'; compose .*simulator.*asked: none"):
        papers.gather("swcaffe", ["caffe"])


def test_a_picture_is_svg(solver: Path, tmp_path: Path) -> None:
    with pytest.raises(CompositionError, match=r"--picture .*a.png: pictures are SVG; .* ends in .svg"):
        run(simulate, solver, "--picture", tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


CELL = {"table": "I", "row": "fc6", "column": "f32", "unit": "ms", "paper": 2, "predicted": 2.5}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (3, r" 3 .valid: None, or a table of cells and notes."),
        ({"notes": []}, r" no cells .valid: a list."),
        ({"cells": "I"}, r" cells = 'I' .valid: a list."),
        ({"cells": [], "notes": "one"}, r" notes = 'one' .valid: a list."),
        ({"cells": [], "note": []}, r"unknown key 'note'; did you mean 'notes'"),
        ({"cells": [CELL, 3]}, r"cell 2: 3 .valid: a table of table, row"),
        ({"cells": [{"table": "I", "row": "a"}]}, r"cell 1 without column, unit, paper, predicted"),
        ({"cells": [{**CELL, "predicted": math.nan}]}, r"cell 1 .I, fc6, f32.: predicted = nan"),
        ({"cells": [{**CELL, "paper": "2"}]}, r"cell 1 .I, fc6, f32.: paper = '2' .valid: a finite"),
    ],
)
def test_an_answer_that_is_none_names_its_plugin_and_what_is_wrong(answer: Any, told: str) -> None:
    with pytest.raises(
        PluginError, match=r"plugin 'stranger': reproductions returned.*" + told
    ) as caught:
        papers._checked("stranger", answer)
    assert "\n" not in str(caught.value)


def test_numbers_of_numpy_become_pythons() -> None:
    given = {**CELL, "paper": np.int64(2), "predicted": np.float32(2.5)}
    ((cell,), _) = papers._checked("stranger", {"cells": [given]})
    assert [type(cell[key]) for key in ("paper", "predicted")] == [int, float]
    assert report.error_of(cell) == 0.25
    assert json.loads(json.dumps([cell])) == [{**CELL}]


def test_the_residual_is_fitted_on_one_cell_and_holds_on_the_others() -> None:
    # A node's own step of ResNet-50 as 6 images a second would have it; the paper withholds its own.
    table = [
        {
            "table": "Table III",
            "row": net,
            "column": "SW",
            "unit": "img/s",
            "paper": None,
            "predicted": p,
        }
        for net, p in (("AlexNet", 94.17), ("ResNet-50", 6.0))
    ]
    told = scalability.speedups("swcaffe", table)
    assert told is not None
    cells = {(cell["row"], cell["unit"]): cell for cell in told["cells"]}
    assert len(cells) == 10
    fitted = cells["AlexNet, sub-mini-batch 256", "x"]
    assert fitted["predicted"] == pytest.approx(fitted["paper"])
    for row, unit in (("AlexNet, sub-mini-batch 256", "%"), ("ResNet-50, sub-mini-batch 32", "x")):
        cell = cells[row, unit]
        assert cell["predicted"] == pytest.approx(cell["paper"], rel=0.08)
    assert scalability.exchange(232.6e6) == pytest.approx(0.05, abs=0.01)
    assert scalability.speedups("s-caffe") is None
    for row in {row for row, _ in cells}:
        left = 100 * (1 - cells[row, "x"]["predicted"] / 1024)
        assert cells[row, "%"]["predicted"] == pytest.approx(left)
    fitted_share = cells["AlexNet, sub-mini-batch 256", "%"]["paper"]
    assert fitted_share == pytest.approx(100 * (1 - fitted["paper"] / 1024), abs=0.005)
    shares = [cells[f"AlexNet, sub-mini-batch {batch}", "%"]["predicted"] for batch in (64, 128, 256)]
    assert shares == sorted(shares, reverse=True)


def test_a_nodes_own_step_is_the_one_with_as_many_images() -> None:
    def cell(table: str, row: str, column: str, predicted: float | None) -> dict[str, object]:
        return {"table": table, "row": row, "column": column, "paper": None, "predicted": predicted}

    table = [
        cell("Table III", "AlexNet", "SW", 90.0),
        cell("Figure 10", "AlexNet, sub-mini-batch 64", "speedup", 7.0),
        cell("Figure 10", "AlexNet, sub-mini-batch 64", "one node", 60.0),
        cell("Figure 10", "AlexNet, sub-mini-batch 128", "one node", None),
    ]
    told = scalability.speedups("swcaffe", table)
    assert told is not None
    found = {cell["row"]: cell["predicted"] for cell in told["cells"] if cell["unit"] == "x"}
    assert list(found) == [f"AlexNet, sub-mini-batch {batch}" for batch in (256, 128, 64)]
    size = scalability.GRADIENTS["AlexNet"]
    together = scalability.exchange(size) + scalability.residual() * size
    for batch, rate in ((256, 90.0), (128, 90.0), (64, 60.0)):
        alone = batch / rate
        expected = 1024 * alone / (alone + together)
        assert found[f"AlexNet, sub-mini-batch {batch}"] == pytest.approx(expected)
    notes = "\n".join(told["notes"])
    assert "AlexNet (256, 128 images): Table III as simulated, scaled in proportion" in notes
    assert "AlexNet (64 images): simulated with that many images" in notes
    assert "no prediction for ResNet-50" in notes


def test_the_network_of_the_speedups_is_the_one_described() -> None:
    machine = load_machine(Path(__file__).parents[3] / "hwdesc/taihulight.toml")
    supernode, node = machine.level("supernode"), machine.level("node")
    for level in (supernode, node):
        assert level.link is not None and level.link.latency and level.link.bandwidth
        assert level.link.latency.value == pytest.approx(scalability.ALPHA)
        assert level.link.bandwidth.value == scalability.BANDWIDTH
    assert supernode.link is not None
    assert supernode.link.oversubscription == scalability.OVERSUBSCRIPTION
    assert node.count == scalability.SUPERNODE
    group = machine.level("core_group")
    (memory,) = group.memory
    assert memory.bandwidth is not None
    assert group.count * memory.bandwidth.value / 3 == pytest.approx(scalability.ADDITION)


def test_sizes_of_models_are_those_that_the_paper_prints_in_2_to_the_20() -> None:
    numbers = {"AlexNet": 60_965_224, "ResNet-50": 25_557_032 + 53_173}
    for net, size in scalability.GRADIENTS.items():
        assert size == pytest.approx(4 * numbers[net], rel=3e-4)


def test_what_takes_long_is_told_though_nothing_follows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "PATIENCE", 0.05)
    silent, progress = _Progress(), _Progress()
    progress("planning")
    time.sleep(0.5)
    silent.end()
    progress.end()
    assert capsys.readouterr().err == "planning\n"
    monkeypatch.setattr(commands, "PATIENCE", 1.0)  # so that a busy machine does not reach it
    quick = _Progress()
    quick("planning")
    quick.end()
    time.sleep(1.2)
    assert capsys.readouterr().err == ""


def test_without_a_terminal_what_takes_long_is_told_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    progress = _Progress(lambda: now[0])
    for second in range(35):
        now[0] = float(second)
        progress(f"costing operation {second}")
    progress.end()
    told = capsys.readouterr()
    assert told.err.splitlines() == [f"costing operation {second}" for second in (11, 22, 33)]
    assert told.out == ""
