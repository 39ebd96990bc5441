"""The machines on which a plugin is tried if no description is given, what it is composed with, and what
a synchronisation of workers may promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from demitasse import CompositionError, Level, Machine, MemorySpace, discover, unknown

BASE = ("caffe", "datasets", "training", "reference")
"""The plugins to compose with: readers, layers, samples, and the reference for its numbers."""
PROMISES = ("exact", "agreeing", "learning")
"""What a synchronisation may promise: the same parameters as one worker; the same parameters at all
siblings and a falling loss (if it compresses); or a falling loss (if siblings may be at different
iterations)."""
STAND_IN = "accelerator:*"
"""The memory of a stand-in for a device, which is host memory."""


def roles_of(plugins: Sequence[Any], name: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the roles of a plugin, which is installed or one of the objects in ``plugins``. Raises
    CompositionError if there is no plugin of that name."""
    for each in plugins:
        if not isinstance(each, str) and each.manifest.get("name") == name:
            roles: Mapping[str, Mapping[str, Any]] = each.manifest.get("roles", {})
            return roles
    installed = {manifest.name: manifest for manifest in discover()}
    if name not in installed:
        raise CompositionError(unknown("plugin", name, installed))
    return installed[name].roles


def machine_of(plugins: Sequence[Any], name: str) -> Machine:
    """Return a machine with one worker with two cores, in the first space that the plugin's kernels,
    streams or memory serve: for ``npu``, the allocator is asked for ``npu:0`` unless it names another.
    The worker computes in streams if the plugin has them."""
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
"""A machine with one worker with one thread."""
