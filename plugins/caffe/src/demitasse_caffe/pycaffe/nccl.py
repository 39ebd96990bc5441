"""A stand-in for Caffe's NCCL object, which joins the solvers of several processes. Here a single solver
trains on all samples."""

from __future__ import annotations

from typing import Any


class NCCL:
    """The sum of gradients over one solver, which leaves them unchanged. It serves scripts that train on
    as many devices as they are given, when they are given one; ``set_solver_count`` rejects more."""

    def __init__(self, solver: Any, uid: str) -> None:
        self._solver, self._uid = solver, uid

    @staticmethod
    def new_uid() -> str:
        """Return an identifier for the group of processes."""
        return "one process"

    def bcast(self) -> None:
        """Do nothing: no other process has parameters."""

    def on_start(self) -> None:
        """Do nothing: no other process has gradients yet."""

    def on_gradients_ready(self) -> None:
        """Do nothing: the gradients already are the sum."""

    def __call__(self, layer: int) -> None:
        """Do nothing: the layer's gradients already are the sum."""
