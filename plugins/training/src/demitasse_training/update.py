"""The solver's update as work on spans of flat memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from demitasse import (
    Allocator,
    FlatMemory,
    Kernels,
    ModelError,
    Plan,
    Request,
    Span,
    TensorSpec,
    Work,
    unknown,
)
from demitasse.operations import Operation


@dataclass(frozen=True)
class Update:
    """A solver's operation of family update, and its attributes without ``segments``."""

    operation: Operation
    attributes: Mapping[str, Any]

    @classmethod
    def named(
        cls, name: str, attributes: Mapping[str, Any], vocabulary: Mapping[str, Operation], where: object
    ) -> Update:
        """The update of that name, its attributes completed. Raises ModelError for a wrong name."""
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
        """Operands besides the parameter that are kept from step to step."""
        return tuple(o.name for o in self.operation.inputs[1:] if o.updated)

    def bind(
        self,
        span: Span,
        flat: FlatMemory,
        gradient: Any,
        scalars: Mapping[str, Any],
        plan: Plan,
        kernels: Kernels,
        allocator: Allocator,
    ) -> Work:
        """The work that updates ``span`` by its ``gradient``: the parameters' parts in it are its
        segments, each with its own multipliers."""
        segments = tuple(
            (
                max(slot.span.start, span.start) - span.start,
                min(slot.span.stop, span.stop) - span.start,
                slot.rate,
                slot.decay,
            )
            for slot in plan.slots
            if slot.trainable and slot.span.start < span.stop and span.start < slot.span.stop
        )
        part = slice(span.start, span.stop)
        known = {"gradient": gradient}
        known |= {name: memory[part] for name, memory in flat.state.items()}
        operands = [flat.parameters[part]]
        for operand in self.operation.inputs[1:]:
            operands.append(known[operand.name] if operand.name in known else scalars[operand.name])
        complete = {**self.attributes, "segments": segments}
        return flat_work(self.operation, complete, operands, plan, kernels, allocator)


def flat_work(
    operation: Operation,
    attributes: Mapping[str, Any],
    operands: Sequence[Any],
    plan: Plan,
    kernels: Kernels,
    allocator: Allocator,
) -> Work:
    """An operation that only updates flat memory, bound at a plan's place."""
    specs = tuple(TensorSpec(tuple(array.shape), str(array.dtype)) for array in operands)
    request = Request(operation, specs, (), attributes, plan.place)
    candidate = kernels.choose(request, "solver")[1]
    size = candidate.workspace
    workspace = allocator.allocate(size).view(0, (size,), "uint8") if size else None
    return candidate.bind(operands, [], workspace)
