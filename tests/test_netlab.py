"""The network lab: hosts that are namespaces, rates that are as asked, and nothing left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from launchers import LAUNCHER, is_open_mpi
from netlab import LabError, Netlab, missing, network
from netlab.__main__ import options
from netlab.compare import Comparison, compare
from netlab.measure import KB, MB, Line, Measurement, measure
from netlab.network import Plan

import demitasse

ROOT = Path(__file__).parents[1]
MBIT = 1e6 / 8

WHERE = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
node = world.Split_type(MPI.COMM_TYPE_SHARED)
here = os.uname().nodename, os.readlink("/proc/self/ns/net"), node.size, world.allreduce(1)
for each in world.gather(here) or ():
    print(*each)
"""

FOREVER = r"""
import sys
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
sys.stdout.write("begun\n")  # in one piece, as print with an unbuffered output does not
sys.stdout.flush()
while True:
    MPI.COMM_WORLD.Barrier()
"""


def gate() -> None:
    """Skips, with the reason, where no lab can be."""
    pytest.importorskip("mpi4py")
    if (why := missing()) is not None:
        pytest.skip(why)
    if not LAUNCHER.exists() or is_open_mpi():
        pytest.skip("the network lab needs the mpich wheel's mpiexec beside this Python")


@pytest.fixture(scope="module")
def lab() -> Iterator[Netlab]:
    gate()
    with Netlab(hosts=4, supernodes=2, bandwidth="400 Mbit/s", oversubscription=2) as made:
        yield made


@pytest.fixture(scope="module")
def measured(lab: Netlab) -> Measurement:
    return measure(lab, sizes=(8, 2 * MB))


def command(*words: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, str(ROOT / "tools/netlab"), *words]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_each_rank_is_on_a_host_with_a_network_of_its_own(lab):
    rows = [line.split() for line in lab.run(["python", "-c", WHERE]).stdout.splitlines()]
    assert [row[0] for row in rows] == ["host0", "host1", "host2", "host3"]
    assert len({row[1] for row in rows} | {str(Path("/proc/self/ns/net").readlink())}) == 5
    assert [row[2:] for row in rows] == [["1", "4"]] * 4


def test_hosts_can_have_several_ranks_and_any_order(lab):
    done = lab.run(["python", "-c", WHERE], ranks_per_host=2, hosts=[2, 0])
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["host2", "host2", "host0", "host0"]
    assert [row[2:] for row in rows] == [["2", "4"]] * 4


def test_three_supernodes_reach_each_other():
    gate()
    with Netlab(hosts=3, supernodes=3, oversubscription=1) as made:
        assert len(made.run(["python", "-c", WHERE]).stdout.splitlines()) == 3


def test_rates_are_those_asked_for(measured):
    for line, rate in (
        (measured.alone_inside, 400 * MBIT),
        (measured.alone_across, 400 * MBIT),
        (measured.loaded_inside, 400 * MBIT),
        (measured.loaded_across, 200 * MBIT),
    ):
        size, seconds = line.points[-1]
        # Shaping bounds the rate from above, but for the burst; other work can always make it slower.
        assert rate / 20 < size / seconds < 1.1 * rate


def test_the_lab_describes_itself(measured, tmp_path):
    file = tmp_path / "lab.toml"
    file.write_text(measured.description())
    machine = demitasse.load_machine(str(file))
    supernode, host = machine.levels
    assert (supernode.count, host.count, host.workers) == (2, 2, "mpi")
    assert supernode.link.oversubscription == pytest.approx(measured.oversubscription, rel=1e-3)
    assert host.link.bandwidth.value == pytest.approx(1 / measured.loaded_inside.beta, rel=1e-3)
    assert host.link.latency.value == pytest.approx(measured.loaded_inside.alpha, rel=1e-3)
    assert {host.link.bandwidth.source, supernode.link.latency.source} == {"measured"}


def test_a_killed_hosts_ranks_are_gone_and_the_others_still_there(lab):
    words = ["python", "-c", FOREVER]
    job = lab.start(words, options=["-disable-auto-cleanup"], stdout=subprocess.PIPE, text=True)
    try:
        assert [job.stdout.readline() for _ in range(4)] == ["begun\n"] * 4
        lab.kill_host(3)
        lab.stop_host(2)
        until = time.monotonic() + 10  # the kernel acts on signals when it gets to
        while (found := [state(lab, host) for host in (2, 3)]) != ["T", "gone"]:
            assert time.monotonic() < until, found
            time.sleep(0.01)
        assert not {state(lab, host) for host in range(2)} & {"T", "gone"}
        assert job.poll() is None
    finally:
        lab.end(job)
        lab.plug(3)
    assert all(not lab.ranks(host) for host in range(4))
    assert len(lab.run(["python", "-c", WHERE]).stdout.splitlines()) == 4


def state(lab: Netlab, host: int) -> str:
    """The state of a host's one rank, as the kernel's letter."""
    found = [
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in lab.ranks(host)
    ]
    return "".join(found).strip("Z") or "gone"


def test_a_job_that_fails_says_why(lab):
    with pytest.raises(LabError, match=r"(?s)exit status 1.*ZeroDivisionError"):
        lab.run(["python", "-c", "1 / 0"], hosts=[0])


def test_a_job_that_does_not_end_is_ended(lab):
    with pytest.raises(LabError, match=r"not ended after 0\.5 seconds"):
        lab.run(["sleep", "60"], timeout=0.5)
    assert all(not lab.ranks(host) for host in range(4))


def test_mpichs_algorithms_compare_in_one_job(lab, measured):
    told = []
    found = compare(
        lab,
        sizes=[256 * KB, 128 * KB],
        rounds=1,
        mpich=["ring"],
        algorithms=[],
        measured=measured,
        told=lambda now: told.append((now.sizes, now.only(len(now.sizes) - 1).table())),
    )
    assert set(found.seconds) == {"MPICH default", "MPICH ring", "floor, no sums"}
    assert "MPICH ring" in found.table()
    assert [sizes for sizes, _ in told] == [(256 * KB,), (256 * KB, 128 * KB)]
    assert "0.25 MB" in told[0][1]
    assert "0.25 MB" not in told[1][1]


def test_ours_compare_with_them(lab, measured):
    pytest.importorskip("demitasse_allreduce.executor")
    found = compare(
        lab, sizes=[256 * KB], rounds=1, mpich=[], algorithms=["ring", "auto"], measured=measured
    )
    own = {"ours ring, natural", "ours ring, round-robin", "ours auto"}
    assert set(found.seconds) == {"MPICH default", "floor, no sums", *own}
    assert set(found.predicted) == own
    assert f"auto picks {found.choices[0]}" in found.table()


def test_nothing_is_left_of_labs_side_by_side_nor_after_errors():
    gate()
    with Netlab(hosts=2, supernodes=1) as one, Netlab(hosts=2, supernodes=2) as other:
        assert len(network.namespaces(one.name)) == 5
        assert len(network.namespaces(other.name)) == 6
    with pytest.raises(ZeroDivisionError), Netlab(hosts=2) as third:
        third.start(["sleep", "60"])
        raise ZeroDivisionError
    for gone in (one, other, third):
        assert network.namespaces(gone.name) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_lab_and_all_in_it(number, status):
    gate()
    job = command("--hosts", "2", "--", "sh", "-c", "echo up; exec sleep 600")
    assert job.stdout.readline() == "up\n"
    assert network.namespaces(f"netlab-{network.identity(job.pid)}")
    own = f"netlab-{network.identity(job.pid)}"
    job.send_signal(number)
    job.communicate(timeout=60)
    assert job.returncode == status
    assert network.namespaces(own) == []


def test_clean_removes_what_a_killed_lab_left_and_no_living_one(lab):
    job = command("--hosts", "2", "--", "sh", "-c", "echo up; exec sleep 600")
    assert job.stdout.readline() == "up\n"
    own = f"netlab-{network.identity(job.pid)}"
    job.kill()
    job.wait()
    job.stdout.close()
    assert network.namespaces(own)
    output, _ = command("clean").communicate(timeout=60)
    assert f"{own}-0: 6 namespaces removed" in output
    assert network.namespaces(own) == []
    assert len(network.namespaces(lab.name)) == 8


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"hosts": 0}, r"0 hosts \(valid: 1 to 64\)"),
        ({"hosts": 8, "supernodes": 3}, r"3 supernodes of 8 hosts \(valid: 1, 2, 4, 8"),
        ({"oversubscription": 0}, r"oversubscription 0 \(valid: above 0"),
        ({"bandwidth": "1 kbit/s"}, r"0\.001 Mbit/s a host .*at least 0\.8 Mbit/s"),
    ],
)
def test_a_lab_that_cannot_be_is_refused(arguments, says):
    with pytest.raises(LabError, match=says):
        Netlab(**arguments)


def test_a_window_that_no_connection_fills_is_refused():
    with pytest.raises(LabError, match="window"):
        Plan(2, 1, 50e6, 1, window=1024).check()


def test_a_wrong_unit_is_refused():
    with pytest.raises(demitasse.DescriptionError, match="400 Mbits"):
        Netlab(bandwidth="400 Mbits")


def test_a_host_that_is_not_there_is_refused():
    with pytest.raises(LabError, match=r"no host 4 \(valid: 0 to 3\)"):
        Netlab(hosts=4).unplug(4)


def test_a_lab_outside_its_context_runs_nothing():
    with pytest.raises(LabError, match="context manager"):
        Netlab().run(["true"])


def test_bandwidth_reads_with_and_without_its_slash():
    assert Netlab(bandwidth="400Mbit").plan.rate == Netlab(bandwidth="50 MB/s").plan.rate == 50e6


def test_the_trunk_has_what_oversubscription_leaves():
    assert Plan(8, 2, 50e6, 4).trunk == 4 * 50e6 / 4
    assert Plan(8, 4, 50e6, 1).trunk == 2 * 50e6


def test_the_command_line_wants_an_action_or_a_command(capsys):
    assert options(["measure"]).action == "measure"
    assert options(["--hosts", "4", "--", "ls", "--hosts"]).command == ["ls", "--hosts"]
    for words in ([], ["measure", "--", "ls"]):
        with pytest.raises(SystemExit):
            options(words)
        assert "either an action" in capsys.readouterr().err


def test_a_line_is_fitted_to_small_and_large_messages_only():
    def seconds(size: int) -> float:
        return 1e-4 + 2e-8 * size

    points = [
        (0, seconds(0)),
        (64 * KB, 0.5 * seconds(64 * KB)),
        (MB, seconds(MB)),
        (4 * MB, seconds(4 * MB)),
    ]
    line = Line.fitted(points)
    assert (line.alpha, line.beta) == pytest.approx((1e-4, 2e-8))


def test_findings_are_ratios_of_medians():
    line = Line(1e-4, 2e-8, ((8, 1e-4),))
    lab = Measurement(Plan(8, 2, 50e6, 4), line, line, line, line, (1.0,), 1e-10)
    halving = "ours recursive-halving-doubling"
    seconds = {
        "MPICH default": [[4.0, 9.0, 4.0]],
        "MPICH ring": [[3.0, 3.0, 3.0]],
        f"{halving}, natural": [[8.0, 8.0, 8.0]],
        f"{halving}, round-robin": [[5.0, 4.0, 3.0]],
        "floor, no sums": [[1.0, 1.5, 1.0]],
        "ours auto": [[2.0, 2.0, 2.5]],
    }
    predicted = {f"{halving}, natural": [8.0], f"{halving}, round-robin": [5.0]}
    made = Comparison(lab, (8 * MB,), seconds, predicted)
    (found,) = made.findings()
    assert (found["orders"], found["default"], found["best"]) == (2.0, 2.0, 1.5)
    assert (found["best_of_mpich"], found["worst"]) == ("MPICH ring", f"{halving}, round-robin")
    assert (found["floor"], found["quartiles"]) == (0.5, (1.35, 1.5))
    assert found["model"] == pytest.approx(-0.2)
    assert "2.00 times as fast as in natural order (goal 1.7: met)" in made.table()
    assert "1.500 times as fast as MPICH ring (in half of the rounds 1.350 to 1.500" in made.table()
    assert "goal 1.0: met)" in made.table()
    even = replace(made, seconds=seconds | {"MPICH ring": [[2.0, 2.2, 1.9]]})
    assert "goal 1.0: a tie, by these rounds)" in even.table()
    assert "the least that any must send takes 50.0% of ours auto's time" in made.table()
    assert "-20.0% (goal 15%: not met)" in made.table()
    assert json.loads(json.dumps(made.json()))["findings"][0]["best"] == 1.5


def test_unknown_names_are_refused():
    lab = Netlab()
    with pytest.raises(LabError, match="unknown algorithm of MPICH 'rign'; did you mean 'ring'"):
        compare(lab, mpich=["rign"], algorithms=[])
    with pytest.raises(LabError, match=r"0 rounds .*at least 1"):
        compare(lab, rounds=0)
