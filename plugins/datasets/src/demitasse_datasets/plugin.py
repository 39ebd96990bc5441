"""The hooks of the datasets plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from demitasse import DataError, DataSource, DataSpec, hookimpl


@hookimpl
def programs() -> Mapping[str, Callable[..., Any]]:
    """``convert_samples`` and ``convert_annotated``: samples, or images with boxes, written as an LMDB
    database; ``extract_features``: blobs of a net."""
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
    except PermissionError as error:  # of a folder into which the user may not look
        where = f"{spec.location}: " * (spec.location is not None)
        raise DataError(f"{where}{error.filename} cannot be read: {error.strerror}") from error
    return None if samples is None else Source(samples, spec.shuffle, spec.seed, skipped(spec))
