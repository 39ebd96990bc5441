"""This machine's topology, from the hwloc library if it is installed, else from the system's files."""

from __future__ import annotations

from demitasse import DescriptionError, unknown
from demitasse_numa.topology import Topology, topology

LIBRARIES = ("auto", "hwloc", "files")


def this_machine(library: str = "auto") -> Topology:
    """Return this machine's topology. Raises DescriptionError for an unknown library, or for ``hwloc``
    if it cannot be used."""
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
