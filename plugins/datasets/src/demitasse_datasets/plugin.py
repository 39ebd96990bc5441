"""The hooks of the datasets plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from demitasse import DataError, DataSource, DataSpec, hookimpl


@hookimpl
def programs() -> Mapping[str, Callable[..., Any]]:
    """``convert_samples``: samples written as an LMDB database; ``extract_features``: blobs of a net."""
    from demitasse_datasets.convert import convert_samples
    from demitasse_datasets.features import extract_features

    return {"convert_samples": convert_samples, "extract_features": extract_features}


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """``convert_imageset`` and ``extract_features``."""
    from demitasse_datasets import features_command, imageset_command

    return {
        "convert_imageset": imageset_command.command,
        "extract_features": features_command.command,
    }


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
