"""Checks of stream engines against the core's protocol, with arrays in the plugin's own memory."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import Machine, PlanError, arrange, check_engine, compose
from demitasse_conformance.machines import machine_of
from demitasse_conformance.promises import hold


def check_streams(
    plugins: Sequence[Any],
    name: str,
    hw: str | Path | Machine | None = None,
    bound: float = 20.0,
    **options: Any,
) -> str:
    """Check the engine that plugin ``name`` provides for the first worker of ``hw`` (by default, of a
    machine with the first space that it serves) with ``demitasse.check_engine``, which tests the
    protocol sentence by sentence. ``options`` are the plugin's. Return the space. Raises AssertionError
    with the sentence that does not hold."""
    machine = hw or machine_of(plugins, name)
    with compose(machine, plugins, {name: options} if options else None) as runtime:
        worker = arrange(runtime.machine, "float32")[0]
        hooks = dict(runtime.serving("stream_engine", space=worker.place.space))
        hold(name in hooks, f"it has no streams in {worker.place.space!r}")

        def make() -> Any:
            engine = hooks[name](space=worker.space, machine=runtime.machine)
            if engine is None:
                raise PlanError(f"it gives no engine for {worker.space!r}: there is none here")
            return engine

        try:
            allocator = runtime.allocator(worker.space)
        except PlanError:
            allocator = runtime.allocator("host")
        with contextlib.ExitStack() as stack:

            def array(values: np.ndarray) -> Any:
                values = np.ascontiguousarray(values)
                block = allocator.allocate(max(1, values.nbytes))
                stack.callback(block.close)
                made = block.view(0, values.shape, values.dtype.name)
                made[...] = values
                return made

            check_engine(make, array, bound=bound)
    return worker.space
