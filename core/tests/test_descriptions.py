"""Hardware descriptions: how they are read, and that printed machines read back as the same."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machine_files import HWDESC, TAIHULIGHT, read

from demitasse import (
    DescriptionError,
    Level,
    Link,
    Machine,
    MemorySpace,
    Quantity,
    Rate,
    RatedOperation,
    SyncSpec,
    arrange,
    load_machine,
)


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


def by_precision(operations: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw rates in float32 or in several precisions, with rates of some operations."""
    return quantity("FLOP/s") | st.builds(
        lambda rate, *more: rate and Rate(rate.value, rate.unit, rate.source, *more),
        quantity("FLOP/s"),
        st.dictionaries(st.sampled_from(["tf32", "bf16", "f64"]), quantity("FLOP/s").filter(bool)),
        operations,
    )


rated = st.builds(
    lambda name, window, channels: str(RatedOperation(name, tuple(window), channels)),
    st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True),
    st.lists(st.integers(1, 99), max_size=3),
    st.none() | st.integers(1, 4096),
)
none: st.SearchStrategy[Any] = st.just({})
rates = by_precision(none)
of_layers = by_precision(st.dictionaries(rated, by_precision(none).filter(bool), max_size=3))


def above(sustained: Quantity | None, peak: Quantity | None) -> bool:
    """Return whether layers sustain more than the peak, in float32 or another precision."""
    if sustained is None or peak is None:
        return False
    others, most = getattr(sustained, "others", {}), getattr(peak, "others", {})
    return sustained.value > peak.value or any(
        others[name].value > most[name].value for name in others.keys() & most.keys()
    )


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    levels: list[Level] = []
    for name in draw(st.lists(names, min_size=1, max_size=4, unique=True)):
        mesh = tuple(draw(st.lists(st.integers(1, 9), max_size=3)))
        sustained, peak = draw(of_layers), draw(rates)
        if above(sustained, peak):
            sustained = None
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
            launch=draw(quantity("s")),
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


def test_rates_of_operations_are_written_and_read(tmp_path: Path) -> None:
    plain, halved = Quantity(3e9, "FLOP/s", "measured"), Quantity(7e9, "FLOP/s", "paper")
    known = {"convolution 3x3 of 4": Rate(2e9, "FLOP/s", "vendor", {"bf16": halved}), "relu": plain}
    machine = Machine("m", (Level("node", sustained=Rate(9e9, "FLOP/s", operations=known)),))
    (level,) = read(tmp_path, str(machine)).levels
    assert isinstance(level.sustained, Rate) and level.sustained.operations == known
    assert copy.deepcopy(machine) == machine


def test_rates_are_of_operations_alone() -> None:
    with pytest.raises(DescriptionError, match="'convolution 3 x 3' does not name an operation"):
        Rate(9e9, "FLOP/s", operations={"convolution 3 x 3": Quantity(1e9, "FLOP/s")})


def test_rates_of_operations_share_a_source(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(
        'schema = 1\nname = "m"\n[[level]]\nname = "node"\n[level.sustained]\nf32 = "9 GFLOP/s"\n'
        '[level.sustained.operations]\nsource = "paper"\nrelu = "1 GFLOP/s"\n'
        'dropout = "2 GFLOP/s (vendor)"\n'
    )
    (level,) = load_machine(path).levels
    assert isinstance(level.sustained, Rate) and level.sustained.source == "assumed"
    sources = {name: rate.source for name, rate in level.sustained.operations.items()}
    assert sources == {"relu": "paper", "dropout": "vendor"}


def test_a_peak_is_not_of_operations() -> None:
    peak = Rate(1e9, "FLOP/s", operations={"relu": Quantity(1e9, "FLOP/s")})
    assert str(peak) == "1 GFLOP/s (assumed) in f32, and of relu"
    with pytest.raises(DescriptionError, match=r"level 'node': its peak has rates by operation"):
        Machine("odd", (Level("node", peak=peak),))
