"""Which processes are still there, and what each is doing. A thread sends and receives heartbeats, and
tells all others about the first process that died, fell silent, stalled or failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from demitasse import WorkerError
from demitasse_allreduce.channel import Channel, Message, neighbours

SETTLING = 0.3
"""Seconds between the first bad news and the error that reports it. Meanwhile, news may come of other
processes that failed at the same time, so that all processes name the same one first."""

BEAT, LINK_BEAT = 0.2, 0.02
"""Seconds between heartbeats: at least BEAT, and at least LINK_BEAT per link. A heartbeat costs about
60 us per link. (A fifth of the peer timeout is the upper limit.)"""

FLUSHING = 1.0
"""Seconds within which a process that ends must get rid of its unsent messages."""


@dataclass(frozen=True)
class Person:
    """How a process is named in messages to users."""

    host: str
    process: int


@dataclass
class Peer:
    """What a linked process last reported: where it is, whether it waits for others, for how many
    seconds it has made no progress (``idle``), and for how many seconds no process that it knows of has
    been seen at work (``calm``). ``silent`` is how many seconds it has not been heard; ``parted``,
    whether it said goodbye."""

    iteration: int = -1
    layer: str = ""
    waiting: bool = False
    idle: float = 0.0
    calm: float = 0.0
    silent: float = 0.0
    parted: bool = False


@dataclass(frozen=True, order=True)
class News:
    """A reason why the run cannot continue. ``class_`` is 1 for what may only be a consequence of
    another process's failure, else 0; ``time`` is the wall clock of the process that noticed it. The
    smallest news, in this order, is the cause that all processes name first."""

    class_: int
    time: float
    rank: int
    words: str

    @classmethod
    def heard(cls, message: Message) -> News:
        """Return the news in a peer's message."""
        known = {"class_": int, "time": float, "rank": int, "words": str}
        return cls(**{name: kind(message[name]) for name, kind in known.items()})


class Watch:
    """This process's part in watching the others: number ``rank`` among ``people``, over a ``channel``
    whose links it watches. A peer is silent after ``peer_timeout`` s without a heartbeat. It has
    stalled if, for ``stall_timeout`` s during which this process waited, it neither made progress nor
    waited.

    If there is bad news of ranks that are ``expendable``, the run continues without them: ``lost`` has
    these ranks and what happened to each. A process that was only thought to be gone receives the news
    about itself, and ends."""

    def __init__(
        self,
        rank: int,
        people: Sequence[Person],
        channel: Channel,
        peer_timeout: float,
        stall_timeout: float,
    ) -> None:
        self.rank, self.people, self._channel = rank, people, channel
        self.peer_timeout, self.stall_timeout = peer_timeout, stall_timeout
        self.iteration, self.layer = -1, ""
        self.broken: str | None = None  # the message that check raises
        self.expendable: frozenset[int] = frozenset()
        self.lost: dict[int, str] = {}
        self.closing = False
        self.complete = False  # no more links will come; until then nobody counts as stalled
        self._reports = self._checks = 0
        self._seen = 0, 0
        self._waiting, self._idle, self._waited = False, 0.0, 0.0
        self._peers: dict[int, Peer] = {}
        self._parted: set[int] = set()
        self._news: dict[int, News] = {}
        self._settling = 0.0
        self._tasks: list[Message] = []
        self._behind = False  # some messages have not left yet
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        links = len(neighbours(rank, len(people)))
        self._beat = min(peer_timeout / 5, max(BEAT, LINK_BEAT * links))
        self._thread = threading.Thread(target=self._run, name="demitasse-watch", daemon=True)
        self._thread.start()

    # For the threads that compute.

    def report(self, iteration: int, layer: str) -> None:
        """Report where this process is; this counts as progress."""
        self.iteration, self.layer = iteration, layer
        self._reports += 1

    def check(self) -> None:
        """Raise WorkerError once the run cannot continue; otherwise note that a thread here is
        waiting."""
        self._checks += 1
        if self._news:  # a thread that waited on would meet a consequence, not the cause
            with self._changed:
                self._changed.wait_for(lambda: self.broken or not self._news, 2 * SETTLING)
        if self.broken is not None:
            raise WorkerError(self.broken)

    def linked(self, expected: int, seconds: float) -> frozenset[int]:
        """Wait until ``expected`` links exist, or for ``seconds``. Returns the ranks that are linked."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._peers) >= expected, seconds)
            return frozenset(self._peers)

    def settled(self, seconds: float) -> bool:
        """Wait until there is bad news that ``check`` raises, or for ``seconds``. Returns whether there
        is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.broken is not None, seconds)

    def dropped(self, seconds: float) -> bool:
        """Wait for bad news, or for ``seconds``. Returns whether the run continues without the processes
        that the news is about."""
        with self._changed:
            self._changed.wait_for(lambda: self.broken is not None or self.lost, seconds)
            return self.broken is None and bool(self.lost)

    def tell(self, words: str, consequence: bool = False) -> None:
        """Tell all others why this process ends; returns when the message is on its way. Does nothing if
        there is news already: the others know that another process failed first."""
        if self.broken is None and not self._news:
            self._ask({"kind": "news", "words": words, "class_": int(consequence)})

    def part(self) -> None:
        """Tell all others that this process has done its part. From now on it waits for others only to
        leave them."""
        self.closing = True
        self._ask({"kind": "parted", "rank": self.rank})

    def stop(self) -> None:
        """Say goodbye and end the thread and the connections."""
        self._stopping.set()
        self._channel.wake()
        self._thread.join()

    def _ask(self, task: Message) -> None:
        if not self._thread.is_alive():
            return
        with self._changed:
            self._tasks.append(task)
            self._channel.wake()
            self._changed.wait_for(lambda: not self._tasks and not self._behind, FLUSHING)

    # The thread.

    def _run(self) -> None:
        try:
            last, due = time.monotonic(), 0.0
            while not self._stopping.is_set():
                events = self._channel.poll(self._beat / 2)
                now = time.monotonic()
                # Time during which this process itself was stopped (a debugger, a suspended machine)
                # does not count against the others: they may have been stopped with it.
                passed, last = min(now - last, 2 * self._beat), now
                for peer in self._peers.values():
                    peer.silent += passed
                for rank, message in events:
                    self._hear(rank, message)
                self._do_tasks()
                if now >= due:
                    self._observe(self._beat)
                    self._channel.broadcast(self._heartbeat(), spare=True)
                    self._channel.drop(self.peer_timeout)
                    self._judge()
                    due = now + self._beat
                self._settle(passed)
            self._goodbye()
        finally:
            self._channel.close()

    def _do_tasks(self) -> None:
        with self._changed:
            tasks = list(self._tasks)
        for task in tasks:
            if task["kind"] == "parted":
                self._spread_parting(self.rank)
            elif not self._news:
                words = f"failed {self._place()}: {task['words']}"
                self._spread(News(task["class_"], time.time(), self.rank, words))
        with self._changed:
            del self._tasks[: len(tasks)]
            self._behind = self._channel.unsent
            self._changed.notify_all()

    def _observe(self, passed: float) -> None:
        """Observe the progress of this process itself. A thread that waits for others calls ``check``
        repeatedly; any other caller of ``check`` also reports progress."""
        reports, checks = self._reports, self._checks
        got_on = reports != self._seen[0]
        self._waiting = checks != self._seen[1] and not got_on
        self._idle = 0.0 if got_on else self._idle + passed
        self._waited = self._waited + passed if self._waiting else 0.0
        self._seen = reports, checks
        for peer in self._peers.values():
            peer.calm += passed

    @property
    def _calm(self) -> float:
        """Seconds since any process was last known to be at work."""
        if not self._waiting:
            return 0.0
        return min([self._waited, *(peer.calm for peer in self._peers.values())])

    def _heartbeat(self) -> Message:
        return {
            "kind": "beat",
            "iteration": self.iteration,
            "layer": self.layer,
            "waiting": self._waiting,
            "idle": self._idle,
            "calm": self._calm,
        }

    def _hear(self, rank: int, message: Message | None) -> None:
        if rank in self.lost:
            return
        if message is None:
            peer = self._peers.pop(rank, None)
            if peer is not None and not peer.parted:
                self._found(rank, peer, "died")
            return
        kind = message.get("kind")
        if kind == "linked":
            self._peers.setdefault(rank, Peer())
            for news in self._news.values():
                self._channel.send(rank, {"kind": "news", **vars(news)})
            for other in self._parted:
                self._channel.send(rank, {"kind": "parted", "rank": other})
        peer = self._peers.setdefault(rank, Peer())
        peer.silent = 0.0
        if kind == "beat":
            peer.iteration, peer.layer = int(message["iteration"]), str(message["layer"])
            peer.waiting = bool(message["waiting"])
            peer.idle, peer.calm = float(message["idle"]), float(message["calm"])
        elif kind == "news":
            self._spread(News.heard(message), rank)
        elif kind == "parted":
            self._spread_parting(int(message["rank"]), rank)
        elif kind == "bye":
            peer.parted = True

    def _judge(self) -> None:
        for rank, peer in list(self._peers.items()):
            if peer.silent > self.peer_timeout and not peer.parted:
                words = f"has been silent for {peer.silent:.3g} s: stopped, or its host is down"
                self._found(rank, peer, words)
        if self.closing or self._news or not self.complete:
            return
        limit = self.stall_timeout
        for rank, peer in self._peers.items():
            if min(self._waited, peer.idle) > limit and not peer.waiting and rank not in self._parted:
                self._found(
                    rank, peer, f"has stalled: it is alive, but has made no progress for {limit:.3g} s"
                )
                return
        others = self._parted - {self.rank, *self.lost}
        if others and self._calm > self.peer_timeout:
            rank = min(others)
            words = "has ended its part in the run, while others wait for it"
            self._found(rank, self._peers.get(rank, Peer()), words)
        elif self._calm > limit and not self._peers:
            words = f"has waited for {limit:.3g} s, with no connection that could tell for whom"
            self._spread(News(0, time.time(), self.rank, f"{words}, {self._place()}"))
        elif self._calm > limit:
            each = {r: _at(p.iteration, p.layer) for r, p in self._peers.items()}
            each[self.rank] = self._place()
            told = "; ".join(f"rank {rank} {each[rank]}" for rank in sorted(each)[:4])
            words = f"has waited, like all others, for {limit:.3g} s: {told}"
            self._spread(News(0, time.time(), self.rank, words))

    def _found(self, rank: int, peer: Peer, words: str) -> None:
        self._spread(
            News(0, time.time(), rank, f"{words}; last heard of {_at(peer.iteration, peer.layer)}")
        )

    def _spread(self, news: News, but: int | None = None) -> None:
        """Note a piece of news, and pass it on unless it is known already. ``but`` is the rank that it
        came from."""
        known = self._news.get(news.rank)
        old = news.rank in self.lost or (known is not None and known <= news)
        if self.broken is not None or old:
            return
        if not self._news:
            self._settling = SETTLING
        self._news[news.rank] = news
        self._channel.broadcast({"kind": "news", **vars(news)}, but)

    def _spread_parting(self, rank: int, but: int | None = None) -> None:
        if rank not in self._parted:
            self._parted.add(rank)
            self._channel.broadcast({"kind": "parted", "rank": rank}, but)

    def _settle(self, passed: float) -> None:
        if self._news and self.broken is None:
            self._settling -= passed
            if self._settling <= 0:
                with self._changed:
                    if self._news.keys() <= self.expendable - {self.rank}:
                        self._lose()
                    else:
                        self.broken = self._words()
                    self._changed.notify_all()

    def _lose(self) -> None:
        """Continue without the processes that the news is about."""
        for rank, news in self._news.items():
            self.lost[rank] = f"{self.called(rank)} {news.words}"
            self._peers.pop(rank, None)
        self._news.clear()

    def _words(self) -> str:
        first, *others = sorted(self._news.values())
        also = f"; so did {self.called(others[0].rank)}" if len(others) == 1 else ""
        if len(others) > 1:
            ranks = ", ".join(str(news.rank) for news in sorted(others, key=lambda news: news.rank)[:8])
            also = (
                f"; {len(others)} others failed too (ranks {ranks}{', ...' if len(others) > 8 else ''})"
            )
        who = self.called(first.rank)
        if first.rank == self.rank:
            return f"{who}, this process, {first.words}{also}"
        return f"{who} {first.words}{also}; this is {self.called(self.rank)} {self._place()}"

    def called(self, rank: int) -> str:
        """Return a text for a rank with its host and process."""
        person = self.people[rank]
        return f"rank {rank} of {len(self.people)} (host {person.host}, process {person.process})"

    def _place(self) -> str:
        return _at(self.iteration, self.layer)

    def _goodbye(self) -> None:
        """Say goodbye and send all that is left, so that the end of the links does not count as a
        death."""
        self._channel.broadcast({"kind": "bye"})
        self._channel.finish(FLUSHING)


def _at(iteration: int, layer: str) -> str:
    if iteration < 0:
        return f"before its first iteration{f', {_named(layer)}' if layer else ''}"
    return f"at iteration {iteration}{f', {_named(layer)}' if layer else ''}"


def _named(layer: str) -> str:
    return layer if " " in layer else f"layer {layer}"  # "a snapshot" is not a layer
