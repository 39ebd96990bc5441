"""Hooks of the datasets plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from demitasse import DataError, DataSource, DataSpec, hookimpl


@hookimpl
def programs() -> Mapping[str, Callable[..., Any]]:
    """``convert_samples`` and ``convert_annotated`` write samples, or images with boxes, as an LMDB
    database; ``extract_features`` writes blobs of a net."""
    from demitasse_datasets.annotated.writing import convert_annotated
    from demitasse_datasets.convert import convert_samples
    from demitasse_datasets.features import extract_features

    return {
        "convert_annotated": convert_annotated,
        "convert_samples": convert_samples,
        "extract_features": extract_features,
    }


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """``convert_imageset``, ``convert_annoset`` and ``extract_features``."""
    from demitasse_datasets import annoset_command, features_command, imageset_command

    return {
        "convert_annoset": annoset_command.command,
        "convert_imageset": imageset_command.command,
        "extract_features": features_command.command,
    }


@hookimpl
def data_source(spec: DataSpec) -> DataSource | None:
    """Open samples from arrays, files of images, or a database; return None for sources of other
    plugins.

    Raises DataError, beginning with the specification's location, if samples that are ours cannot be
    found, read or trusted.
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
    except PermissionError as error:  # a folder that the user may not read
        where = f"{spec.location}: " * (spec.location is not None)
        raise DataError(f"{where}{error.filename} cannot be read: {error.strerror}") from error
    return None if samples is None else Source(samples, spec.shuffle, spec.seed, skipped(spec))
