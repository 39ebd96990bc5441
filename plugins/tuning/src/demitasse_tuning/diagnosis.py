"""The findings of this plugin: the file of choices, and whether it can be written."""

from __future__ import annotations

import os
from collections.abc import Iterator

from demitasse import Finding
from demitasse_tuning.cache import CacheError, cache_file, read

SUBJECT = "tuning cache"
REMEDY = "set XDG_CACHE_HOME to a folder that can be written, or this plugin's option cache"


def findings(folder: str = "") -> Iterator[Finding]:
    """Yield where choices are remembered, how many, and any problem. ``folder`` is the option cache."""
    try:
        path = cache_file(folder)
    except RuntimeError as error:
        yield Finding("problem", SUBJECT, f"choices are not saved: {error}", REMEDY)
        return
    there = next(parent for parent in path.parents if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        message = f"{path} cannot be written: every process tries all kernels again"
        yield Finding("problem", SUBJECT, message, REMEDY)
        return
    try:
        kept = [choice for known in read(path).values() for choice in known.choices.values()]
    except CacheError as error:
        message = f"{path}: {error}; the next trial writes it again"
        yield Finding("note", SUBJECT, message, f"or delete it: rm {path}")
        return
    clear = f"to try the kernels again: rm {path}" if kept else ""
    one = len(kept) == 1
    told = f"{len(kept)} choice{' of a kernel is' if one else 's of kernels are'} saved in {path}"
    if busy := sum(choice.disturbed > 0 for choice in kept):
        told += f", {busy} of them made on a busy machine"
    yield Finding("ok", SUBJECT, told, clear)
