"""The work that a kernel binds, wrapped so that its errors name the layer, the plugin and the kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from demitasse import DataError, DemitasseError, PluginError
from demitasse_contracts.owners import raised

if TYPE_CHECKING:
    from demitasse import Entry, Work


def bound(entry: Entry, bind: Callable[..., Work], *given: Any) -> Work:
    """Return the work that a kernel's ``bind`` makes from ``given``, wrapped so that its errors name the
    layer. A work with a method ``named`` receives the layer's name there and names it itself."""
    work = _blaming(entry, "binding", bind, *given)
    if not callable(work):
        raise _fault(entry, f"bind returned {work!r:.99} (valid: a function without arguments)")
    if (tell := getattr(work, "named", None)) is not None:
        tell(entry.layer)
    if hasattr(work, "join"):
        return work  # type: ignore[no-any-return]
    blaming: Work = partial(_blaming, entry, "at work", work)
    vars(blaming)["prepare"] = getattr(work, "prepare", None)
    return blaming


def _blaming(entry: Entry, doing: str, task: Callable[..., Any], *given: Any) -> Any:
    """Return what ``task`` returns. Errors name the layer; those not of our family, also the kernel."""
    try:
        return task(*given)
    except DataError as error:
        error.args = (str(error) if hasattr(task, "named") else f"layer {entry.layer!r}: {error}",)
        raise
    except DemitasseError:
        raise
    except MemoryError as error:
        raise MemoryError(str(_fault(entry, f"not enough memory {doing}: {error}"))) from error
    except Exception as error:
        raise _fault(entry, f"raised {raised(error, doing)}") from error


def _fault(entry: Entry, what: str) -> PluginError:
    kernel = f"plugin {entry.plugin!r}, kernel {entry.kernel!r} of {entry.operation}"
    return PluginError(f"layer {entry.layer!r}: {kernel}: {what}")
