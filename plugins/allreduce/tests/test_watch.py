"""Processes learn of each other's ends over connections of their own; here these are all in one
process."""

from __future__ import annotations

import errno
import itertools
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import PluginError, WorkerError
from demitasse_allreduce import library
from demitasse_allreduce.addresses import LOOPBACK, addresses, listen
from demitasse_allreduce.channel import STRANGERS, Channel, neighbours
from demitasse_allreduce.processes import MpiProcesses
from demitasse_allreduce.watch import News, Person, Watch

PATIENCE = 30.0

Linked = Callable[..., list[Watch]]


def channels(size: int, token: bytes = b"ours", before: tuple[str, ...] = ()) -> list[Channel]:
    """Return the channels of ``size`` ranks; connecting to the addresses ``before`` fails."""
    listeners = [listen(everywhere=False) for _ in range(size)]
    ports = [listener.getsockname()[1] for listener in listeners]
    return [
        Channel(
            rank,
            token,
            listeners[rank],
            {
                other: [(place, ports[other]) for place in (*before, LOOPBACK)]
                for other in neighbours(rank, size)
                if other > rank
            },
        )
        for rank in range(size)
    ]


@pytest.fixture
def linked(no_threads_left: None) -> Iterator[Linked]:
    """``linked(size)``: watches of so many linked ranks; they are stopped at the end."""
    with ExitStack() as stack:

        def make(size: int, peer_timeout: float = 20.0, stall_timeout: float = 20.0) -> list[Watch]:
            people = [Person(f"host{rank}", 100 + rank) for rank in range(size)]
            made = [
                Watch(rank, people, channel, peer_timeout, stall_timeout)
                for rank, channel in enumerate(channels(size))
            ]
            for watch in made:
                stack.callback(watch.stop)
            for rank, watch in enumerate(made):
                expected = neighbours(rank, size)
                assert watch.linked(len(expected), PATIENCE) == frozenset(expected)
            return made

        yield make


@given(size=st.integers(1, 200), lost=st.sets(st.integers(0, 199), max_size=2))
def test_losing_two_parts_nobody_from_the_rest(size: int, lost: set[int]) -> None:
    left = set(range(size)) - lost
    links = {rank: set(neighbours(rank, size)) for rank in left}
    assert all(rank in neighbours(other, size) for rank in left for other in links[rank])
    reached = set(itertools.islice(left, 1))
    while more := {other for rank in reached for other in links[rank] & left} - reached:
        reached |= more
    assert reached == left


def test_there_are_few_links_in_a_large_run() -> None:
    assert [len(neighbours(0, size)) for size in (1, 2, 3, 5, 16, 1024)] == [0, 1, 2, 4, 7, 19]


@pytest.mark.parametrize("size", [2, 3, 9])
def test_all_raise_the_words_of_the_one_that_failed(linked: Linked, size: int) -> None:
    watches = linked(size)
    watches[1].report(17, "conv3")
    watches[1].tell("ValueError: no")
    for rank, watch in enumerate(watches):
        assert watch.settled(PATIENCE)
        with pytest.raises(WorkerError) as caught:
            watch.check()
        mine = ", this process," if rank == 1 else ""
        words = f"rank 1 of {size} (host host1, process 101){mine} failed at iteration 17, layer conv3"
        assert str(caught.value).startswith(f"{words}: ValueError: no")


def test_of_failures_at_the_same_time_all_name_the_same_first(linked: Linked) -> None:
    watches = linked(6)
    told = [threading.Thread(target=watches[rank].tell, args=(f"error {rank}",)) for rank in (2, 4)]
    for thread in told:
        thread.start()
    for thread in told:
        thread.join()
    causes = set()
    for watch in watches:
        assert watch.settled(PATIENCE)
        causes.add(str(watch.broken).partition(":")[0].replace(", this process,", ""))
    assert len(causes) == 1


def lost_by(watch: Watch) -> dict[int, str]:
    """Return the ranks that a watch has lost, once there are some."""
    for _ in range(int(PATIENCE / 0.05)):
        watch.check()
        if watch.lost or watch.settled(0.05):
            break
    return watch.lost


def test_the_run_goes_on_without_those_that_are_expendable(linked: Linked) -> None:
    watches = linked(4)
    for watch in watches:
        watch.expendable = frozenset({1, 3})
    watches[3].report(17, "conv3")
    watches[3].tell("ValueError: no")
    assert watches[3].settled(PATIENCE)
    with pytest.raises(WorkerError, match=r"rank 3 of 4 \(host host3, .*\), this process, failed"):
        watches[3].check()
    words = "rank 3 of 4 (host host3, process 103) failed at iteration 17, layer conv3: ValueError: no"
    for watch in watches[:3]:
        assert lost_by(watch) == {3: words}
        watch.check()
    watches[0].tell("OSError: no disk")
    for watch in watches[:3]:
        assert watch.settled(PATIENCE)
        with pytest.raises(WorkerError, match="rank 0 of 4"):
            watch.check()


def test_a_failure_that_ends_the_run_is_told_with_those_that_would_not(linked: Linked) -> None:
    watches = linked(3)
    for watch in watches:
        watch.expendable = frozenset({2})
    for rank in (1, 2):
        watches[rank].tell(f"error {rank}")
    assert watches[0].settled(PATIENCE)
    with pytest.raises(WorkerError, match="rank 1 of 3"):
        watches[0].check()


def test_what_may_follow_from_another_failure_is_not_the_cause() -> None:
    consequence = News(1, 1.0, 0, "failed: MPI_ERR_OTHER")
    assert min(consequence, News(0, 2.0, 3, "died")).rank == 3
    assert min(News(0, 2.0, 3, "died"), News(0, 1.5, 4, "died")).rank == 4


def test_nothing_is_wrong_while_all_is_well(linked: Linked) -> None:
    watches = linked(3, peer_timeout=0.5)
    for watch in watches:
        watch.part()
    for watch in watches:
        watch.check()


def received(channel: Channel, count: int) -> list[tuple[int, object]]:
    """Return the next messages of a channel, except those that make links."""
    found: list[tuple[int, object]] = []
    while len(found) < count:
        for rank, message in channel.poll(PATIENCE):
            if message is None or message.get("kind") not in ("linked", "chosen"):
                found.append((rank, message))
    return found


def test_links_come_about_where_some_addresses_lead_nowhere() -> None:
    first, second = channels(2, before=("127.0.0.2", *addresses()))
    while not (first.links and second.links):
        first.poll(0.01)
        second.poll(0.01)
    first.broadcast({"number": 1})
    first.broadcast({"number": 2})
    first.finish(0.2)
    assert received(second, 2) == [(0, {"number": 1}), (0, {"number": 2})]
    first.close()
    assert received(second, 1) == [(0, None)]
    second.close()


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("!I", 1 << 31) + b"x",
        struct.pack("!I", 3) + b"\xc1\xc1\xc1",
        struct.pack("!I", 1) + b"\x80",
        struct.pack("!I", 1) + b"\x01",
    ],
)
def test_strangers_are_sent_away(words: bytes) -> None:
    listener = listen(everywhere=True)
    channel = Channel(0, secrets.token_bytes(16), listener, {})
    with socket.create_connection((LOOPBACK, listener.getsockname()[1])) as stranger:
        stranger.sendall(words)
        stranger.setblocking(False)
        while True:
            assert channel.poll(0.01) == []
            try:
                assert stranger.recv(100) == b""
                break
            except BlockingIOError:
                continue
            except ConnectionResetError:
                break
    assert channel.links == frozenset()
    channel.close()


def test_another_run_with_another_token_is_not_linked() -> None:
    listener = listen(everywhere=False)
    channel = Channel(0, b"ours", listener, {})
    caller = Channel(1, b"theirs", None, {0: [(LOOPBACK, listener.getsockname()[1])]})
    for _ in range(20):
        assert channel.poll(0.01) == []
        assert caller.poll(0.01) == []
    assert not channel.links
    assert not caller.links
    channel.close()
    caller.close()


def closed(connection: socket.socket) -> bool:
    """Return whether the other end has hung up."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_strangers_that_say_nothing_take_few_descriptors() -> None:
    """Anybody who reaches the port may connect as often as they like: this process can still open
    files."""
    listener = listen(everywhere=False)
    address = listener.getsockname()
    channel = Channel(0, b"ours", listener, {})
    with ExitStack() as stack:
        stack.callback(channel.close)
        strangers = []
        for _ in range(STRANGERS + 20):
            strangers.append(stack.enter_context(socket.create_connection(address)))
            assert channel.poll(PATIENCE) == []
        assert [closed(stranger) for stranger in strangers] == [True] * 20 + [False] * STRANGERS
        caller = Channel(1, b"ours", None, {0: [address]})
        stack.callback(caller.close)
        while not channel.links:
            channel.poll(0.01)
            caller.poll(0.01)
        assert channel.links == {1}


def test_nobody_can_connect_once_all_have() -> None:
    listener = listen(everywhere=False)
    address = listener.getsockname()
    channel = Channel(1, b"ours", listener, {}, callers=[0])
    caller = Channel(0, b"ours", None, {1: [address]})
    socket.create_connection(address).close()
    while not channel.links:
        channel.poll(0.01)
        caller.poll(0.01)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    channel.broadcast({"kind": "beat"})
    while not (heard := [message for _, message in caller.poll(0.01) if message != {"kind": "linked"}]):
        channel.poll(0.0)
    assert heard == [{"kind": "beat"}]
    channel.close()
    caller.close()


def test_a_process_without_descriptors_waits_quietly_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = listen(everywhere=False)
    address = listener.getsockname()
    channel = Channel(0, b"ours", listener, {})

    class Full:
        """The listener of a process that cannot open more files."""

        def accept(self) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        def fileno(self) -> int:
            return listener.fileno()

    with socket.create_connection(address):
        monkeypatch.setattr(channel, "_listener", Full())
        assert channel.poll(PATIENCE) == []
        begun = time.monotonic()
        channel.poll(0.1)
        assert time.monotonic() - begun >= 0.09  # it must not return at once, again and again
        monkeypatch.setattr(channel, "_listener", listener)
        channel.drop(PATIENCE)
        caller = Channel(1, b"ours", None, {0: [address]})
        while not channel.links:
            channel.poll(0.01)
            caller.poll(0.01)
    channel.close()
    caller.close()


class MpiError(Exception):
    """Stands in for MPI's exception."""


def waiting(watch: Watch) -> MpiProcesses:
    """Processes that watch each other, and of which only waiting for a request is used."""
    made = MpiProcesses.__new__(MpiProcesses)
    made._MPI, made._watch, made._kept = SimpleNamespace(Exception=MpiError), watch, []
    made._crowded = made._failed = False
    made.rank = watch.rank
    return made


def request(*looks: bool | None, there: bool = True) -> Any:
    """A request of which MPI reports ``looks`` one after the other; None is an error, after which the
    request still exists or not (``there``)."""
    told, failed = iter(looks), list[MpiError]()

    def look() -> bool:
        if (found := next(told, True)) is None:
            failed.append(MpiError("process_vm_readv failed"))
            raise failed[0]
        return found

    made = type("Request", (), {"__bool__": lambda _: there or not failed})()
    made.Test = look
    return made


@pytest.mark.parametrize("news", ["known before", "come later"])
def test_an_error_of_mpi_by_the_end_of_an_expendable_process_ends_no_wait(
    linked: Linked, news: str
) -> None:
    """Any call may meet the error, even one for another process's message."""
    watches = linked(3)
    for watch in watches:
        watch.expendable = frozenset({2})
    watches[2].tell("ValueError: no")
    if news == "known before":
        lost_by(watches[0])
    assert waiting(watches[0]).wait(request(False, None, None, False), peer=1)
    assert not waiting(watches[1]).wait(request(None, there=False), peer=2)


def test_an_error_of_mpi_by_another_end_names_that(
    linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library.ending, "pending", False)
    watches = linked(3)
    for watch in watches:
        watch.expendable = frozenset({2})
    watches[1].tell("ValueError: no")
    with pytest.raises(
        WorkerError, match=r"^rank 1 of 3 .* failed before its first iteration: ValueError"
    ):
        waiting(watches[0]).wait(request(False, None), peer=2)


def test_what_was_raised_from_an_error_of_mpi_only_follows_from_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plugin's work that meets such an error reports a consequence, so that all name the process that
    ended."""
    monkeypatch.setattr(library.ending, "unclean", False)
    wrapped = PluginError("plugin 'other' raised MpiError")
    wrapped.__cause__ = MpiError("process_vm_readv failed")
    told = dict[str, bool]()
    watch: Any = SimpleNamespace(
        rank=0, tell=lambda words, consequence: told.update({words: consequence})
    )
    for error in (wrapped, MpiError("timed out"), ValueError("no")):
        waiting(watch).fail(error)
    assert [*told.values()] == [True, True, False]
