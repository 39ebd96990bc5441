"""Listeners to a run: plugins' own, whose errors name the plugin, and how all are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from demitasse import DemitasseError, Event, PluginError, raised


def listener_of(plugin: str, hook: Callable[[], Any]) -> Callable[[Event], None] | None:
    """What a plugin's ``observe`` hook returns, its errors made PluginErrors; None where that wants to
    hear nothing. Raises PluginError when that is no listener."""
    listener = hook()
    if listener is None:
        return None
    if not callable(listener):
        raise PluginError(f"plugin {plugin!r}: observe returned {listener!r}, which is not a listener")

    def listen(event: Event) -> None:
        try:
            listener(event)
        except DemitasseError:
            raise
        except Exception as error:
            told = raised(error, f"at event {event.kind!r}")
            raise PluginError(f"plugin {plugin!r}: its listener raised {told}") from error

    return listen


def tell(listeners: Iterable[Callable[[Event], None]], event: Event) -> None:
    """Tell all of an event; what one of them raises says of which."""
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
    """Tell all that the run has ended; what one of them raises is noted on the run's error."""
    for listener in listeners:
        try:
            listener(Event("end", iteration, {"error": error}))
        except Exception as other:  # noqa: BLE001  the run's own error is the one to be raised
            error.add_note(f"then a listener raised {other!r} on event 'end'")
