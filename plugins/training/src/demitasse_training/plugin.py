"""Hooks of the training plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from demitasse import hookimpl


@hookimpl
def programs() -> Mapping[str, Callable[..., Any]]:
    """``trainer``, ``interactive trainer`` and ``net``."""
    from demitasse_training.interactive import InteractiveTrainer
    from demitasse_training.net import Net
    from demitasse_training.trainer import Trainer

    return {"trainer": Trainer, "interactive trainer": InteractiveTrainer, "net": Net}
