"""What the processes of a run must have in common: what they train, and how parameters are laid out."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from itertools import takewhile
from operator import eq
from typing import Any

import numpy as np

from demitasse import (
    Bucket,
    Graph,
    Layout,
    NetDefinition,
    Plan,
    Processes,
    Runtime,
    Slot,
    Solver,
    Span,
    TensorSpec,
    Tuner,
    WorkerError,
)
from demitasse_training.arguments import rate_of

OWN = ("snapshot_prefix", "display_interval")
"""Settings of a solver that only process 0 uses."""

PLACES = re.compile(r""" "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | \b0x[0-9a-f]+ """, re.VERBOSE)
"""Matches texts and addresses of objects in the repr of a layer's parameters."""

SETTING = re.compile(r"[\w']+(?: ?= ?|: | \{)")
"""Matches the beginning of a setting in the repr of layers' parameters and descriptions."""

WORD = re.compile(r"\S+")

SHOWN = 60
"""How many characters of a fact an error shows."""


class DisagreementError(WorkerError):
    """Processes differ. Each of them raises this error, with the same message."""

    everywhere = True


def agree(processes: Processes, facts: Mapping[str, str]) -> None:
    """Compare facts, given by name, over all processes. If they differ, raises DisagreementError in each
    process, which names the processes that differ from the majority, and in what; WorkerError if a
    process has ended."""
    if processes.size == 1:
        return
    told = processes.gather({name: _brief(text) for name, text in facts.items()})
    if None in told:  # a process without which an earlier trainer of this runtime continued
        raise WorkerError(
            f"{_ranks([r for r, each in enumerate(told) if each is None])} of {processes.size} "
            f"ended earlier; start as many processes again and resume from the last snapshot"
        )
    names = dict.fromkeys(name for each in told for name in each)
    for name in names:
        if len({each.get(name) for each in told}) == 1:
            continue
        values = processes.gather(facts.get(name, "missing"))
        usual = Counter(values).most_common(1)[0][0]
        value = next(each for each in values if each != usual)
        ranks = [rank for rank, each in enumerate(values) if each == value]
        raise DisagreementError(
            f"{_ranks(ranks)} of {processes.size}: {name} is {_short(value, usual)}, but on the others "
            f"{_short(usual, value)}; all processes must train the same net in the same way"
        )


def composition(
    runtime: Runtime, solver: Solver, precision: str, scaling: str, statistics: str, seed: int
) -> dict[str, str]:
    """Return a run's facts: plugins, machine, precision, the solver's settings and its net's layers."""
    described = runtime.machine
    facts = {f"plugin {name}": version for name, version in runtime.composition.versions.items()}
    if described.path is not None:
        facts["the hardware description"] = str(described)
    facts |= {"precision": precision, "scaling": scaling, "statistics": statistics}
    facts["the seed"] = str(seed)
    facts |= {"the solver's update": f"{solver.update} {_table(solver.update_attributes)}"}
    for setting in fields(solver):
        value = getattr(solver, setting.name)
        if isinstance(value, int | float | str | bool) and setting.name not in OWN:
            facts[f"the solver's {setting.name}"] = str(value)
    facts["the solver's learning rates"] = " ".join(
        f"{rate_of(solver, i):.9g}" for i in (0, 1, solver.max_iterations // 2, solver.max_iterations)
    )
    facts["the solver's test_iterations"] = " ".join(map(str, solver.test_iterations))
    facts |= _layers(solver.train, "the net's")
    for number, test in enumerate(solver.tests):
        facts |= _layers(test, f"test net {number}'s")
    return facts


def samples(graph: Graph, whose: str = "") -> dict[str, str]:
    """Return how many samples each of a net's sources has, and with which fields: a host's copy of a
    data set may be outdated or truncated."""
    facts = dict[str, str]()
    for feed in graph.feeds:
        fields = (
            f"{name} {'x'.join(map(str, field.shape)) or 'scalar'} {field.dtype}"
            for name, field in sorted(feed.source.fields.items())
        )
        facts[f"what {whose}layer {feed.layer!r} reads"] = (
            f"{feed.source.size} samples, {', '.join(fields)}"
        )
    return facts


def _layers(net: NetDefinition, whose: str) -> dict[str, str]:
    """Return a net's layers and their settings. Layers without bottoms are given without texts and
    addresses, because the samples' location may differ from host to host."""
    facts = {f"{whose} list of layers": " ".join(layer.name for layer in net.layers)}
    for layer in net.layers:
        settings = repr(layer.parameters)
        if not layer.bottoms:
            settings = PLACES.sub("", settings)
        name = f"layer {layer.name!r}"
        facts[name if whose == "the net's" else f"{whose} {name}"] = f"{layer.type} {settings}"
    return facts


def planned_alike(
    processes: Processes, tuner: Tuner | None, plan: Callable[[Plan | None], Plan]
) -> Plan:
    """Make ``plan(like)`` in every process, so that flat memory is laid out as in process 0. Process 0's
    tuner tries kernels while the others wait for its choices."""
    if processes.size == 1:
        return plan(None)
    first = processes.rank == 0
    if not first:
        choices = processes.gather(None)[0]
        if tuner is not None:
            tuner.prefer(choices)
    made = plan(None)
    if first:
        processes.gather(tuner.choices() if tuner is not None else {})
    theirs = processes.gather([_told(made)] if first else None)[0][0]
    if theirs != _told(made):
        made = plan(replace(made, **_heard(theirs)))
    return made


def _told(plan: Plan) -> dict[str, Any]:
    return {
        "slots": [
            [
                [list(owner) for owner in slot.owners],
                [slot.span.start, slot.span.stop],
                [list(slot.spec.shape), slot.spec.dtype],
                _layout(slot.spec.layout),
                [slot.rate, slot.decay, slot.trainable],
            ]
            for slot in plan.slots
        ],
        "buckets": [[b.index, b.span.start, b.span.stop, list(b.layers)] for b in plan.buckets],
    }


def _layout(layout: Layout) -> list[Any]:
    return [layout.name, list(layout.order), [list(block) for block in layout.blocks], layout.stored]


def _heard(told: Mapping[str, Any]) -> dict[str, Any]:
    slots = [
        Slot(
            tuple((layer, number) for layer, number in owners),
            Span(*span),
            TensorSpec(
                tuple(shape),
                dtype,
                Layout(name, tuple(order), tuple((d, size) for d, size in blocks), stored),
            ),
            *rates,
        )
        for owners, span, (shape, dtype), (name, order, blocks, stored), rates in told["slots"]
    ]
    buckets = [
        Bucket(index, Span(start, stop), tuple(layers)) for index, start, stop, layers in told["buckets"]
    ]
    return {"slots": tuple(slots), "buckets": tuple(buckets)}


def digest(array: Any) -> str:
    """Return a short text that distinguishes arrays by their bytes. If an array repeats one element
    along an axis (a simulation's memory is only counted), that element alone is read."""
    array = np.asarray(array)
    some = array[tuple(slice(None if step else 1) for step in array.strides)]
    return f"{zlib.crc32(np.ascontiguousarray(some).reshape(-1).view(np.uint8).data):08x}"


def _brief(text: str) -> str:
    """Return a fact, or a digest of a long one, so that processes that agree need not send all of it."""
    return text if len(text) <= SHOWN else f"{len(text)} characters, {zlib.crc32(text.encode()):08x}"


def _table(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={values[name]}" for name in sorted(values))


def _short(text: str, other: str) -> str:
    """Return a fact for an error; of a long one, only the settings or words in which it differs."""
    if max(len(text), len(other)) <= SHOWN:
        return text
    apart = _alike(text, other)
    alike = len(text) - _alike(text[apart:][::-1], other[apart:][::-1])
    words = [match.start() for match in (SETTING if SETTING.search(text) else WORD).finditer(text)]
    begin = max(apart - SHOWN // 2, *(place for place in words if place < apart), 0)
    end = min((place for place in words if place >= alike), default=len(text))
    shown = text[begin : min(end, begin + SHOWN)].rstrip(" ,{[(")
    return f"{'... ' * (begin > 0)}{shown}{' ...' * (begin + len(shown) < len(text))}"


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _alike(text: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    return sum(takewhile(bool, map(eq, text, other)))
