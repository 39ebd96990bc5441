"""Errors of a lab: it is not available here, or a run in it failed."""

from __future__ import annotations


class LabError(Exception):
    """A guest did not boot, did not end in time, or left no result; quotes its console's last lines."""


class LabUnavailableError(LabError):
    """This machine cannot run a lab; the message says what is missing and how to get it."""
