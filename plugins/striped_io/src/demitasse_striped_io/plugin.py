"""Hooks of the striped_io plugin."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from demitasse import DataError, DataSource, DataSpec, Event, Finding, hookimpl


@hookimpl
def data_source(spec: DataSpec) -> DataSource | None:
    """Open samples of a striped set, or of any other source by one reader or several (``?reader=``);
    return None for sources of other plugins.

    Raises DataError, beginning with the specification's location, if the set is ours and cannot be read.
    """
    if spec.kind not in (None, "striped", "readers") or not isinstance(spec.source, str | os.PathLike):
        return None
    from demitasse_striped_io.opening import open_striped

    try:
        return open_striped(spec)
    except DataError as error:
        if spec.location is None:
            raise
        raise DataError(f"{spec.location}: {error}") from error
    except PermissionError as error:  # a folder that the user may not read
        where = f"{spec.location}: " * (spec.location is not None)
        raise DataError(f"{where}{error.filename} cannot be read: {error.strerror}") from error


@hookimpl
def programs() -> Mapping[str, Callable[..., Any]]:
    """``convert_to_striped`` writes samples as a striped set. ``readers`` opens a source with one reader
    that distributes samples, or a reader for each worker. ``reading_cost`` predicts the cost of a step's
    reading on a described machine whose processes share its storage."""
    return {
        "convert_to_striped": _convert_to_striped,
        "readers": _readers,
        "reading_cost": _reading_cost,
    }


def _convert_to_striped(runtime: Any, *asked: Any, **options: Any) -> Any:
    # Imports compiled loops, for which a composition need not wait.
    from demitasse_striped_io.convert import convert_to_striped

    return convert_to_striped(runtime, *asked, **options)


def _readers(runtime: Any, *asked: Any, **options: Any) -> Any:
    from demitasse_striped_io.readers import readers

    return readers(runtime, *asked, **options)


def _reading_cost(runtime: Any, **asked: Any) -> Any:
    from demitasse_striped_io.contention import reading_cost

    return reading_cost(runtime.machine, **asked)


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """``data``."""
    from demitasse_striped_io.data_command import command

    return {"data": command}


@hookimpl
def observe() -> Callable[[Event], None]:
    """At the end of a training that waited for samples, say what to change."""
    from demitasse_striped_io.listener import Listener

    return Listener()


@hookimpl
def diagnose() -> Iterable[Finding]:
    """Report whether images can be decoded, MPI-IO used, and layouts requested from Lustre."""
    from demitasse_striped_io.diagnosis import findings

    return findings()
