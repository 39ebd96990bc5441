"""Unexpected errors in the code of third-party plugins."""

from __future__ import annotations

import importlib.metadata
import re
import traceback


def blamed(error: BaseException) -> str | None:
    """Say which installed third-party plugin an error comes from, where in it, and what it is. Returns
    None if no such plugin is involved."""
    from demitasse import discover

    needs = importlib.metadata.requires("demitasse") or ()
    ours = {_plain(re.split(r"[\s;<>=!~\[]", need)[0]) for need in needs}
    packages = {
        manifest.module.partition(".")[0]: manifest
        for manifest in discover()
        if isinstance(manifest.module, str) and _plain(manifest.distribution) not in ours
    }
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        module = str(frame.f_globals.get("__name__", ""))
        if (manifest := packages.get(module.partition(".")[0])) is not None:
            which = f"plugin {manifest.name!r} ({manifest.distribution} {manifest.version})"
            place = f"{module}:{_line(error, frame)}, in {frame.f_code.co_name}"
            kind = type(error).__name__
            return f"{which} raised {kind} at {place}: {error} (--debug shows the traceback)"
    return None


def _plain(name: str) -> str:
    """Normalise a distribution's name for comparison: metadata may use other separators in it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _line(error: BaseException, frame: object) -> int:
    return next(line for other, line in traceback.walk_tb(error.__traceback__) if other is frame)
