"""Opening the sources of samples, and where in a net's memory their samples go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from demitasse import Buffer, DataSource, DataSpec, DemitasseError, Graph, Plan, PluginError, Runtime
from demitasse_training.arguments import check_data


def opener(
    runtime: Runtime, data: Mapping[str, Mapping[str, Any]] | None, phase: str
) -> Callable[[DataSpec], DataSource]:
    """What a graph opens its sources with: each specification once, or the arrays given instead.

    What it opens is checked: it raises PluginError for what is no source, or an error of no plugin's.
    """
    check_data(data)
    opened: dict[str, DataSource] = {}
    arrays = (data or {}).get(phase)

    def open_source(spec: DataSpec) -> DataSource:
        if arrays is not None and spec.kind != "fillers":  # what a layer makes up stays made up
            spec = DataSpec(arrays, "arrays", spec.shuffle, spec.seed, {}, spec.location)
        key = f"{id(arrays) if arrays is not None else spec}"
        if key not in opened:
            opened[key] = _opened(runtime, spec)
        return opened[key]

    return open_source


def _opened(runtime: Runtime, spec: DataSpec) -> DataSource:
    asked = repr(spec.source) if isinstance(spec.source, str) else "arrays"
    what = f"{spec.location}: samples from {asked}" if spec.location else f"samples from {asked}"
    try:
        return runtime.open_source(spec)
    except DemitasseError:
        raise
    except Exception as error:
        raise PluginError(
            f"{what}: a data_source hook raised {type(error).__name__}: {error}"
        ) from error


def destinations(graph: Graph, plan: Plan, array: Callable[[Buffer], Any]) -> list[dict[str, Any]]:
    """Where each of a graph's feeds puts its samples, by field; ``array`` is the memory of a buffer."""
    return [
        {key: array(plan.buffers[f"{feed.layer}.{key}"]) for key in feed.tensors} for feed in graph.feeds
    ]
