"""Machines on which a plugin is tried where no description is given, what it is composed with, and what
workers on them may promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from demitasse import CompositionError, Level, Machine, MemorySpace, discover, unknown

BASE = ("caffe", "datasets", "training", "reference")
"""What a plugin is composed with: readers, layers, samples, and what its numbers are compared with."""
PROMISES = ("exact", "agreeing", "learning")
"""What a synchronisation may promise: the parameters of one worker; the same parameters at all siblings,
and a loss that falls (one that compresses); a loss that falls (one that lets siblings be at different
iterations)."""
STAND_IN = "accelerator:*"
"""Where a stand-in for a device has its memory, which is the host's."""


def roles_of(plugins: Sequence[Any], name: str) -> Mapping[str, Mapping[str, Any]]:
    """The roles that a plugin, installed or one of the objects in ``plugins``, says it serves. Raises
    CompositionError for none of that name."""
    for each in plugins:
        if not isinstance(each, str) and each.manifest.get("name") == name:
            roles: Mapping[str, Mapping[str, Any]] = each.manifest.get("roles", {})
            return roles
    installed = {manifest.name: manifest for manifest in discover()}
    if name not in installed:
        raise CompositionError(unknown("plugin", name, installed))
    return installed[name].roles


def machine_of(plugins: Sequence[Any], name: str) -> Machine:
    """A machine of one worker, of two cores, in the first space that the plugin's kernels, or streams,
    or memory are for: ``npu``, whose allocator is asked for ``npu:0`` unless it names another. The
    worker computes in streams if the plugin has some."""
    roles = roles_of(plugins, name)
    streams = "stream_engine" in roles
    spaces = [
        space.partition(":")[0]
        for role in ("kernels", "stream_engine", "tuner", "allocator")
        for space in roles.get(role, {}).get("spaces", ())
    ]
    space = spaces[0] if spaces and "host" not in spaces else "host"
    known = roles.get("allocator", {}).get("spaces", ())
    numbered = space if space in known else f"{space}:*"
    at = numbered if space != "host" else STAND_IN if streams else None
    memory = (MemorySpace(space, at=at),) if at else ()
    level = Level("machine", memory=memory, workers="streams" if streams else None, cores=2)
    return Machine("the conformance kit's", (level,), fingerprint="any")


PLAINEST = Machine("the conformance kit's", (Level("machine", cores=1),), fingerprint="any")
"""One worker of one thread."""
