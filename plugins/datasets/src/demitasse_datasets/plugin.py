"""The hooks of the datasets plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from demitasse import DataError, DataSource, DataSpec, hookimpl


@hookimpl
def programs() -> Mapping[str, Callable[..., Any]]:
    """``convert_samples``: samples written as an LMDB database."""
    from demitasse_datasets.convert import convert_samples

    return {"convert_samples": convert_samples}


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """``convert_imageset``."""
    from demitasse_datasets.imageset_command import command

    return {"convert_imageset": command}


@hookimpl
def data_source(spec: DataSpec) -> DataSource | None:
    """Samples from arrays, files of images or a database; None for what is another plugin's.

    Raises DataError, with the specification's location in front, when the samples are ours and
    cannot be found, read or trusted.
    """
    from demitasse_datasets.kinds import open_samples
    from demitasse_datasets.opening import skipped
    from demitasse_datasets.source import Source

    try:
        samples = open_samples(spec)
    except DataError as error:
        if spec.location is None:
            raise
        raise DataError(f"{spec.location}: {error}") from error
    return None if samples is None else Source(samples, spec.shuffle, spec.seed, skipped(spec))
