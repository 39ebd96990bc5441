"""Hooks of the training plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import demitasse
from demitasse import hookimpl
from demitasse.operations import Operation


@hookimpl
def operations() -> Iterable[Operation]:
    """``fold_normalization``, for nets whose parameters do not change; normalisations that clip their
    result, for nets that are differentiated; statistics over all workers, for training with several."""
    from demitasse_training import across_workers, clipping
    from demitasse_training.folding import FOLD

    return (FOLD, *clipping.OPERATIONS, *across_workers.OPERATIONS)


@hookimpl
def programs() -> Mapping[str, Callable[..., Any]]:
    """``trainer``, ``interactive trainer`` and ``net``."""
    from demitasse_training.interactive import InteractiveTrainer
    from demitasse_training.net import Net
    from demitasse_training.trainer import Trainer

    trainer: Callable[..., demitasse.Trainer] = Trainer  # a type checker compares the two
    net: Callable[..., demitasse.Net] = Net
    return {"trainer": trainer, "interactive trainer": InteractiveTrainer, "net": net}
