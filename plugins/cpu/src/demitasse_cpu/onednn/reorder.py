"""oneDNN's reorders, between any two layouts and element types for which it has tags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from demitasse import Candidate, PlanError, Request, Work
from demitasse_cpu.kernels.requests import spec
from demitasse_cpu.onednn.library import (
    DST,
    SRC,
    TYPES,
    library,
)
from demitasse_cpu.onednn.memory import described
from demitasse_cpu.onednn.primitive import Primitive


def reorder(request: Request) -> Iterable[Candidate]:
    """Yield a candidate for a change of layout or element type."""
    lib, x, y = library(), spec(request.inputs[0]), spec(request.outputs[0])
    if lib is None or not {x.stored, y.stored} <= set(TYPES) or request.place.simulated or not x.shape:
        return
    try:
        source, target = (described(lib, s.shape, s.stored, s.layout) for s in (x, y))
        engines = lib.engine, target, lib.engine
        primitive = Primitive(lib, request.place.threads, "reorder", source, *engines)
    except PlanError:
        return

    def bind(sources: Any, targets: Any, workspace: Any) -> Work:
        return primitive.bind({SRC: sources[0], DST: targets[0]}, workspace)

    layouts = (x.layout,), (y.layout,)
    name = f"oneDNN {primitive.name}"
    yield Candidate(name, bind, *layouts, primitive.workspace, in_place=False)


FACTORIES = {"reorder": reorder}
