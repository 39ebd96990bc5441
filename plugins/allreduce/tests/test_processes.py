"""Processes exchange plain data and sums, and each names the one that failed, within the limit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launchers import SURVIVORS_SPEAK, mpiexec

from demitasse import CompositionError, DescriptionError, Machine, discover
from demitasse_allreduce import library, processes
from demitasse_allreduce.plugin import processes as hook

LIMIT = 250.0
"""Seconds within which a run must have ended: its timeouts are 3 s, and this machine may be busy."""

Met = dict[int, dict[str, Any]]


@pytest.fixture
def failing(tmp_path: Path, survivors_live: list[str]) -> Callable[..., Met]:
    """Run ``peer.py`` on three ranks; return what each surviving rank reports."""

    def run(how: str, victim: int, *more: str) -> Met:
        peer = [sys.executable, str(Path(__file__).with_name("peer.py")), str(tmp_path), how]
        words = [*survivors_live, "-n", "3", *SURVIVORS_SPEAK]
        subprocess.run(
            [mpiexec(), *words, *peer, str(victim), *more],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
        files = (tmp_path / f"{rank}.json" for rank in range(3))
        return {int(file.stem): json.loads(file.read_text()) for file in files if file.exists()}

    return run


def survivors_name(met: Met, victim: int, words: str) -> None:
    """Each rank except the victim has an error that begins with the victim, its host and what happened
    to it, and that says where it was. No thread or connection is left."""
    assert sorted(met) == [rank for rank in range(3) if rank != victim]
    for rank, found in met.items():
        error = found["error"]
        assert re.match(rf"rank {victim} of 3 \(host {found['hosts'][victim]}, process \d+\) ", error)
        assert words in error
        assert "layer conv3" in error
        assert (
            f"this is rank {rank} of 3 (host {found['hosts'][rank]}, process {found['process']})"
            in error
        )
        assert found["threads"] == ["MainThread"]
        assert found["connections"] == 0


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_process_is_named_by_all_others(failing: Callable[..., Met], victim: int) -> None:
    survivors_name(failing("dies", victim), victim, " died; last heard of ")


def test_a_process_that_vanishes_on_another_host_is_named(failing: Callable[..., Met]) -> None:
    met = failing("leaves", 1, "hosts")
    survivors_name(met, 1, " died; last heard of ")
    assert met[0]["hosts"] == ["a", "b", "a"]


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_stopped_process_is_named_by_all_others(failing: Callable[..., Met], victim: int) -> None:
    survivors_name(failing("stops", victim), victim, "stopped, or its host is down; last heard of ")


def test_a_process_that_does_not_get_on_is_named(failing: Callable[..., Met]) -> None:
    words = (
        "has stalled: it is alive, but has made no progress for 3 s; last heard of at iteration 17, "
        "layer conv3"
    )
    survivors_name(failing("hangs", 1), 1, words)


def test_what_one_process_raises_the_others_raise_with_its_words(failing: Callable[..., Met]) -> None:
    met = failing("raises", 1)
    assert met.pop(1)["error"] == "the loss is\n a fish"
    survivors_name(met, 1, "failed at iteration 17, layer conv3: ValueError: the loss is a fish")


def test_a_program_that_exits_says_so_to_those_who_wait(failing: Callable[..., Met]) -> None:
    words = "failed at iteration 17, layer conv3: the program has ended without closing its runtime"
    survivors_name(failing("exits", 2), 2, words)


def test_a_process_that_has_closed_has_ended_and_not_died(failing: Callable[..., Met]) -> None:
    met = failing("ends", 0)
    words = "has ended its part in the run, while others wait for it; last heard of at iteration 17"
    assert words in met.pop(0)["error"]
    survivors_name(met, 0, words)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("dies", "died; last heard of "),
        ("raises", "failed at iteration 17, layer conv3: ValueError: the loss is a fish"),
        ("stops", "stopped, or its host is down; last heard of "),
    ],
)
def test_those_that_may_be_lost_are_and_the_others_go_on(
    failing: Callable[..., Met], how: str, words: str
) -> None:
    met = failing(how, 2, "tolerated")
    victim = met.pop(2, None)
    assert sorted(met) == [0, 1]
    for found in met.values():
        assert found["error"] == ""
        assert found["sums"] == [3.0] * 17 + [2.0] * 2
        assert found["gathered"] == [{"rank": 0}, {"rank": 1}, None]
        assert [*found["lost"]] == ["2"]
        assert re.match(r"rank 2 of 3 \(host \S+, process \d+\) ", found["lost"]["2"])
        assert words in found["lost"]["2"]
        assert found["threads"] == ["MainThread"]
        assert found["connections"] == 0
    if how == "stops":  # it goes on, and hears that the others have done so without it
        assert victim is not None
        assert "rank 2 of 3" in victim["error"]
        assert "this process, has been silent for " in victim["error"]


def test_process_0_may_not_be_lost(failing: Callable[..., Met]) -> None:
    survivors_name(failing("dies", 0, "tolerated"), 0, " died; last heard of ")


def test_processes_that_may_be_lost_and_are_not_part_as_others_do(failing: Callable[..., Met]) -> None:
    met = failing("ends", 3, "tolerated")
    assert {rank: (found["error"], found["lost"]) for rank, found in met.items()} == {
        rank: ("", {}) for rank in range(3)
    }
    assert all(found["sums"] == [3.0] * 19 for found in met.values())


@pytest.mark.parametrize("more", [(), ("hosts",), ("deaf",)])
def test_processes_that_all_come_to_the_end_part(
    failing: Callable[..., Met], more: tuple[str, ...]
) -> None:
    met = failing("ends", 3, *more)
    assert {rank: found["error"] for rank, found in met.items()} == {0: "", 1: "", 2: ""}
    assert all(found["threads"] == ["MainThread"] for found in met.values())
    assert all(found["connections"] == 0 for found in met.values())
    notes = [note for found in met.values() for note in found["notes"]]
    assert len(notes) == more.count("deaf")
    assert all("cannot connect to all of their neighbours over TCP" in note for note in notes)


def test_without_sockets_a_stall_ends_after_its_limit(failing: Callable[..., Met]) -> None:
    met = failing("hangs", 1, "deaf")
    assert sorted(met) == [0, 2]
    for rank, found in met.items():
        assert found["error"].startswith(f"rank {rank} of 3 ")
        assert "has waited for 3 s, with no connection that could tell for whom" in found["error"]


EXCHANGE = """
import math
from demitasse import PluginError
from demitasse_allreduce.processes import MpiProcesses

with_all = MpiProcesses()
for length in (0, 1, 100_000):
    given = with_all.gather({"rank": rank, "bytes": b"x" * length * rank, "list": [1.5, None, (2, "a")]})
    for other, value in enumerate(given):
        assert value == {"rank": other, "bytes": b"x" * length * other, "list": [1.5, None, [2, "a"]]}
try:
    with_all.gather({"loss": {1, 2}})
except PluginError as error:
    assert "set '{1, 2}' is not plain data" in str(error), error
else:
    raise AssertionError("a set was taken")

def numbers(rank, count):
    return np.random.default_rng([rank, count]).normal(size=count) * 10.0 ** (rank * 5)

for count in (1, 3, 3, 40):
    total = with_all.total(numbers(rank, count))
    expected = numbers(0, count)
    for other in range(1, size):
        expected = expected + numbers(other, count)
    assert total.tolist() == expected.tolist()
    exact = [math.fsum(column) for column in zip(*(numbers(r, count) for r in range(size)))]
    np.testing.assert_allclose(total, exact, rtol=1e-9)
many = with_all.total(numbers(rank, 40_000).reshape(200, 200))  # does not gather everybody's
exact = [math.fsum(column) for column in zip(*(numbers(r, 40_000) for r in range(size)))]
np.testing.assert_allclose(many, np.reshape(exact, (200, 200)), rtol=1e-9)
assert len(set(with_all.gather(many.tobytes()))) == 1
assert float(with_all.total(rank)) == size * (size - 1) / 2
with_all.meet()
with_all.close()
hosts = len(set(with_all.hosts))
print(f"rank {rank} shares its cores with {with_all.sharing - 1} others on {hosts} host")
"""


APART = """
import time
from demitasse import PluginError
from demitasse_allreduce.processes import MpiProcesses

with_all = MpiProcesses()
if rank == 0:
    try:
        with_all.gather({"loss": 1.5})
    except PluginError as error:
        print(error, flush=True)
    time.sleep(1)  # an end that is asked for may be quicker than a launcher that passes on what is said
    MPI.COMM_WORLD.Abort(0)
with_all.total([2.5])
time.sleep(60)
"""


def test_processes_that_exchange_different_things_are_told(mpiexec: Callable[..., str]) -> None:
    """A number of one exchange must not be taken for a size in the other, for which memory would be
    allocated."""
    told = mpiexec(2, APART, fails=None)
    assert "processes are at different exchanges: rank 0 gathers what each has, rank 1 does not" in told


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_have_what_each_gives_and_the_same_sums(mpiexec: Callable[..., str], ranks: int) -> None:
    told = mpiexec(ranks, EXCHANGE)
    for rank in range(ranks):
        assert f"rank {rank} shares its cores with {ranks - 1} others on 1 host" in told


UNPLANNED = """
from demitasse_allreduce import library
library.plans_exchanges = lambda mpi: False
from demitasse_allreduce.processes import MpiProcesses
with_all = MpiProcesses()
for turn in range(20):
    assert with_all.total([rank + turn, 0.5]).tolist() == [sum(range(size)) + size * turn, 0.5 * size]
with_all.close()
print(f"rank {rank} is right")
"""


def test_sums_need_no_exchange_that_was_planned_before(mpiexec: Callable[..., str]) -> None:
    told = mpiexec(3, UNPLANNED)
    assert all(f"rank {rank} is right" in told for rank in range(3))


@pytest.mark.parametrize(
    ("vendor", "number", "right"),
    [
        ("MPICH", (4, 2, 3), True),
        ("MPICH", (5, 0, 2), True),
        ("MPICH", (4, 0, 2), False),
        ("Open MPI", (5, 0, 11), True),
        ("Open MPI", (4, 1, 4), False),
        ("Intel MPI", (2021, 18, 1), False),
        ("unknown", (0, 0, 0), False),
    ],
)
def test_exchanges_are_planned_by_libraries_that_were_seen_to_be_right(
    vendor: str, number: tuple[int, int, int], right: bool
) -> None:
    assert library.plans_exchanges(SimpleNamespace(get_vendor=lambda: (vendor, number))) == right


BOUND = """
import os
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cores[rank % 2]})
from demitasse_allreduce.processes import MpiProcesses
with_all = MpiProcesses()
print(f"rank {rank}: {with_all.sharing}")
with_all.close()
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two cores are needed to be bound to one")
def test_only_those_bound_to_the_same_cores_share_them(mpiexec: Callable[..., str]) -> None:
    told = mpiexec(3, BOUND)
    assert {f"rank {rank}: {sharing}" for rank, sharing in enumerate((2, 1, 2))} <= {*told.splitlines()}


def test_a_process_that_was_started_alone_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.launch, "started", lambda: None)
    monkeypatch.setattr(library, "running", lambda: False)
    assert hook(machine=Machine("here", (), fingerprint="any"), options={}) is None
    assert "processes" in next(each for each in discover() if each.name == "allreduce").roles


def test_timeouts_have_units_and_defaults() -> None:
    assert processes.timeouts({}) == {"peer_timeout": 10.0, "stall_timeout": 300.0}
    assert processes.timeouts({"peer_timeout": "1500 ms"})["peer_timeout"] == 1.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"peer_timout": "3 s"},
            r"m.toml: options.allreduce: unknown option 'peer_timout'; did you mean",
        ),
        ({"peer_timeout": 3}, r"peer_timeout = 3 \(valid: a time with its unit, like '30 s'\)"),
        ({"stall_timeout": "3 GB"}, r"m.toml: options.allreduce: stall_timeout = '3 GB'"),
        ({"stall_timeout": "1 ms"}, r"stall_timeout = '1 ms' \(valid: 0.5 s and more\)"),
    ],
)
def test_wrong_timeouts_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        processes.timeouts(options, "m.toml")


def test_a_library_that_takes_one_thread_is_refused() -> None:
    levels = {f"THREAD_{name.upper()}": number for number, name in enumerate(library.LEVELS)}
    mpi = SimpleNamespace(**levels, Query_thread=lambda: 2, get_vendor=lambda: ("MPICH", (5, 0, 2)))
    with pytest.raises(
        CompositionError, match=r"thread level 'serialized'.*'multiple' is needed.*MPICH 5.0.2"
    ):
        library.check_threads(mpi)


def test_a_launcher_of_another_mpi_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = processes.launch.Launch("srun", 1, 4, None)
    alone = SimpleNamespace(COMM_WORLD=SimpleNamespace(size=1), get_vendor=lambda: ("MPICH", (5, 0, 2)))
    monkeypatch.setattr(processes.launch, "started", lambda: found)
    monkeypatch.setattr(library, "start", lambda: alone)
    for spoken, told in (
        ("pmix", "belongs to another MPI"),
        (None, "told MPI nothing.*, or with srun --mpi=pmi2"),
    ):
        if spoken is None:
            monkeypatch.delenv("SLURM_MPI_TYPE")
        else:
            monkeypatch.setenv("SLURM_MPI_TYPE", spoken)
        words = rf"srun started 4 processes, but MPI \(MPICH 5.0.2\) sees one.*{told}"
        with pytest.raises(library.AloneError, match=words) as caught:
            processes.serve(Machine("here", (), fingerprint="any"), {})
        assert caught.value.everywhere


WHEEL = "MPICH Version:      5.0.2\nMPICH Device:       ch4:ucx ofi\nMPICH CC:           cc\n"


@pytest.mark.parametrize(
    ("built", "environment", "taken"),
    [
        (WHEEL, {"SLURM_MPI_TYPE": "pmi2", "PMI_JOBID": "7.0"}, "ofi"),
        (WHEEL, {"SLURM_MPI_TYPE": "pmi2", "PMI_JOBID": "7.0", library.NETWORK: "ucx"}, ""),
        (WHEEL, {"SLURM_MPI_TYPE": "pmi2"}, ""),  # an mpiexec in a step of srun's
        (WHEEL, {"PMI_JOBID": "7.0"}, ""),
        (WHEEL.replace("ucx ofi", "ofi"), {"SLURM_MPI_TYPE": "pmi2", "PMI_JOBID": "7.0"}, ""),
        (WHEEL.replace("ucx ofi", "ucx"), {"SLURM_MPI_TYPE": "pmi2", "PMI_JOBID": "7.0"}, ""),
        ("Open MPI v5.0.11", {"SLURM_MPI_TYPE": "pmi2", "PMI_JOBID": "7.0"}, ""),
    ],
)
def test_mpich_s_addresses_fit_slurm_s_lines(
    built: str, environment: dict[str, str], taken: str
) -> None:
    assert library.network(SimpleNamespace(Get_library_version=lambda: built), environment) == taken


@pytest.mark.parametrize(
    ("vendor", "number", "launcher", "protocol", "size", "knows_pmix", "told"),
    [
        ("Open MPI", 5, "a PMI launcher", "PMI", 2, True, r"started 2 processes.*not know.*, PMI:"),
        ("Open MPI", 5, "a PMI launcher", "PMI", 1, True, ""),
        ("Open MPI", 4, "a PMI launcher", "PMI", 2, False, ""),
        ("Open MPI", 5, "Open MPI's mpiexec", "PMIx", 2, True, ""),
        ("MPICH", 5, "Open MPI's mpiexec", "PMIx", 1, False, r"started 1 process, but.*, PMIx:"),
        ("MPICH", 5, "Open MPI's mpiexec", "PMIx", 2, True, ""),
        ("MPICH", 5, "a PMIx launcher", "PMIx", None, False, r"started this process, but.*, PMIx:"),
        ("MPICH", 5, "a PMI launcher", "PMI", 2, False, ""),
        ("MPICH", 5, "srun", "", 2, False, ""),
    ],
)
def test_a_launcher_whose_protocol_mpi_does_not_know_is_told_before_mpi_starts(
    vendor: str,
    number: int,
    launcher: str,
    protocol: str,
    size: int | None,
    knows_pmix: bool,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MPICH would end the process at its start, also that of ``demitasse doctor``."""

    def initialise(level: int) -> None:
        raise AssertionError("MPI was started")

    mpi = SimpleNamespace(
        get_vendor=lambda: (vendor, (number, 0, 0)),
        Is_finalized=lambda: False,
        Is_initialized=lambda: False,
        Init_thread=initialise,
        THREAD_MULTIPLE=3,
    )
    handle = SimpleNamespace(**({"PMIx_Init": None} if knows_pmix else {}))
    monkeypatch.setattr(library, "loaded", lambda: mpi)
    monkeypatch.setattr(library, "_mapped", lambda: ["libmpi.so"])
    monkeypatch.setattr(library, "_opened", lambda name: handle)
    found = processes.launch.Launch(launcher, 0, size, protocol=protocol)
    monkeypatch.setattr(processes.launch, "started", lambda: found)
    with pytest.raises(CompositionError if told else AssertionError, match=told or "MPI was started"):
        library.start()


def test_the_library_of_this_environment_knows_its_launcher_s_protocol() -> None:
    protocol = {"MPICH": "PMI", "Open MPI": "PMIx"}[library.family(library.loaded())]
    found = processes.launch.Launch("its launcher", 0, 2, protocol=protocol)
    assert library.unheard(found, library.loaded()) == ""
