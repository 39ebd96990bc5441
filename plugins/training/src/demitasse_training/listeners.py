"""Listeners to a run: they come from plugins, their errors name the plugin, and events go to all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from demitasse import Event, PluginError, blamed


def listener_of(plugin: str, hook: Callable[[], Any]) -> Callable[[Event], None] | None:
    """Return the result of a plugin's ``observe`` hook, with its errors turned into PluginErrors; None
    if it does not want to listen. Raises PluginError if the result is not a listener."""
    listener = hook()
    if listener is None:
        return None
    if not callable(listener):
        raise PluginError(f"plugin {plugin!r}: observe returned {listener!r}, which is not a listener")

    def listen(event: Event) -> None:
        with blamed(f"plugin {plugin!r}, its listener", f"at event {event.kind!r}"):
            listener(event)

    return listen


def tell(listeners: Iterable[Callable[[Event], None]], event: Event) -> None:
    """Tell all listeners of an event; an error from one of them names the event."""
    for listener in listeners:
        try:
            listener(event)
        except Exception as error:
            error.add_note(
                f"raised by a listener on event {event.kind!r} at iteration {event.iteration}"
            )
            raise


def tell_failure(
    listeners: Iterable[Callable[[Event], None]], iteration: int, error: BaseException
) -> None:
    """Tell all listeners that the run has failed; their errors become notes on the run's error."""
    for listener in listeners:
        try:
            listener(Event("end", iteration, {"error": error}))
        except Exception as other:  # noqa: BLE001  the run's own error must be the one raised
            error.add_note(f"then a listener raised {other!r} on event 'end'")
