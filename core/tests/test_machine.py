"""Machines: trees of levels, their synchronisation and counts, and whether a machine is this one."""

from __future__ import annotations

import re
import sys
import timeit
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_files import TAIHULIGHT, read

from demitasse import (
    DescriptionError,
    Level,
    Machine,
    MemorySpace,
    SyncSpec,
    arrange,
    describe,
    fingerprint,
)


def test_a_sync_covers_the_levels_around_it_up_to_the_next_sync(tmp_path: Path) -> None:
    groups = read(tmp_path, TAIHULIGHT).sync_groups()
    assert [(sync.plugin, [level.name for level in levels]) for sync, levels in groups] == [
        ("sw26010", ["core_group"]),
        ("allreduce", ["supernode", "node"]),
    ]
    assert groups[1][0].options == {
        "algorithm": "recursive-halving-doubling",
        "ranks": "round-robin",
    }


def test_workers_of_one_process_are_the_thread_levels_multiplied() -> None:
    levels = (
        Level("node", 5, workers="mpi"),
        Level("domain", 2, workers="threads", sync=SyncSpec("a")),
        Level("core", 3, workers="threads", sync=SyncSpec("b")),
        Level("lane", 8),
    )
    assert len(arrange(Machine("m", levels), "float32")) == 6
    assert len(arrange(Machine("m", levels[:1]), "float32")) == 1


def test_a_level_is_found_by_name_or_the_nearest_is_named() -> None:
    machine = Machine("m", (Level("node"), Level("worker")))
    assert machine.level("worker").parent == "node"
    with pytest.raises(DescriptionError, match=r"unknown level 'nod'; did you mean 'node'"):
        machine.level("nod")


@pytest.mark.parametrize("key", ["count", "cores", "threads_per_core"])
@pytest.mark.parametrize("value", [0, -3, 1.5])
def test_a_level_in_memory_counts_from_one(key: str, value: Any) -> None:
    with pytest.raises(DescriptionError, match=rf"machine 'm': level 'a': {key} = {value} \(valid: "):
        Machine("m", (Level("a", **{key: value}),))
    with pytest.raises(DescriptionError, match=r"level 'a', caches 'L2': count = 0 \(valid: a whole"):
        Machine("m", (Level("a", caches=(MemorySpace("L2", count=0),)),))
    with pytest.raises(DescriptionError, match="True"):
        Machine("m", (Level("a", **{key: True}),))
    with pytest.raises(DescriptionError, match=f"{key} = a number of thousands of digits"):
        Machine("m", (Level("a", **{key: 10**5000}),))
    text = describe(Machine("m", (Level("a", **{key: np.int64(4)}),)))
    assert f"\n{key} = 4\n" in text


def test_branches_have_parents_of_their_own() -> None:
    machine = Machine(
        "box",
        (
            Level("node", 3, sync=SyncSpec("outer")),
            Level("domain", 2, sync=SyncSpec("tree")),
            Level("card", 4, parent="node", sync=SyncSpec("host")),
        ),
    )
    groups = [(sync.plugin, [x.name for x in levels]) for sync, levels in machine.sync_groups()]
    assert groups == [("host", ["card"]), ("tree", ["domain"]), ("outer", ["node"])]


def test_a_level_that_two_branches_would_synchronise_is_refused() -> None:
    with pytest.raises(DescriptionError, match=r"machine 'box': level 'node' is synchronised twice"):
        Machine(
            "box",
            (
                Level("node", 3),
                Level("domain", 2, sync=SyncSpec("tree")),
                Level("card", 4, parent="node", sync=SyncSpec("host")),
            ),
        )


chains = st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=7)


@given(chains)
def test_each_level_with_siblings_has_one_group_out_of_the_innermost_sync(
    chain: list[tuple[int, bool]],
) -> None:
    levels = tuple(
        Level(f"l{i}", count, sync=SyncSpec(f"s{i}") if sync else None)
        for i, (count, sync) in enumerate(chain)
    )
    groups = Machine("m", levels).sync_groups()
    found = {level.name: sync.plugin for sync, members in groups for level in members}
    syncs = [i for i, (_, sync) in enumerate(chain) if sync]
    expected = {}
    for i, (count, sync) in enumerate(chain):
        inner = [j for j in syncs if j >= i]
        if inner and (count > 1 or sync):
            expected[f"l{i}"] = f"s{inner[0]}"
    assert found == expected
    assert sum(len(members) for _, members in groups) == len(expected)
    assert [sync.plugin for sync, _ in groups] == [f"s{i}" for i in reversed(syncs)]


@pytest.mark.parametrize("between", [(), (Level("socket", 2),)])
def test_processes_are_around_threads(between: tuple[Level, ...]) -> None:
    node, rank = Level("node", 4, workers="threads"), Level("rank", 2, workers="mpi")
    Machine("m", (rank, *between, node))
    with pytest.raises(
        DescriptionError, match=r"level 'rank' has .* inside level 'node', whose threads"
    ):
        Machine("m", (node, *between, rank))


def test_a_machine_is_simulated_unless_it_was_described_here_or_for_anywhere() -> None:
    here = Machine("m", (Level("node"),), fingerprint=fingerprint())
    assert not here.simulated
    assert not replace(here, fingerprint="any").simulated
    assert replace(here, fingerprint="vax-1-00000000").simulated
    assert replace(here, fingerprint="").simulated


def test_the_fingerprint_is_short_stable_and_cheap() -> None:
    assert fingerprint() == fingerprint()
    assert re.fullmatch(r"[\w.]+-\d+-[0-9a-f]{8}", fingerprint())
    assert min(timeit.repeat(fingerprint, number=1, repeat=5)) < 0.005


def test_a_machine_that_moved_to_where_vectors_are_narrower_has_another_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["demitasse_host.fingerprint"], "ROOT", tmp_path)
    (tmp_path / "proc").mkdir()

    def seen(listed: str, clock: str = "2999.9") -> str:
        text = f"processor\t: 0\nflags\t\t: {listed}\ncpu MHz\t\t: {clock}\n"
        (tmp_path / "proc/cpuinfo").write_text(text + text.replace("avx2", "avx2 avx512f"), "utf-8")
        return fingerprint()

    wide = seen("fpu sse2 avx2 avx512f smep")
    assert wide == seen("avx512f avx2 sse2 smep md_clear", clock="2400.1")
    assert wide != seen("fpu sse2 avx2 smep")
    (tmp_path / "proc/cpuinfo").unlink()
    assert re.fullmatch(r"[\w.]+-\d+-[0-9a-f]{8}", fingerprint())
