"""An over-subscribed network on one machine: hosts as network namespaces, in supernodes, with MPI."""

from netlab.lab import Netlab
from netlab.network import LabError, missing

__all__ = ["LabError", "Netlab", "missing"]
