"""A step as events: what each resource does and when, with the overlaps of the synchronisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from demitasse import Bucket, Entry, Span
from demitasse_simulator import statements
from demitasse_simulator.described import ACROSS
from demitasse_simulator.exchange import AUTO, Link
from demitasse_simulator.happenings import Happening, Message, Round, Update
from demitasse_simulator.planning import Draft
from demitasse_simulator.rates import Costed

NUMBER = 8
"""The bytes of each number that workers add up within a pass."""

PHASES = ("read", "forward", "backward", "synchronise")


class Player:
    """Goes through a plan as the step does, on resources that have clocks: ``compute`` is the worker
    itself, ``sync`` what a synchronisation does beside it, ``network`` carries messages,
    ``statistics`` those within a pass, and ``storage`` reads ahead."""

    def __init__(
        self,
        draft: Draft,
        costs: Sequence[Costed],
        update: Update,
        links: Sequence[Link],
        read: float,
        storage: float,
        statistics: Link | None = None,
    ) -> None:
        self.draft, self.costs, self.update, self.links = draft, costs, update, links
        self.statistics = statistics
        self.read, self.storage = read, storage
        self.measuring = draft.measuring
        self.clock: dict[str, float] = {}
        self.happenings: list[Happening] = []
        self.phases = dict.fromkeys(PHASES, 0.0)
        self.waited = 0.0  # seconds of a step in which it waits for samples
        self.overlaps = not self.measuring and any(link.overlaps for link in links)
        self.late = any(link.waits_before_forward for link in links)
        plan = draft.plan
        self.packed = any(made.network is not None and made.packed for made in links)
        self.deferred = self.packed or self.measuring
        self.ready: dict[int, float] = {}  # by bucket: the time at which its parameters are up to date
        self.cut = {entry.stretches[0].start for entry in plan.entries if entry.stretches}
        self.staged = next((number for number, each in enumerate(links) if each.staged), None)
        self.rounds = self._rounds() if self.staged is not None else []
        self.spoken = next((number for number, each in enumerate(links) if each.spoken), None)
        self.messages = self._messages() if self.spoken is not None and self.staged is None else []
        self.renewed: set[int] = set()

    def play(self, iterations: int = 1) -> float:
        """Simulate some iterations and return the seconds of the last one, whose happenings and phases
        are kept."""
        begun = 0.0
        for _ in range(iterations):
            begun = self.clock.get("compute", 0.0)
            self.happenings, self.phases, self.waited = [], dict.fromkeys(PHASES, 0.0), 0.0
            self._iterate()
        return self.clock["compute"] - begun

    def _do(
        self,
        resource: str,
        name: str,
        phase: str,
        seconds: float,
        source: str,
        after: float = 0.0,
        **facts: Any,
    ) -> float:
        start = max(self.clock.get(resource, 0.0), after)
        if seconds > 0:
            self.happenings.append(Happening(resource, name, phase, start, seconds, source, facts))
        self.clock[resource] = start + seconds
        return self.clock[resource]

    def _wait(self, until: float, name: str, counted: bool = True) -> None:
        gap = until - self.clock.get("compute", 0.0)
        if gap > 0:
            self._do("compute", name, "synchronise", gap, "wait")
            self.phases["synchronise"] += gap if counted else 0.0

    def _iterate(self) -> None:
        passes, plan = self.draft.solver.passes, self.draft.plan
        self._moment("begin")
        for number in range(passes):
            before = self.clock.get("compute", 0.0)
            fetched = self.clock.get("storage", 0.0)
            if fetched > before:
                self.waited += fetched - before
                self._do("compute", "wait for samples", "read", fetched - before, "wait")
            self._do("storage", "read ahead", "read", self.storage, "storage", after=before)
            self._do("compute", "read", "read", self.read, "memory")
            self.phases["read"] += self.clock["compute"] - before
            last = number == passes - 1
            for i, entry in enumerate(plan.entries):
                if number == 0:
                    self._await(i)
                self._entry(i, entry)
                if last:
                    self._final(i)
        if self.staged is not None:
            self._staged_end()
        elif self.messages:
            self._spoken_end()
        elif self.deferred:
            self._at_the_end()
        if not self.late:
            self._wait(max([0.0, *self.ready.values()]), "wait for parameters")

    def _await(self, i: int) -> None:
        for bucket, first in zip(self.draft.plan.buckets, self.draft.plan.first_read, strict=True):
            if first == i and self.messages:
                self._moment(("read", bucket.index))
            if first == i and bucket.index in self.ready:
                until = self.ready.pop(bucket.index)
                self._wait(until, f"wait for {', '.join(bucket.layers)}")

    def _entry(self, i: int, entry: Entry) -> None:
        if entry.once:
            return
        costed = self.costs[i]
        self._do(
            "compute",
            entry.layer,
            entry.phase,
            costed.seconds,
            costed.source,
            operation=entry.operation,
            kernel=entry.kernel,
            plugin=entry.plugin,
            flops=entry.flops,
            bytes=entry.bytes,
        )
        self.phases[entry.phase] += costed.seconds
        if entry.operation == ACROSS and self.statistics is not None:
            self._added_up(entry, self.statistics)
        for span in entry.stretches:
            self._update("compute", entry.layer, span, 0.0, entry.layer)

    def _added_up(self, entry: Entry, link: Link) -> None:
        """Wait until the processes have added up what an entry has. Messages this small do not queue
        behind those of gradients and parameters."""
        elements = sum(math.prod(b.spec.shape) for b in entry.outputs if b) * NUMBER // link.item
        name = f"statistics of {entry.layer}"
        until = self._message(link, elements, name, self.clock["compute"], where="statistics")
        self._wait(until, f"wait for {name}")

    def _final(self, i: int) -> None:
        for bucket, final in zip(self.draft.plan.buckets, self.draft.plan.final, strict=True):
            if final == i and bucket.span.start not in self.cut:
                if self.messages:
                    self._spoken_final(bucket)
                elif self.staged is None:
                    self._chain(bucket)
                else:
                    self._gathered(bucket)

    def _messages(self) -> list[Message]:
        """Return what a plugin sends between nodes and when, as it states itself. If gradients are
        measured before any is used, the worker waits for each bucket's sum as soon as the bucket is
        final."""
        order, _ = self._finished()
        firsts = zip(self.draft.plan.buckets, self.draft.plan.first_read, strict=True)
        reads = [bucket.index for bucket, _ in sorted(firsts, key=lambda each: (each[1], each[0].index))]
        assert self.spoken is not None
        spoken = self.links[self.spoken].spoken
        found = [Message(*each) for each in statements.messages(spoken, order, reads)]
        if not self.measuring:
            return found
        sums = [each for each in found if isinstance(each.goal, str) and each.goal != "broadcast"]
        alone = [
            Message(each.goal, (index,), ("final", index), ("final", index))
            for each in sums
            for index in each.buckets
        ]
        return [each for each in found if each not in sums] + alone

    def _moment(self, now: Any) -> None:
        """Handle a moment: wait for the messages that are needed ``now``, start those that may start,
        and wait for those of them that are needed now too."""
        for each in self.messages:
            if each.wait == now and each.until is not None:
                self._arrived(each)
        for each in self.messages:
            if each.start == now:
                self._send(each)
        for each in self.messages:
            if each.wait == now and each.until is not None:
                self._arrived(each)

    def leaving(self, span: Span, number: int) -> int:
        """Return the number of elements of a span that all workers of the process send over link
        ``number``: each sends those that the levels inside leave to it. All use the process's only
        endpoint."""
        total = 0
        for worker in range(len(self.links[number].chain.syncs)):
            mine = span
            for link in self.links[:number]:
                mine = link.kept(mine, worker)
            total += len(mine)
        return total

    def _buckets(self, message: Message) -> list[Bucket]:
        return [bucket for bucket in self.draft.plan.buckets if bucket.index in message.buckets]

    def _send(self, message: Message) -> None:
        assert self.spoken is not None
        buckets, now = self._buckets(message), self.clock.get("compute", 0.0)
        layers = [layer for bucket in buckets for layer in bucket.layers]
        name = layers[0] if len({*layers}) == 1 else f"{layers[0]} to {layers[-1]}" if layers else ""
        if isinstance(message.goal, str):
            elements, link = (
                sum(self.leaving(b.span, self.spoken) for b in buckets),
                self.links[self.spoken],
            )
            if link.near > 1:
                add = link.among_threads(buckets[0], Span(0, elements))[0]
                now = self._do("network", f"add {name} in the node", "synchronise", add, "memory", now)
            message.until = self._message(self.links[self.spoken], elements, name, now, message.goal)
        else:
            seconds = float(message.goal)
            about = "synchronise", seconds, "description"
            message.until = self._do("network", f"exchange {name}", *about, after=now)

    def _arrived(self, message: Message) -> None:
        """Wait for a message, and update the buckets that it summed."""
        layers = [layer for bucket in self._buckets(message) for layer in bucket.layers]
        assert message.until is not None
        self._wait(message.until, f"wait for {layers[0] if layers else 'nothing'}")
        message.until = None
        if message.goal != "broadcast" and not self.measuring:
            for bucket in self._buckets(message):
                self._renew(bucket)

    def _renew(self, bucket: Bucket) -> None:
        """Update a bucket, and give its parameters to siblings inside."""
        self.renewed.add(bucket.index)
        start, span, back, name = self.clock["compute"], bucket.span, 0.0, ", ".join(bucket.layers)
        for link in self.links:
            back += link.among_threads(bucket, span)[1]
            span = link.kept(span)
        self._update("compute", name, span, 0.0)
        self._do("compute", f"give {name}", "synchronise", back, "memory")
        self.phases["synchronise"] += self.clock["compute"] - start

    def _spoken_final(self, bucket: Bucket) -> None:
        """Handle a bucket that is final: siblings inside add their gradients, then it may be sent."""
        start, span, name = self.clock["compute"], bucket.span, ", ".join(bucket.layers)
        for link in self.links[: self.spoken]:
            reduce, _ = link.among_threads(bucket, span)
            self._do("compute", f"reduce {name}", "synchronise", reduce, "memory")
            span = link.kept(span)
        self.phases["synchronise"] += self.clock["compute"] - start
        self._moment(("final", bucket.index))
        self._measure(bucket)

    def _spoken_end(self) -> None:
        """After backward, wait for what is still under way, and update buckets that needed no
        message."""
        self._moment("end")
        for each in self.messages:
            if each.until is not None:
                self._arrived(each)
        for bucket in self.draft.plan.buckets:
            if bucket.index not in self.renewed:
                self._renew(bucket)
        self.renewed.clear()

    def _finished(self) -> tuple[list[Bucket], list[float]]:
        """Return the buckets in the order in which backward finishes them, and the seconds at which it
        does."""
        plan = self.draft.plan
        passed, ready = 0.0, dict[int, float]()
        for i, entry in enumerate(plan.entries):
            passed += 0.0 if entry.once else self.costs[i].seconds
            ready |= {b.index: passed for b, f in zip(plan.buckets, plan.final, strict=True) if f == i}
        order = sorted(plan.buckets, key=lambda bucket: (ready[bucket.index], bucket.index))
        return order, [ready[bucket.index] for bucket in order]

    def _rounds(self) -> list[Round]:
        """Return the buckets that a synchronisation in stages handles together, as it states itself."""
        assert self.staged is not None
        sync, (order, ready) = self.links[self.staged].staged, self._finished()
        together = statements.stages(sync, order, ready)
        if not self.measuring:
            return [Round(*each) for each in together]
        each_alone = [
            statements.stages(sync, [bucket], [at]) for bucket, at in zip(order, ready, strict=True)
        ]
        statements.stages(sync, order, ready)  # its sources describe the last call
        return [Round(*each) for alone in each_alone for each in alone]

    def _gathered(self, bucket: Bucket) -> None:
        """Note that a bucket is final. With the last bucket of those that go together, run their stages
        before the update."""
        for each in self.rounds:
            if bucket.index not in each.buckets:
                continue
            each.there.add(bucket.index)
            if len(each.there) == len(each.buckets):
                each.there.clear()
                moment = self._stages(each.before, self.clock["compute"])
                self.ready |= dict.fromkeys(each.buckets, moment)
                for one in self.draft.plan.buckets:
                    if one.index in each.buckets:
                        self._measure(one)

    def _stages(self, stages: Sequence[tuple[str, str, float]], after: float) -> float:
        """Run stages one after the other; return when the last one ends. If gradients are measured
        before any is used, nothing overlaps with computing."""
        moment, begun = after, self.clock.get("compute", 0.0)
        for resource, name, seconds in stages:
            where = "compute" if self.measuring else resource
            moment = self._do(where, name, "synchronise", seconds, "description", after=moment)
        self.phases["synchronise"] += self.clock.get("compute", 0.0) - begun
        return moment

    def _staged_end(self) -> None:
        """After backward, wait for all buckets, pass them on to the levels around, and update them."""
        around = range((self.staged or 0) + 1, len(self.links))
        packed = next((n for n in around if self.links[n].network and self.links[n].packed), None)
        self._wait(max([0.0, *self.ready.values()]), "wait for gradients")
        self.ready.clear()
        if packed is not None:
            self._passed_on(packed, Span(0, self.draft.plan.trainable), "all gradients")
        for each in self.rounds:
            for bucket in [b for b in self.draft.plan.buckets if b.index in each.buckets]:
                name, span = ", ".join(bucket.layers), bucket.span
                for number, link in enumerate(self.links):
                    if link.network is not None and not link.packed:
                        self._passed_on(number, bucket.span, name)
                    span = link.kept(span)
                start = self.clock["compute"]
                self._update("compute", name, span, 0.0)
                self.phases["synchronise"] += self.clock["compute"] - start
            self._stages(each.after, self.clock["compute"])

    def _passed_on(self, number: int, span: Span, name: str) -> None:
        """Send the process's part of a span as a message between nodes, and wait for it."""
        elements, now = self.leaving(span, number), self.clock["compute"]
        self._wait(self._message(self.links[number], elements, name, now), f"wait for {name}")

    def _chain(self, bucket: Bucket) -> None:
        """Reduce outwards, update, distribute inwards, as ``demitasse.chain`` binds them."""
        name = ", ".join(bucket.layers)
        where = "sync" if self.overlaps else "compute"
        start = self.clock["compute"]
        span, inwards, moment = bucket.span, [0.0], start
        for number, link in enumerate(self.links):
            reduce, distribute = link.among_threads(bucket, span)
            moment = self._do(where, f"reduce {name}", "synchronise", reduce, "memory", after=moment)
            inwards.append(distribute)
            if link.network is not None and not link.packed:
                moment = self._message(link, self.leaving(bucket.span, number), name, moment)
            span = link.kept(span)
        if self.deferred:
            if where == "compute":
                self._wait(moment, f"wait for {name}", counted=False)
                self.phases["synchronise"] += self.clock["compute"] - start
            if not self.packed:
                self._measure(bucket)
            return
        moment = self._update(where, name, span, moment)
        moment = self._do(where, f"give {name}", "synchronise", sum(inwards), "memory", after=moment)
        if where == "sync":
            self.ready[bucket.index] = moment
        elif self.links:
            self.clock["compute"] = max(self.clock["compute"], moment)
            self.phases["synchronise"] += self.clock["compute"] - start

    def _message(
        self,
        link: Link,
        elements: int,
        name: str,
        after: float,
        goal: str = "allreduce",
        where: str = "network",
    ) -> float:
        cost = link.over_network(elements, goal)
        if cost is None:
            return after
        # If there are several algorithms, the link uses the cheapest for each size.
        who = "cheapest" if link.algorithm == AUTO else link.algorithm
        what = f"{goal} " if goal != "allreduce" else ""
        return self._do(
            where,
            f"{who} {what}{name}",
            "synchronise",
            cost.seconds,
            "schedule",
            after=after,
            latency=cost.latency,
            transfer=cost.transfer,
            reduction=cost.reduction,
            rounds=cost.rounds,
        )

    def _update(self, where: str, name: str, span: Span, after: float, layer: str = "") -> float:
        """Update a span; return when this ends. ``layer``: the update follows a part of its gradient."""
        if not span:
            return after
        costed = self.update(len(span), layer)
        phase = "synchronise" if self.links else "backward"
        done = self._do(where, f"update {name}", phase, costed.seconds, costed.source, after=after)
        if where == "compute" and not self.links:
            self.phases["backward"] += costed.seconds
        return done

    def _measure(self, bucket: Bucket) -> None:
        """If an update needs the norms of whole gradients, measure this worker's part of a bucket,
        which is summed by now."""
        span = bucket.span
        for link in self.links:
            span = link.kept(span)
        if not self.measuring or not span:
            return
        costed, phase = self.update.measure(len(span)), "synchronise" if self.links else "backward"
        self._do("compute", f"measure {', '.join(bucket.layers)}", phase, *costed)
        self.phases[phase] += costed.seconds

    def _at_the_end(self) -> None:
        """Do what has to wait for all gradients: send one message with them, update, and distribute the
        parameters."""
        start = self.clock["compute"]
        moment = max(start, self.clock.get("sync", 0.0))
        buckets = self.draft.plan.buckets
        for number, link in enumerate(self.links):
            if link.network is not None and link.packed:
                elements = self.leaving(Span(0, self.draft.plan.trainable), number)
                moment = self._message(link, elements, "all gradients", moment)
        self.clock["compute"] = max(self.clock["compute"], moment)
        self.phases["synchronise"] += self.clock["compute"] - start
        for bucket in buckets if self.packed else ():
            self._measure(bucket)
        start = self.clock["compute"]
        for bucket in buckets:
            span, back = bucket.span, 0.0
            for link in self.links:
                back += link.among_threads(bucket, span)[1]
                span = link.kept(span)
            name = ", ".join(bucket.layers)
            self._update("compute", name, span, 0.0)
            self._do("compute", f"give {name}", "synchronise", back, "memory")
        if self.links:  # without links, the updates have been counted already
            self.phases["synchronise"] += self.clock["compute"] - start
