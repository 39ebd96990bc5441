"""Hardware descriptions: what is read, what is refused and where, and that they print as they read."""

from __future__ import annotations

import math
import os
import re
import timeit
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demitasse import (
    DescriptionError,
    Level,
    Link,
    Machine,
    MemorySpace,
    Quantity,
    SyncSpec,
    arrange,
    describe,
    fingerprint,
    load_machine,
)

TAIHULIGHT = """\
schema  = 1
name    = "taihulight"
plugins = ["caffe", "datasets", "sw26010", "allreduce", "striped_io"]

[[level]]
name = "supernode"
count = 160
link = { latency = "1 us", bandwidth = "12 GB/s", oversubscription = 4, source = "paper" }

[[level]]
name = "node"
count = 256
workers = "mpi"
link = { latency = "1 us", bandwidth = "12 GB/s", source = "paper" }
sync = { plugin = "allreduce", algorithm = "recursive-halving-doubling", ranks = "round-robin" }

[[level]]
name = "core_group"
count = 4
workers = "threads"
memory = [{ space = "ddr3", capacity = "8 GiB", bandwidth = "28 GB/s", source = "paper" }]
sync = { plugin = "sw26010", scheme = "handshake" }

[[level]]
name = "cpe"
count = 64
mesh = [8, 8]
memory = [{ space = "ldm", capacity = "64 KiB", source = "vendor" }]
peak = "11.6 GFLOP/s"
kernels = "sw26010"
"""

HWDESC = Path(__file__).parents[2] / "hwdesc"


def read(folder: Path, text: str) -> Machine:
    path = folder / "machine.toml"
    path.write_text(text, encoding="utf-8")
    return load_machine(path)


def test_the_description_of_taihulight_reads_as_it_is_written(tmp_path: Path) -> None:
    machine = read(tmp_path, TAIHULIGHT)
    assert machine.name == "taihulight"
    assert machine.plugins == ("caffe", "datasets", "sw26010", "allreduce", "striped_io")
    assert [level.name for level in machine.levels] == ["supernode", "node", "core_group", "cpe"]
    assert [level.parent for level in machine.levels] == [None, "supernode", "node", "core_group"]
    assert [level.count for level in machine.levels] == [160, 256, 4, 64]
    supernode, node, core_group, cpe = machine.levels
    assert supernode.link == Link(Quantity(1e-6, "s", "paper"), Quantity(12e9, "B/s", "paper"), 4)
    assert node.link is not None
    assert node.link.oversubscription == 1
    assert core_group.memory == (
        MemorySpace("ddr3", Quantity(8 * 2**30, "B", "paper"), bandwidth=Quantity(28e9, "B/s", "paper")),
    )
    assert cpe.mesh == (8, 8)
    assert cpe.memory[0].capacity == Quantity(65536, "B", "vendor")
    assert cpe.peak == Quantity(11.6e9, "FLOP/s", "assumed")
    assert cpe.kernels == "sw26010"
    assert str(node.location) == f"{tmp_path / 'machine.toml'}:11"


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


@pytest.mark.parametrize("path", sorted(HWDESC.glob("*.toml")), ids=lambda path: path.stem)
def test_every_description_that_is_shipped_reads_and_prints_as_it_reads(
    path: Path, tmp_path: Path
) -> None:
    machine = load_machine(path)
    assert machine.name == path.stem
    assert machine.path == path
    assert read(tmp_path, str(machine)) == machine


def test_the_two_workers_are_synchronised_by_one_group() -> None:
    machine = load_machine(HWDESC / "two-workers.toml")
    assert len(arrange(machine, "float32")) == 2
    assert not machine.simulated
    [(sync, levels)] = machine.sync_groups()
    assert (sync.plugin, [level.name for level in levels]) == ("reference", ["worker"])


def test_what_may_never_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(DescriptionError, match="is a pipe or a device; a file is needed here"):
            load_machine(path)


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "machine.toml").write_bytes(b"schema = 1\n# a\n# \xff\nname = 'x'\n")
    with pytest.raises(DescriptionError, match=r"machine.toml:3: is not text .*a byte 0xff\)"):
        load_machine(tmp_path / "machine.toml")


# What is refused, and the words and line of the message.

MISTAKES = [
    ("schema  = 1", "schema = 2", 1, "schema = 2", "valid: 1"),
    ("schema  = 1", "", 1, "needs 'schema'", "valid: 1"),
    ("schema  = 1", "schema = 1\nlink = {}", 2, "unknown key 'link'", "stands behind its [[level]]"),
    ('"taihulight"', '"taihulight', 2, "machine.toml:2: Illegal character", "'\\n' in column 22"),
    ("count = 160", "precision = 'f32'", 7, "unknown key 'precision'", "before the first [[level]]"),
    ("count = 160", "mesh = " + "[" * 5000, 31, "nested too deep", ""),
    ("count = 160", "count = 1" + "0" * 5000, 7, ": 10000000000000000000...", "is no number"),
    ("count = 160", f"mesh = '{'x' * 5000}'", 7, "(5,002 characters)", "a list"),
    ("schema  = 1", "schema = true", 1, "schema = True", "valid: 1"),
    ('"taihulight"', '""', 2, "name = ''", "a text"),
    ('name    = "taihulight"', "", 3, "needs 'name'", ""),
    ('"caffe", ', "7, ", 3, "plugins = 7", "a text"),
    ("plugins =", "plugin =", 3, "unknown key 'plugin'", "did you mean 'plugins'"),
    ("plugins =", 'source = "paper"\nplugins =', 3, "unknown key 'source'", ""),
    ('name = "supernode"', "", 7, "a Level needs 'name'", ""),
    ('name = "supernode"', 'name = "supernode"\nparent = "node"', 6, "unknown parent", "'node'"),
    ("count = 160", "count = 0", 7, "count = 0", "a whole number from 1"),
    ("count = 160", "count = -3", 7, "count = -3", "a whole number from 1"),
    ("count = 160", "count = 1.5", 7, "count = 1.5", "a whole number from 1"),
    ("count = 160", "count = true", 7, "count = True", "a whole number from 1"),
    ("count = 160", 'count = "160"', 7, "count = '160'", "a whole number from 1"),
    ("count = 160", "cuont = 160", 7, "unknown key 'cuont'", "did you mean 'count'"),
    ('"12 GB/s", over', '"12 GB", over', 8, "bandwidth = '12 GB'", "like '12 GB/s'"),
    ('"12 GB/s", over', '"12 GBs", over', 8, "did you mean 'GB/s'", "like '12 GB/s'"),
    ('"12 GB/s", over', '"-12 GB/s", over', 8, "bandwidth = '-12 GB/s'", "above 0"),
    ('"12 GB/s", over', '"0 GB/s", over', 8, "bandwidth = '0 GB/s'", "above 0"),
    ('"12 GB/s", over', '"1e999 GB/s", over', 8, "bandwidth = '1e999 GB/s'", "valid:"),
    ('"12 GB/s", over', "12, over", 8, "bandwidth = '12'", "like '12 GB/s'"),
    ('"1 us"', '"1 GB/s"', 8, "latency = '1 GB/s'", "like '1 us'"),
    ("oversubscription = 4", "oversubscription = 0.5", 8, "oversubscription = 0.5", "from 1"),
    ("oversubscription = 4", "oversubscription = inf", 8, "oversubscription = inf", "from 1"),
    ("oversubscription = 4", "oversubscribed = 4", 8, "did you mean 'oversubscription'", ""),
    (', source = "paper" }', "}", 8, "latency = '1 us'", "unknown source '(none)'"),
    ('"paper" }', '"papers" }', 8, "unknown source 'papers'", "did you mean 'paper'"),
    ('"paper" }', "1979-05-27 }", 8, "unknown source '1979-05-27'", "paper, vendor"),
    ('"paper" }', "[5] }", 8, "unknown source '[5]'", "paper, vendor"),
    ("link = {", "link = 1 # {", 8, "link = 1", "a table"),
    ('"supernode"', '"node"', 11, "level 'node' is there twice", ""),
    ("count = 256", 'count = 256\nparent = "supernod"', 11, "'supernod'", "did you mean 'supernode'"),
    ("count = 256", 'count = 256\nparent = "cpe"', 11, "unknown parent", "supernode"),
    ("count = 256", 'count = 256\nparent = "node"', 11, "unknown parent", "supernode"),
    ('"mpi"', '"mip"', 13, "unknown workers 'mip'", "did you mean 'mpi'"),
    ('"mpi"', '["mpi"]', 13, "unknown workers", "threads"),
    ('plugin = "allreduce", ', "", 15, "a SyncSpec needs 'plugin'", ""),
    ('plugin = "allreduce"', "plugin = 3", 15, "plugin = 3", "a text"),
    (
        '"mpi"',
        '"streams"\n[[level]]\nname = "rank"\nworkers = "mpi"',
        15,
        "level 'rank' has processes (workers = \"mpi\") inside level 'node', whose streams are",
        "valid: processes around threads or streams",
    ),
    ('"threads"', '"thread"', 20, "unknown workers 'thread'", "did you mean 'threads'"),
    ('memory = [{ space = "ddr3",', "memory = [{", 21, "a MemorySpace needs 'space'", ""),
    ("memory = [{", "memory = [3, {", 21, "memory = 3", "a table"),
    ("mesh = [8, 8]", "mesh = [8, 7]", 25, "mesh [8, 7] is not count 64", ""),
    ("mesh = [8, 8]", "mesh = [8, -8]", 27, "mesh = -8", "a whole number from 1"),
    ("mesh = [8, 8]", "mesh = 64", 27, "mesh = 64", "a list"),
    ('"64 KiB"', '"64 KiBB"', 28, "did you mean 'KiB'", "like '8 GiB'"),
    ('"11.6 GFLOP/s"', '"11.6 GFLOPS"', 29, "did you mean 'GFLOP/s'", "valid:"),
    ('"11.6 GFLOP/s"', '"fast"', 29, "peak = 'fast'", "like '2 GFLOP/s'"),
    ('"11.6 GFLOP/s"', '"2 GFLOP/s (guess)"', 29, "unknown source 'guess'", "assumed"),
    (
        'peak = "11.6 GFLOP/s"',
        'peak = "11.6 GFLOP/s"\nsustained = "0.1 TFLOP/s (paper)"',
        25,
        "level 'cpe': sustained 100 GFLOP/s (paper) is above its peak 11.6 GFLOP/s (assumed)",
        "at most that",
    ),
    ("mesh = [8, 8]", "mesh = [8, 8", 28, "array", ""),
    ('"taihulight"', '"taihulight', 2, "", ""),
    ("[[level]]", "[[levels]]", 5, "unknown key 'levels'", "did you mean 'level'"),
    ("[[level]]", "[options]\na = 3\n\n[[level]]", 5, "options", "a table"),
]


@pytest.mark.parametrize(
    ("right", "wrong", "line", "said", "also"), MISTAKES, ids=[m[1][:32] for m in MISTAKES]
)
def test_a_mistake_is_refused_with_its_line_and_what_is_valid(
    tmp_path: Path, right: str, wrong: str, line: int, said: str, also: str
) -> None:
    assert right in TAIHULIGHT
    with pytest.raises(DescriptionError) as caught:
        read(tmp_path, TAIHULIGHT.replace(right, wrong, 1))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'machine.toml'}:{line}: ")
    assert said in message
    assert also in message


def test_lines_are_found_despite_strings_comments_and_options_that_look_like_keys(
    tmp_path: Path,
) -> None:
    text = '''\
schema = 1 # count = 3
name = """
count = 1
"""
[[level]]   # [[level]]
name = "count = 2"
sync = { plugin = "a", count = 3, workers = "x" }
[[level]]
name = 'b'
count = 0
'''
    with pytest.raises(DescriptionError, match=r"machine\.toml:10: count = 0"):
        read(tmp_path, text)


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


def test_lines_are_found_within_a_list_of_tables(tmp_path: Path) -> None:
    entries = 'memory = [\n  { space = "x", capacity = "1 B", source = "paper" },\n  { '
    text = TAIHULIGHT.replace("memory = [{ ", entries, 1).replace("28 GB/s", "28 GB")
    with pytest.raises(DescriptionError, match=r"machine\.toml:23: bandwidth = '28 GB'"):
        read(tmp_path, text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(20))
@given(level=st.integers(0, 3), position=st.integers(1, 4))
def test_an_unknown_key_is_reported_on_its_line(tmp_path: Path, level: int, position: int) -> None:
    lines = TAIHULIGHT.splitlines()
    start = [number for number, line in enumerate(lines) if line == "[[level]]"][level]
    lines.insert(start + min(position, 3), "coumt = 3")
    number = lines.index("coumt = 3") + 1
    with pytest.raises(DescriptionError, match=rf":{number}: unknown key 'coumt'.*'count'"):
        read(tmp_path, "\n".join(lines))


def test_a_file_that_is_not_there_is_named_with_the_nearest_that_is(tmp_path: Path) -> None:
    (tmp_path / "laptop.toml").touch()
    wrong = tmp_path / "labtop.toml"
    with pytest.raises(DescriptionError, match=r"labtop\.toml: No such.*mean '.*/laptop\.toml'"):
        load_machine(wrong)
    (tmp_path / "machines").mkdir()
    words = r"No such file.*; there is no folder '.*/machnes', did you mean '.*/machines'"
    with pytest.raises(DescriptionError, match=words):
        load_machine(tmp_path / "machnes" / "laptop.toml")


@pytest.mark.parametrize("given", [None, ["cpu"], 3, b"laptop.toml"])
def test_what_is_no_path_is_refused(given: Any) -> None:
    with pytest.raises(
        DescriptionError, match=f"{re.escape(repr(given))} is no machine .*valid: 'auto'"
    ):
        load_machine(given)


def test_folders_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DescriptionError, match="is a folder; a file is needed here: name one in it"):
        load_machine(tmp_path)
    binary = tmp_path / "weights.bin"
    binary.write_bytes(bytes(range(256)))
    with pytest.raises(DescriptionError, match=r"weights\.bin:2: "):
        load_machine(binary)
    binary.write_bytes(b"schema = 1\n\0")
    with pytest.raises(DescriptionError, match=r"weights\.bin:2: "):
        load_machine(binary)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(100))
@given(data=st.data())
def test_damage_to_a_description_is_read_or_refused_but_never_breaks_the_reader(
    tmp_path: Path, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(TAIHULIGHT)))
    stop = data.draw(st.integers(start, min(start + 30, len(TAIHULIGHT))))
    inserted = data.draw(st.text('[]{}="\\\n#,1 .ab\0é', max_size=6))
    try:
        machine = read(tmp_path, TAIHULIGHT[:start] + inserted + TAIHULIGHT[stop:])
    except DescriptionError as error:
        assert re.match(rf"{re.escape(str(tmp_path))}/machine\.toml:\d+: .", str(error))
    else:
        assert read(tmp_path, str(machine)) == machine


# Trees.


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


# Numbers.


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


# Printing and reading.

names = st.text("abcxyz-_0", min_size=1, max_size=6)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
counts = st.integers(1, 10**6)
sources = st.sampled_from(["measured", "assumed", "vendor", "paper"])


def quantity(unit: str) -> st.SearchStrategy[Quantity | None]:
    values = st.floats(1e-12, 1e18)
    return st.none() | st.builds(Quantity, values, st.just(unit), sources)


memories = st.lists(
    st.builds(MemorySpace, texts, quantity("B"), quantity("B/s"), quantity("s"), counts),
    max_size=2,
).map(tuple)
plain: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aé\"'\\\n\t\x7f#=[]{}, -", max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
tables = st.dictionaries(texts.filter(lambda key: key != "plugin"), plain, max_size=3)
strings = st.lists(texts, max_size=3).map(tuple)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    levels: list[Level] = []
    for name in draw(st.lists(names, min_size=1, max_size=4, unique=True)):
        mesh = tuple(draw(st.lists(st.integers(1, 9), max_size=3)))
        sustained, peak = draw(quantity("FLOP/s")), draw(quantity("FLOP/s"))
        if sustained and peak and sustained.value > peak.value:
            sustained, peak = peak, sustained
        level = Level(
            name,
            count=math.prod(mesh) if mesh else draw(counts),
            parent=draw(st.sampled_from([x.name for x in levels])) if levels else None,
            workers=draw(st.sampled_from([None, "threads", "mpi", "streams", "simulated"])),
            mesh=mesh,
            memory=draw(memories),
            link=draw(
                st.none() | st.builds(Link, quantity("s"), quantity("B/s"), st.floats(1, 1e6) | counts)
            ),
            sync=draw(st.none() | st.builds(SyncSpec, texts, tables)),
            kernels=draw(st.none() | texts),
            peak=peak,
            sustained=sustained,
            clock=draw(quantity("Hz")),
            cores=draw(st.none() | counts),
            threads_per_core=draw(st.none() | counts),
            caches=draw(memories),
            storage=draw(memories),
            features=draw(strings),
            devices=draw(strings),
        )
        try:
            Machine("m", (*levels, level))
        except DescriptionError:  # branches share a level without a sync, or processes are in threads
            level = replace(level, sync=None, workers=None)
        levels.append(level)
    return Machine(
        draw(texts),
        tuple(levels),
        plugins=draw(st.none() | strings),
        fingerprint=draw(st.just("") | texts),
        options=draw(st.dictionaries(texts, tables, max_size=2)),
    )


@settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(machines())
def test_a_machine_prints_as_a_description_that_reads_as_the_same_machine(
    tmp_path: Path, machine: Machine
) -> None:
    assert read(tmp_path, str(machine)) == machine
    assert hash(read(tmp_path, str(machine))) == hash(machine)


@pytest.mark.parametrize("between", [(), (Level("socket", 2),)])
def test_processes_are_around_threads(between: tuple[Level, ...]) -> None:
    node, rank = Level("node", 4, workers="threads"), Level("rank", 2, workers="mpi")
    Machine("m", (rank, *between, node))
    with pytest.raises(
        DescriptionError, match=r"level 'rank' has .* inside level 'node', whose threads"
    ):
        Machine("m", (node, *between, rank))


# Which machine this is.


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


@pytest.mark.parametrize("given", [2, 2.5, None, ["2 GHz"]])
def test_a_quantity_that_is_no_text_is_refused_like_one_without_a_unit(given: Any) -> None:
    with pytest.raises(DescriptionError) as caught:
        Quantity.parse(given, unit="Hz", where="options.npu: clock = ")
    valid = "valid: a number above 0 with its unit, like '3 GHz'"
    assert str(caught.value) == f"options.npu: clock = {given!r} ({valid})"
