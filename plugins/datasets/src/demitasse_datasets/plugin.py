"""The hooks of the datasets plugin."""

from __future__ import annotations

from demitasse import DataError, DataSource, DataSpec, hookimpl


@hookimpl
def data_source(spec: DataSpec) -> DataSource | None:
    """Samples from arrays, IDX, CIFAR or digits; None for what is another plugin's.

    Raises DataError, with the specification's location in front, when the samples are ours and
    cannot be found, read or trusted.
    """
    from demitasse_datasets.kinds import open_samples
    from demitasse_datasets.source import Source

    try:
        samples = open_samples(spec)
    except DataError as error:
        if spec.location is None:
            raise
        raise DataError(f"{spec.location}: {error}") from error
    return None if samples is None else Source(samples, spec.shuffle, spec.seed)
