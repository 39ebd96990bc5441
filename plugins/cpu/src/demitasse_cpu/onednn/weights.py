"""Weights in the form that a primitive needs: in a layout of the plan if one describes it, else as a
copy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from demitasse import PLAIN, Layout
from demitasse_cpu.native import Foreign
from demitasse_cpu.onednn.library import DIFF_WEIGHTS, DST, SRC
from demitasse_cpu.onednn.memory import described, layout_of
from demitasse_cpu.onednn.primitive import Primitive


@dataclass(frozen=True)
class Weights:
    """A primitive's weights: the layout in which the plan gives them (or takes their gradient), and the
    size in bytes of a copy in the primitive's own form, or 0 if the layout is that form."""

    primitive: Primitive
    argument: int
    layout: Layout
    packed: int
    grouped: tuple[int, ...]
    stored: str

    def moving(self, plain: Any, room: Any) -> Foreign:
        """Return work that moves weights from the plan's plain layout to the packed copy, or their
        gradient back."""
        arrays = (room, plain) if self.argument == DIFF_WEIGHTS else (plain, room)
        return self.reorder().bind({SRC: arrays[0], DST: arrays[1]})

    def reorder(self) -> Primitive:
        """Return the primitive that moves the weights. Raises UnimplementedError if oneDNN has only its
        reference, as it has for three groups of 97 outputs with the matrix unit."""
        lib = self.primitive.lib
        own = self.primitive.descriptor(self.argument)
        outside = described(lib, self.grouped, self.stored, PLAIN)
        pair = (own, outside) if self.argument == DIFF_WEIGHTS else (outside, own)
        engines = lib.engine, pair[1], lib.engine
        return Primitive(lib, self.primitive.threads, "reorder", pair[0], *engines)


def weights_of(
    primitive: Primitive, argument: int, shape: tuple[int, ...], groups: int, stored: str
) -> Weights:
    """Return how weights of ``shape`` reach a primitive. Raises UnimplementedError if they cannot."""
    grouped = shape if groups == 1 else (groups, shape[0] // groups, *shape[1:])
    own = primitive.descriptor(argument)
    layout = layout_of(primitive.lib, own, grouped, stored)
    if layout is not None and groups > 1:
        layout = _merged(layout, grouped)
    kept = PLAIN if layout is None else layout
    if stored == "bfloat16":
        kept = replace(kept, name=f"{kept.name} bf16", stored=stored)
    packed = primitive.size(argument) if layout is None else 0
    made = Weights(primitive, argument, kept, packed, grouped, stored)
    if packed:
        made.reorder()
    return made


def _merged(layout: Layout, grouped: tuple[int, ...]) -> Layout | None:
    """Return a layout of (groups, outputs, ...) as one of (groups * outputs, ...), or None if there is
    none."""
    order = layout.order or tuple(range(len(grouped)))
    outputs, blocked = grouped[1], dict(layout.blocks)
    if outputs == 1 and 1 not in blocked:  # with one output per group, the groups are the outputs
        merged = [max(d - 1, 0) for d in order if d != 1]
        blocks = [(max(d - 1, 0), size) for d, size in layout.blocks]
    elif order[:2] == (0, 1) and 0 not in blocked and outputs % _cut(layout, 1) == 0:
        merged = [d - 1 for d in order if d != 0]
        blocks = [(d - 1, size) for d, size in layout.blocks]
    else:
        return None
    plain = tuple(merged) == tuple(range(len(merged)))
    return Layout(layout.name, () if plain else tuple(merged), tuple(blocks))


def _cut(layout: Layout, dimension: int) -> int:
    whole = 1
    for d, size in layout.blocks:
        whole *= size if d == dimension else 1
    return whole
