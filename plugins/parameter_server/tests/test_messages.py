"""Messages carry what their headers say; a message that does not is reported with its sender."""

from __future__ import annotations

import zlib
from collections import defaultdict, deque
from typing import Any

import numpy as np
import pytest

from demitasse import WorkerError
from demitasse_parameter_server.guest import Guest
from demitasse_parameter_server.messages import HEADER, LENGTH, PAYLOAD, PUSH, Header, Hearing, Post


class Request:
    """Done once ``done`` says so."""

    def __init__(self, done: Any) -> None:
        self.Test = done


class Loop:
    """A communicator of one rank, whose messages come in the order in which they were sent."""

    def __init__(self) -> None:
        self.waiting: dict[int, deque[Any]] = defaultdict(deque)

    def Isend(self, data: Any, to: int, tag: int) -> Request:
        self.waiting[tag].append(np.array(data))
        return Request(lambda: True)

    def Irecv(self, room: Any, source: int, tag: int) -> Request:
        def take() -> bool:
            if not self.waiting[tag]:
                return False
            room[...] = self.waiting[tag].popleft()
            return True

        return Request(take)


class Ended(Loop):
    """A communicator of which one process has ended: MPI reports this as an error at the ``nth`` test,
    which may be for another process's message."""

    def __init__(self, nth: int = 0, times: int = 1) -> None:
        super().__init__()
        self.looks, self.errors = 0, range(nth, nth + times)

    def Irecv(self, room: Any, source: int, tag: int) -> Request:
        real = super().Irecv(room, source, tag).Test

        def look() -> bool:
            self.looks += 1
            if self.looks - 1 in self.errors:
                raise RuntimeError("Other MPI error, process_vm_readv failed (errno 3)")
            return bool(real())

        return Request(look)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def post(loop: Loop) -> Post:
    return Post(loop, lambda: None)


def test_numbers_arrive_as_they_were_sent_and_bytes_are_counted_by_shard(post: Post) -> None:
    arrays = [np.arange(5, dtype=np.float32), np.arange(3, dtype=np.float64)]
    for shard, array in enumerate(arrays):
        post.send(0, 7, shard, array)
    for shard, array in enumerate(arrays):
        room = np.zeros_like(array)
        post.receive(0, 7, shard, room)
        np.testing.assert_array_equal(room, array)
    post.finish()
    assert post.sent == post.received == {0: 20, 1: 24}


def test_a_header_is_a_messagepack_table_of_what_follows(post: Post, loop: Loop) -> None:
    import msgpack

    post.send(0, 3, 1, np.ones(2, np.float32))
    (header,) = loop.waiting[HEADER]
    assert header.nbytes == LENGTH
    unpacker = msgpack.Unpacker()
    unpacker.feed(bytes(header))
    names: dict[str, Any] = {
        "iteration": 3,
        "shard": 1,
        "dtype": "float32",
        "count": 2,
        "kind": "numbers",
        "bucket": 0,
    }
    names["numbers"] = {}
    assert unpacker.unpack() == {**names, "crc": zlib.crc32(np.ones(2, np.float32))}


@pytest.mark.parametrize(
    ("iteration", "shard", "message"),
    [(4, 1, "rank 0 sent .*: iteration 3, not 4"), (3, 0, "rank 0 sent .*: shard 1, not 0")],
)
def test_another_message_than_expected_is_named(
    post: Post, iteration: int, shard: int, message: str
) -> None:
    post.send(0, 3, 1, np.ones(2))
    with pytest.raises(WorkerError, match=message):
        post.receive(0, iteration, shard, np.zeros(2))


def test_damaged_numbers_are_noticed(post: Post, loop: Loop) -> None:
    post.send(0, 3, 1, np.ones(2))
    loop.waiting[PAYLOAD][0][3] ^= 1
    with pytest.raises(WorkerError, match=r"rank 0 sent unexpected numbers: crc "):
        post.receive(0, 3, 1, np.zeros(2))


def test_bytes_that_are_no_header_are_said_to_be_none(post: Post, loop: Loop) -> None:
    post.send(0, 3, 1, np.ones(2))
    loop.waiting[HEADER][0][:] = 0xC1
    with pytest.raises(WorkerError, match="rank 0 sent something that is not a header"):
        post.receive(0, 3, 1, np.zeros(2))


def test_who_waits_hears_of_a_failure(loop: Loop) -> None:
    def failed() -> None:
        raise WorkerError("rank 2 on host b died")

    with pytest.raises(WorkerError, match="rank 2"):
        Post(loop, failed).receive(0, 0, 0, np.zeros(2))


def test_a_header_is_read_as_it_was_written() -> None:
    header = Header(1, 0, "float32", 3, 99)
    assert Header.unpacked(header.packed()) == header


def test_what_a_rank_sends_to_itself_is_not_counted(loop: Loop) -> None:
    post = Post(loop, lambda: None, rank=0)
    post.send(0, 1, 0, np.ones(2))
    post.receive(0, 1, 0, np.zeros(2))
    assert post.sent == post.received == {}


def test_who_expects_an_array_may_do_other_things_first(post: Post) -> None:
    rooms = [np.zeros(2), np.zeros(3)]
    waits = [post.expect(0, 4, 1, room, bucket) for bucket, room in enumerate(rooms)]
    for bucket in (0, 1):
        post.send(0, 4, 1, np.arange(2.0 + bucket), bucket=bucket)
    for wait in waits:
        wait()
    assert [room.tolist() for room in rooms] == [[0.0, 1.0], [0.0, 1.0, 2.0]]


def test_a_server_takes_messages_as_they_come_and_waits_for_none(post: Post, loop: Loop) -> None:
    guest = Guest(loop, 3, "float64", longest=5)
    assert guest.message() is None
    for bucket in (0, 1):
        post.send(0, 7, 1, np.arange(3.0 + bucket), PUSH, bucket, {"rate": 0.5, "scale": 2.75})
    for bucket in (0, 1):
        found = guest.message()
        assert found is not None
        header, numbers = found
        assert (header.kind, header.iteration, header.bucket) == (PUSH, 7, bucket)
        assert header.numbers == {"rate": 0.5, "scale": 2.75}
        assert numbers.tolist() == [*range(3 + bucket)]
    assert guest.message() is None


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(6), "rank 3 sent 6 numbers of type float64 .valid: up to 5 of float64"),
        (np.zeros(2, np.float32), "rank 3 sent 2 numbers of type float32 .valid: up to 5 of float64"),
    ],
)
def test_a_server_names_who_sends_what_is_none_of_its_numbers(
    post: Post, loop: Loop, array: Any, message: str
) -> None:
    post.send(0, 7, 1, array, PUSH)
    with pytest.raises(WorkerError, match=message):
        Guest(loop, 3, "float64", longest=5).message()


def test_a_server_notices_damaged_numbers(post: Post, loop: Loop) -> None:
    post.send(0, 3, 1, np.ones(2), PUSH)
    loop.waiting[PAYLOAD][0][3] ^= 1
    with pytest.raises(WorkerError, match=r"rank 3 sent unexpected numbers: crc "):
        Guest(loop, 3, "float64", longest=5).message()


@pytest.mark.parametrize("nth", range(4))
def test_an_error_of_mpi_is_of_whichever_process_has_ended_and_the_others_go_on(nth: int) -> None:
    comm = Ended(nth, times=2)
    guest = Guest(comm, 0, "float64", longest=5, lost={2: "rank 2 died"})
    post = Post(comm, lambda: None, lost={2: "rank 2 died"})
    post.send(0, 7, 1, np.arange(3.0), PUSH)
    found = [given for _ in range(4) if (given := guest.message()) is not None]
    assert [numbers.tolist() for _, numbers in found] == [[0.0, 1.0, 2.0]]
    comm.looks = 0
    post.send(0, 8, 1, np.arange(2.0))
    room = np.zeros(2)
    Post(comm, lambda: None).receive(0, 8, 1, room)
    assert room.tolist() == [0.0, 1.0]


def test_who_meets_an_error_of_mpi_names_the_process_that_ended() -> None:
    comm, heard = Ended(times=9), list[int]()

    def check() -> None:
        heard.append(comm.looks)
        if len(heard) == 4:  # the news come a little later
            raise WorkerError("rank 1 of 3 died")

    with pytest.raises(WorkerError, match=r"^rank 1 of 3 died$"):
        Post(comm, check).receive(0, 7, 1, np.zeros(2))


def test_an_error_of_mpi_that_nobodys_end_explains_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demitasse_parameter_server.messages.NEWS", -1.0)
    with pytest.raises(WorkerError, match=r"no process is known to have ended: .*errno 3"):
        Post(Ended(), lambda: None).receive(0, 7, 1, np.zeros(2))


def test_a_request_that_mpi_has_given_up_is_not_done() -> None:
    """It tests as done from then on, although nothing was received."""
    comm = Ended()
    post = Post(comm, lambda: None, lost={2: "rank 2 died"})
    given_up = type("GivenUp", (), {"__bool__": lambda self: False, "Test": lambda self: True})()
    waits = iter([False, True])
    hearing = Hearing({2: "rank 2 died"})
    assert not hearing.done(Request(comm.Irecv(np.zeros(1), 0, HEADER).Test))
    assert not hearing.done(given_up)
    assert not hearing.done(Request(lambda: next(waits)))
    assert hearing.done(Request(lambda: next(waits)))
    post.finish()
