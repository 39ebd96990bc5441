"""This machine's topology: from hwloc's library where it is, else from the system's files."""

from __future__ import annotations

from demitasse import DescriptionError, unknown
from demitasse_numa.topology import Topology, topology

LIBRARIES = ("auto", "hwloc", "files")


def this_machine(library: str = "auto") -> Topology:
    """Raises DescriptionError for an unknown library, or for ``hwloc`` where it cannot be loaded."""
    if library not in LIBRARIES:
        raise DescriptionError(unknown("library", library, LIBRARIES, "options.numa"))
    if library != "files":
        from demitasse_numa import hwloc

        found = hwloc.topology()
        if found is not None:
            return found
        if library == "hwloc":
            raise DescriptionError(f"options.numa: library = 'hwloc': {hwloc.why_not()}")
    return topology()
