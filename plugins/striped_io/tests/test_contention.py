"""Processes that share storage targets: one for the whole file, or stripes over several (swCaffe,
V.B)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import DemitasseError, DescriptionError, Machine, load_machine
from demitasse_striped_io.contention import _asked, bound, load, reading_cost
from demitasse_striped_io.data_command import command
from demitasse_striped_io.plugin import programs

TAIHULIGHT = Path(__file__).parents[3] / "hwdesc/taihulight.toml"
MINI_BATCH = 256 * 3 * 256 * 256 * 4
"""256 ImageNet images of 3 x 256 x 256 float32."""
BLOCK = 256 << 20


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_machine(TAIHULIGHT)


def test_the_papers_mini_batch_is_192_mb_and_touches_at_most_two_of_32_arrays() -> None:
    assert MINI_BATCH == 192 << 20
    starts = np.arange(0, 32 * BLOCK, BLOCK / 8)
    touched = [_asked(np.array([start]), MINI_BATCH, 32, BLOCK)[0].sum() for start in starts]
    assert set(touched) == {1, 2}


@pytest.mark.parametrize("processes", [32, 64, 256, 1024])
def test_the_bound_is_the_papers(processes: int) -> None:
    assert bound(processes, MINI_BATCH, 32, BLOCK) == processes / 32 * 2


@pytest.mark.parametrize("processes", [1, 7, 32, 100, 256, 1024])
def test_in_block_order_no_array_has_more_readers_than_the_bound(processes: int) -> None:
    found = load(processes, MINI_BATCH, 32, BLOCK, "block")
    assert 1 <= found.readers <= bound(processes, MINI_BATCH, 32, BLOCK)


def test_with_random_starts_the_mean_keeps_the_bound_and_the_busiest_array_does_not() -> None:
    found = load(1024, MINI_BATCH, 32, BLOCK)
    # A batch of 3/4 of a block crosses into a second block three times in four.
    mean = 1024 / 32 * 1.75
    assert mean < bound(1024, MINI_BATCH, 32, BLOCK) < found.readers < 2 * mean


@given(
    starts=st.lists(st.integers(0, 40), min_size=1, max_size=9),
    batch=st.integers(1, 50),
    stripes=st.integers(2, 5),
    block=st.integers(1, 9),
)
@settings(max_examples=examples(60))
def test_what_targets_are_asked_for_is_what_counting_bytes_gives(
    starts: list[int], batch: int, stripes: int, block: int
) -> None:
    size, readers = Counter[int](), Counter[int]()
    for start in starts:
        owners = [byte // block % stripes for byte in range(start, start + batch)]
        size.update(owners)
        readers.update(set(owners))
    count, asked = _asked(np.array(starts, float), batch, stripes, block)
    assert asked.tolist() == [size[target] for target in range(stripes)]
    assert count.tolist() == [readers[target] for target in range(stripes)]


def test_one_array_is_the_limit_of_all_and_each_process_gets_less(machine: Machine) -> None:
    costs = [
        reading_cost(machine, processes=n, batch=MINI_BATCH, stripes=1) for n in (1, 2, 16, 256, 1024)
    ]
    assert [c.aggregate for c in costs] == pytest.approx([2e9] * len(costs))
    assert [c.each for c in costs] == pytest.approx([2e9 / c.processes for c in costs])
    assert [c.readers for c in costs] == [c.processes for c in costs]


def test_32_stripes_bring_the_bandwidth_back(machine: Machine) -> None:
    at = {
        n: (
            reading_cost(machine, processes=n, batch=MINI_BATCH, stripes=1),
            reading_cost(machine, processes=n, batch=MINI_BATCH, sampling="block"),
        )
        for n in (1, 32, 1024)
    }
    assert {many.stripes for _, many in at.values()} == {32}
    # One process reads from one array at a time, whatever the layout.
    assert at[1][0].each == at[1][1].each == 2e9
    # 32 processes have more than half of what one alone has; with one array, each would have a 32nd.
    assert at[32][0].each == pytest.approx(2e9 / 32) and at[32][1].each > 1e9
    assert at[1024][1].aggregate == pytest.approx(32 * at[1024][0].aggregate)
    random = reading_cost(machine, processes=1024, batch=MINI_BATCH)
    assert 0.6 * 64e9 < random.aggregate < 64e9


def test_a_process_reads_no_quicker_than_its_own_link(machine: Machine) -> None:
    cost = reading_cost(machine, processes=4, batch=1e9, link=1e8)
    assert cost.seconds == 10


def test_what_cannot_be_is_told(machine: Machine) -> None:
    with pytest.raises(DemitasseError, match=r"145 stripes.*valid: 1 to 144.*'disk_array'"):
        reading_cost(machine, processes=4, batch=1e6, stripes=145)
    with pytest.raises(DemitasseError, match="0 processes that read"):
        reading_cost(machine, processes=0, batch=1e6)
    with pytest.raises(DemitasseError, match=r"sampling 'blocks'.*'block'"):
        reading_cost(machine, processes=4, batch=1e6, sampling="blocks")
    bare = load_machine(TAIHULIGHT.with_name("numa-broadwell.toml"))
    with pytest.raises(DescriptionError, match="no level has storage with a bandwidth"):
        reading_cost(bare, processes=4, batch=1e6)


def test_the_program_asks_the_runtimes_machine(machine: Machine) -> None:
    cost = programs()["reading_cost"](SimpleNamespace(machine=machine), processes=4, batch=1e6)
    assert cost == reading_cost(machine, processes=4, batch=1e6)
    assert cost.to_dict()["aggregate"] == cost.aggregate


def test_the_command_shows_both_layouts() -> None:
    arguments = ["predict", str(TAIHULIGHT), "--processes", "256", "--sampling", "block"]
    lines = CliRunner().invoke(command, arguments).output.splitlines()
    assert "144 'disk_array' of 1.86 GiB/s" in lines[0] and "(simulated)" in lines[0]
    assert lines[-1].split()[:3] == ["256", "1.86", "GiB/s"] and "59.60 GiB/s" in lines[-1]
    found = json.loads(CliRunner().invoke(command, [*arguments, "--json", "-"]).output)
    (row,) = found["sizes"]
    assert row["striped"]["aggregate"] == pytest.approx(32 * row["single"]["aggregate"])
