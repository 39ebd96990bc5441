"""What can go wrong with a lab: it cannot be had here, or a run in it failed."""

from __future__ import annotations


class LabError(Exception):
    """A guest did not boot, did not end in time, or left no result; says what its console said last."""


class LabUnavailableError(LabError):
    """This machine cannot run a lab; the message says what is missing and how to get it."""
