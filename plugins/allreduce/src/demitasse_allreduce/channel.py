"""Messages between processes outside MPI, which cannot tell that a peer is gone. Each process has TCP
connections to a few others. Their number and choice keep the processes connected if some are lost."""

from __future__ import annotations

import contextlib
import errno
import hmac
import selectors
import socket
import struct
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgpack

Message: TypeAlias = Mapping[str, Any]
Address: TypeAlias = tuple[str, int]

LONGEST = 1 << 16
"""The most bytes of a message; a sender that announces more is not one of our processes."""

UNSENT = 1 << 20
"""The most bytes that may be queued for a peer that does not read, before heartbeats to it are
skipped."""

STRANGERS = 128
"""The most open connections that have not yet sent the token. Anybody can open connections, and this
process needs its descriptors. Processes of the run send the token at once."""

_LENGTH = struct.Struct("!I")


def neighbours(rank: int, size: int) -> list[int]:
    """Return the ranks that ``rank`` is linked with: those 1, 2, 4, ... before and after it in a ring.
    Any of n processes then hears from any other in about log2(n) / 2 steps, and if there are few
    processes all but one can be lost. With up to 5 processes each is linked with all others; with 1,024
    processes, with 19 of the 1,023 others."""
    steps = [1 << k for k in range((size - 1).bit_length())]
    both = {(rank + step) % size for step in steps} | {(rank - step) % size for step in steps}
    return sorted(both - {rank})


@dataclass(eq=False)
class _Line:
    """A TCP connection: the peer's rank (None: not known yet), the bytes that came, and the bytes still
    to be sent."""

    socket: socket.socket
    rank: int | None = None
    mine: bool = False
    ready: bool = False
    since: float = field(default_factory=time.monotonic)
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)


class Channel:
    """This process's connections to its neighbours, used by one thread. ``contacts`` has the addresses
    of the neighbours that it calls. The others, ``callers``, call it at ``listener``, which is closed
    once all of them have called (None: the callers are not known, and it stays open). ``token`` is a
    secret that only processes of this run know. ``links`` are the ranks that it can talk to."""

    def __init__(
        self,
        rank: int,
        token: bytes,
        listener: socket.socket | None,
        contacts: Mapping[int, Iterable[Address]],
        callers: Collection[int] | None = None,
    ) -> None:
        self.rank, self._token, self._callers = rank, token, callers
        self._selector = selectors.DefaultSelector()
        self._links: dict[int, _Line] = {}
        self._lines: set[_Line] = set()
        self._listener, self._resting = listener, False
        self._bell, self._rope = socket.socketpair()
        for end in (self._bell, self._rope):
            end.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, "bell")
        if listener is not None:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, "listener")
        self._close_door()
        for other, places in contacts.items():
            for address in places:
                self._call(other, address)

    @property
    def links(self) -> frozenset[int]:
        """The ranks that messages can reach."""
        return frozenset(self._links)

    def wake(self) -> None:
        """Make ``poll`` return. Any thread may call it."""
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: nobody waits
            self._rope.send(b"!")

    def poll(self, seconds: float) -> list[tuple[int, Message | None]]:
        """Return the messages that came as (rank, message), with None for the end of a connection. Waits
        for at most ``seconds``, and may return an empty list earlier."""
        events: list[tuple[int, Message | None]] = []
        for key, mask in self._selector.select(seconds):
            if key.data == "bell":
                with contextlib.suppress(BlockingIOError):
                    self._bell.recv(4096)
            elif key.data == "listener":
                self._accept()
            elif key.data in self._lines:  # not dropped a moment ago
                line: _Line = key.data
                if mask & selectors.EVENT_WRITE:
                    self._flush(line, events)
                if mask & selectors.EVENT_READ and line in self._lines:
                    self._read(line, events)
        return events

    def send(self, rank: int, message: Message, spare: bool = False) -> None:
        """Queue a message to a linked rank; it is sent as soon as the rank reads. A ``spare`` message is
        dropped if the rank is not reading."""
        line = self._links.get(rank)
        if line is not None and not (spare and len(line.unsent) > UNSENT):
            self._put(line, message)

    def broadcast(self, message: Message, but: int | None = None, spare: bool = False) -> None:
        """Send a message to all linked ranks except ``but``."""
        for rank in self._links:
            if rank != but:
                self.send(rank, message, spare)

    @property
    def unsent(self) -> bool:
        """Whether some messages have not left this process yet."""
        return any(line.unsent for line in self._links.values())

    def drop(self, older: float) -> None:
        """Close connections that have not become links within ``older`` seconds."""
        now = time.monotonic()
        for line in [line for line in self._lines if not line.ready and now - line.since > older]:
            self._forget(line)
        if self._resting and self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ, "listener")
        self._resting = False

    def finish(self, seconds: float) -> None:
        """Send what is left and wait, for at most ``seconds``, until the others have read it: if a
        connection is closed while it holds unread messages, what was sent over it is lost."""
        end = time.monotonic() + seconds
        while self.unsent and time.monotonic() < end:
            self.poll(0.05)
        for line in self._links.values():
            with contextlib.suppress(OSError):
                line.socket.shutdown(socket.SHUT_WR)
        while self._links and time.monotonic() < end:
            self.poll(0.05)

    def close(self) -> None:
        """Close all connections."""
        for line in list(self._lines):
            self._forget(line)
        for end in filter(None, (self._bell, self._rope, self._listener)):
            end.close()
        self._selector.close()

    # Handshake: the caller introduces itself, and the called process answers with its own rank. If
    # several addresses answer, the caller takes the first one and confirms it by a first message.

    def _call(self, rank: int, address: Address) -> None:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            end = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            return  # a host without this family of addresses
        line = _Line(end, rank, mine=True)
        end.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            try:
                end.connect(address)
            except BlockingIOError:
                raise
            except OSError:
                end.close()
                return
        self._add(line)
        self._put(line, {"token": self._token, "from": self.rank, "to": rank})

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            end, _ = self._listener.accept()
        except OSError as error:  # mostly, it hung up while waiting in line
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # The caller stays in the queue, and ``poll`` would return at once until it is accepted.
                self._selector.unregister(self._listener)
                self._resting = True
            return
        end.setblocking(False)
        strangers = [line for line in self._lines if line.rank is None]
        if len(strangers) >= STRANGERS:
            self._forget(min(strangers, key=lambda line: line.since))
        self._add(_Line(end))

    def _close_door(self) -> None:
        """Stop listening once all expected callers have connected."""
        if self._callers is None or self._listener is None or not self._links.keys() >= {*self._callers}:
            return
        if not self._resting:
            self._selector.unregister(self._listener)
        self._listener.close()
        self._listener, self._resting = None, False

    def _add(self, line: _Line) -> None:
        with contextlib.suppress(OSError):
            line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines.add(line)
        self._selector.register(line.socket, selectors.EVENT_READ, line)

    def _forget(self, line: _Line) -> None:
        self._lines.discard(line)
        if line.rank is not None and self._links.get(line.rank) is line:
            del self._links[line.rank]
        self._selector.unregister(line.socket)
        line.socket.close()

    def _put(self, line: _Line, message: Message) -> None:
        body = msgpack.packb(message)
        line.unsent += _LENGTH.pack(len(body)) + body
        self._selector.modify(line.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, line)

    def _flush(self, line: _Line, events: list[tuple[int, Message | None]]) -> None:
        try:
            sent = line.socket.send(line.unsent)
        except BlockingIOError:
            return
        except OSError:
            self._lost(line, events)
            return
        del line.unsent[:sent]
        if not line.unsent:
            self._selector.modify(line.socket, selectors.EVENT_READ, line)

    def _read(self, line: _Line, events: list[tuple[int, Message | None]]) -> None:
        try:
            data = line.socket.recv(LONGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        line.received += data
        for message in _messages(line):
            if message is None:
                data = b""  # not our language
            elif line.ready and line.rank is not None:
                events.append((line.rank, message))
            elif not self._introduced(line, message, events):
                data = b""
        if not data:
            self._lost(line, events)

    def _introduced(
        self, line: _Line, message: Message, events: list[tuple[int, Message | None]]
    ) -> bool:
        """Handle the first messages of a connection. Returns False if the connection is not wanted."""
        if line.rank is None:
            token, caller = message.get("token"), message.get("from")
            known = isinstance(token, bytes) and hmac.compare_digest(token, self._token)
            if not known or message.get("to") != self.rank or not isinstance(caller, int):
                return False
            line.rank = caller
            self._put(line, {"from": self.rank})
            return True
        if line.rank in self._links or (line.mine and message.get("from") != line.rank):
            return False
        line.ready = True
        self._links[line.rank] = line
        self._close_door()
        if line.mine:
            self._put(line, {"kind": "chosen"})
        events.append((line.rank, {"kind": "linked"}))
        return True

    def _lost(self, line: _Line, events: list[tuple[int, Message | None]]) -> None:
        if line.ready and line.rank is not None:
            events.append((line.rank, None))
        self._forget(line)


def _messages(line: _Line) -> Iterable[Message | None]:
    """Yield the complete messages that a connection has received; None for bytes that are not a
    message."""
    while len(line.received) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(line.received)
        if length > LONGEST:
            yield None
            return
        end = _LENGTH.size + length
        if len(line.received) < end:
            return
        body = bytes(line.received[_LENGTH.size : end])
        del line.received[:end]
        try:
            message = msgpack.unpackb(body)
        except (ValueError, msgpack.UnpackException):
            message = None
        yield message if isinstance(message, dict) else None
