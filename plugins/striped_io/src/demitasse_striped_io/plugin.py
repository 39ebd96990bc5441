"""The hooks of the striped_io plugin."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from demitasse import DataError, DataSource, DataSpec, Finding, hookimpl


@hookimpl
def data_source(spec: DataSpec) -> DataSource | None:
    """Samples of a striped set, or of any other source by one reader or several (``?reader=``); None for
    what is another plugin's.

    Raises DataError, with the specification's location in front, when the set is ours and cannot be
    read.
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


@hookimpl
def programs() -> Mapping[str, Callable[..., Any]]:
    """``convert_to_striped``: samples written as a striped set; ``readers``: a source whose samples one
    reader distributes, or a reader for each worker."""
    from demitasse_striped_io.convert import convert_to_striped
    from demitasse_striped_io.readers import readers

    return {"convert_to_striped": convert_to_striped, "readers": readers}


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """``data``."""
    from demitasse_striped_io.data_command import command

    return {"data": command}


@hookimpl
def diagnose() -> Iterable[Finding]:
    """Whether images can be decoded, MPI-IO used, and Lustre told how to lay out files."""
    from demitasse_striped_io.diagnosis import findings

    return findings()
