"""The solver's update as work on spans of flat memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from demitasse import (
    Allocator,
    Entry,
    FlatMemory,
    Kernels,
    ModelError,
    Plan,
    Request,
    Slot,
    Span,
    TensorSpec,
    Work,
    bound,
    unknown,
)
from demitasse.operations import Operation


@dataclass(frozen=True)
class Update:
    """A solver's operation, of the update family, and its attributes without ``segments``."""

    operation: Operation
    attributes: Mapping[str, Any]

    @classmethod
    def named(
        cls, name: str, attributes: Mapping[str, Any], vocabulary: Mapping[str, Operation], where: object
    ) -> Update:
        """Return the update of that name, with complete attributes. Raises ModelError for an unknown
        name."""
        updates = {n: o for n, o in vocabulary.items() if o.family == "update"}
        if name not in updates:
            raise ModelError(unknown("update", name, updates, where))
        for attribute in attributes:
            if attribute not in updates[name].attributes:
                raise ModelError(
                    unknown(f"attribute of {name}", attribute, updates[name].attributes, where)
                )
        return cls(updates[name], {**updates[name].attributes, **attributes})

    @property
    def state(self) -> tuple[str, ...]:
        """The operands, besides the parameter, that are kept from step to step."""
        return tuple(o.name for o in self.operation.inputs[1:] if o.updated)

    @property
    def needs_squares(self) -> bool:
        """Whether it needs the norms of whole parameters and gradients."""
        return any(operand.name == "squares" for operand in self.operation.inputs)

    def bind(
        self,
        span: Span,
        flat: FlatMemory,
        gradient: Any,
        scalars: Mapping[str, Any],
        plan: Plan,
        kernels: Kernels,
        allocator: Allocator,
        sizes: Mapping[str, Any] | None = None,
    ) -> Work:
        """Return the work that updates ``span`` by its ``gradient``. The parts of parameters in the span
        are its segments, each with its own multipliers. ``sizes`` are the operands derived from norms of
        gradients; optional ones may be missing."""
        trained = [slot for slot in plan.slots if slot.trainable]
        segments = tuple((*part, slot.rate, slot.decay) for *part, slot in within(trained, span))
        part = slice(span.start, span.stop)
        known = {"gradient": gradient, **(sizes or {})}
        known |= {name: memory[part] for name, memory in flat.state.items()}
        operands = [flat.parameters[part]]
        for operand in self.operation.inputs[1:]:
            name = operand.name
            absent = operand.optional and name not in known and name not in scalars
            operands.append(None if absent else known[name] if name in known else scalars[name])
        complete = {**self.attributes, "segments": segments}
        return flat_work(self.operation, complete, operands, plan, kernels, allocator)


def within(slots: Iterable[Slot], span: Span) -> list[tuple[int, int, Slot]]:
    """Return the slots that a span overlaps, each as (start, stop, slot) relative to the span."""
    return [
        (
            max(slot.span.start, span.start) - span.start,
            min(slot.span.stop, span.stop) - span.start,
            slot,
        )
        for slot in slots
        if slot.span.start < span.stop and span.start < slot.span.stop
    ]


def flat_work(
    operation: Operation,
    attributes: Mapping[str, Any],
    operands: Sequence[Any],
    plan: Plan,
    kernels: Kernels,
    allocator: Allocator,
) -> Work:
    """Bind an operation that only updates flat memory at a plan's place; its errors name it."""
    specs = tuple(
        None if array is None else TensorSpec(tuple(array.shape), str(array.dtype)) for array in operands
    )
    request = Request(operation, specs, (), attributes, plan.place)
    plugin, candidate, reason = kernels.choose(request, "solver")
    size = candidate.workspace
    workspace = allocator.allocate(size).view(0, (size,), "uint8") if size else None
    about = operation.name, "solver", "backward", plugin, candidate.kernel, reason
    entry = Entry(*about, (), (), None, False, 0.0, 0.0, candidate)
    return bound(entry, candidate.bind, operands, [], workspace)
