"""Plugins' listeners to a run, whose errors name the plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from demitasse import DemitasseError, Event, PluginError


def listener_of(plugin: str, hook: Callable[[], Any]) -> Callable[[Event], None] | None:
    """What a plugin's ``observe`` hook returns, its errors made PluginErrors; None where that wants to
    hear nothing. Raises PluginError when that is no listener."""
    listener = hook()
    if listener is None:
        return None
    if not callable(listener):
        raise PluginError(f"plugin {plugin!r}: observe returned {listener!r}, which is no listener")

    def listen(event: Event) -> None:
        try:
            listener(event)
        except DemitasseError:
            raise
        except Exception as error:
            raise PluginError(
                f"plugin {plugin!r}: its listener raised {type(error).__name__} at event "
                f"{event.kind!r}: {error}"
            ) from error

    return listen
