"""Kernels of one memory space lent to places in another: they compute on copies of their operands.

A plugin's manifest may name such a space (``otherwise = "host"`` in its role kernels). Kernels of that
space then compute the operations that no plugin computes in the plugin's own spaces. A layer from one
package can thus train on an accelerator from another, if slowly, and small, rare operations need no
kernel of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from demitasse import PLAIN, Candidate

if TYPE_CHECKING:
    from demitasse import Composition, Layout, Request, TensorSpec, Work

Hook = Callable[..., Iterable[Candidate]]
Serving = Callable[..., Iterator[tuple[str, Hook]]]

_log = logging.getLogger("demitasse.contracts")
_told = set[tuple[str, str]]()


def kernels_elsewhere(composition: Composition, serving: Serving, space: str) -> list[tuple[str, Hook]]:
    """Return (plugin, hook) for the kernels lent to ``space``, preferred first: those of the spaces that
    the manifests of its own plugins name. ``serving`` finds the hooks of a role."""
    named = [
        each.roles["kernels"] for each in composition.plugins if each.serves("kernels", space=space)
    ]
    others = dict.fromkeys(facts["otherwise"] for facts in named if facts.get("otherwise"))
    return [
        (plugin, partial(_offers, plugin, hook, other))
        for other in others
        if other != space
        for plugin, hook in serving("kernels", space=other)
    ]


def _offers(plugin: str, hook: Hook, space: str, request: Request) -> list[Candidate]:
    """Return the first candidate for a request in the other space, changed to work on copies. It is
    asked for plain layouts or, if the request moves values between layouts, for the request's own."""
    moved = request.operation.name == "reorder"
    asked = replace(
        request,
        inputs=request.inputs if moved else _plainly(request.inputs),
        outputs=request.outputs if moved else _plainly(request.outputs),
        place=replace(request.place, space=space),
        precision="f32" if request.precision == "bf16" else request.precision,
    )
    held = _layouts(asked.inputs), _layouts(asked.outputs)
    if any((layout.stored or "").startswith("V") for layout in (*held[0], *held[1])):
        return []  # only the plugin that owns the layout can read these bits
    for candidate in hook(request=asked):
        pairs = zip((candidate.input_layouts, candidate.output_layouts), held, strict=True)
        if all((given or (PLAIN,) * len(asked_for)) == asked_for for given, asked_for in pairs):
            bind = partial(_bind, candidate, asked, plugin, request.place.space)
            name = f"{candidate.kernel}, on copies in {space}"
            layouts = held if moved else ((), ())
            return [Candidate(name, bind, *layouts, in_place=False)]
    return []


def _layouts(specs: Sequence[TensorSpec | None]) -> tuple[Layout, ...]:
    return tuple(PLAIN if spec is None else spec.layout for spec in specs)


def _plainly(specs: Sequence[TensorSpec | None]) -> tuple[TensorSpec | None, ...]:
    return tuple(spec and replace(spec, layout=PLAIN) for spec in specs)


def _bind(
    candidate: Candidate,
    request: Request,
    plugin: str,
    space: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    scratch: Any,
) -> Work:
    """Return the candidate's work, with its inputs copied before it and its outputs after it."""
    import numpy as np

    name, there = request.operation.name, request.place.space
    if (name, space) not in _told:
        _told.add((name, space))
        told = "%s is computed on copies in %s, by plugin %r: no plugin computes it in %s"
        _log.warning(told, name, there, plugin, space)
    read, written = (
        [spec and np.zeros(spec.physical, spec.array_type) for spec in specs]
        for specs in (request.inputs, request.outputs)
    )
    workspace = np.empty(candidate.workspace, np.uint8) if candidate.workspace else None
    last = len(request.operation.inputs) - 1
    operands = [request.operation.inputs[min(i, last)] for i in range(len(read))]
    updated = [operand.updated for operand in operands]
    rates = [
        mine
        for mine, operand in zip(read, operands, strict=True)
        if operand.name == "rate" and not written
    ]
    return OnCopies(
        candidate.bind(read, written, workspace),
        next(iter(rates), None),
        [(mine, theirs) for mine, theirs in zip(read, inputs, strict=True) if theirs is not None],
        [
            (theirs, mine)
            for changes, mine, theirs in zip(
                [*updated, *[True] * len(written)], [*read, *written], [*inputs, *outputs], strict=True
            )
            if changes and theirs is not None
        ],
    )


class OnCopies:
    """A work whose operands are copied before and after it, given as (to, from) pairs. A negative
    ``rate`` comes from an accelerator's guard; the update then changes nothing."""

    def __init__(
        self,
        work: Work,
        rate: Any,
        before: Sequence[tuple[Any, Any]],
        after: Sequence[tuple[Any, Any]],
    ) -> None:
        self._work, self._rate, self._before, self._after = work, rate, before, after
        if named := getattr(work, "named", None):
            self.named = named

    def __call__(self) -> None:
        import numpy as np

        for mine, theirs in self._before:
            mine[...] = np.asarray(theirs)
        if self._rate is not None and self._rate[0] < 0:
            return
        self._work()
        for theirs, mine in self._after:
            theirs[...] = mine
