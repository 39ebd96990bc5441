"""Parameters that layers share by name, and the multipliers that they have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demitasse import Location, ModelError
from demitasse_caffe.schema import number

Placed = tuple[Any, Location]
"""A layer's message and its location."""


def with_common_multipliers(layers: Sequence[Placed]) -> list[Placed]:
    """Return the layers; the first of those that share a parameter gets the multipliers of whichever
    layer sets them, as in Caffe. Raise ModelError with both layers if two set different ones."""
    result = list(layers)
    first: dict[str, tuple[int, int]] = {}
    copied: set[int] = set()
    for position, (message, place) in enumerate(layers):
        # Parameters of BatchNorm are never trained, whatever multipliers it has.
        for index, spec in enumerate(message.param if message.type != "BatchNorm" else ()):
            owner, parameter = first.setdefault(spec.name, (position, index))
            said = [name for name in ("lr_mult", "decay_mult") if spec.HasField(name)]
            if not spec.name or (owner, parameter) == (position, index) or not said:
                continue
            if owner not in copied:
                copied.add(owner)
                result[owner] = (_copy(result[owner][0]), result[owner][1])
            theirs = result[owner][0].param[parameter]
            for name in said:
                value = getattr(spec, name)
                if not theirs.HasField(name):
                    setattr(theirs, name, value)
                elif (other := getattr(theirs, name)) != value:
                    whose = f"layer {result[owner][0].name!r} ({result[owner][1]})"
                    if owner == position:
                        whose = f"its own parameter {parameter}, of the same name"
                    raise ModelError(
                        f"{place}: layer {message.name!r}: {name} {number(value):g} for parameter "
                        f"{spec.name!r}, which it shares with {whose}, where it is {number(other):g}; a "
                        f"shared parameter has one"
                    )
    return result


def _copy(message: Any) -> Any:
    copied = type(message)()
    copied.CopyFrom(message)
    return copied
