"""What other distributions do for users' modules: functions that their entry points name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from demitasse import PluginError


def made_by_all(group: str) -> Iterator[Any]:
    """Yield the result of each function without arguments in a group of entry points. Raise PluginError
    with the entry point if a function cannot be called."""
    for point in entry_points(group=group):
        try:
            yield point.load()()
        except Exception as error:
            whose = point.dist.name if point.dist is not None else "a distribution"
            raise PluginError(
                f"entry point {point.name!r} of {group} ({whose}): {point.value} raised "
                f"{type(error).__name__}: {error}; fix or uninstall it"
            ) from error
