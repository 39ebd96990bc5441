"""What joins the solvers of several processes in Caffe; here one solver has all of a net's samples."""

from __future__ import annotations

from typing import Any


class NCCL:
    """The sum over one solver's gradients, which is what they are: for scripts that train on however
    many devices they are given, and are given one. ``set_solver_count`` refuses more."""

    def __init__(self, solver: Any, uid: str) -> None:
        self._solver, self._uid = solver, uid

    @staticmethod
    def new_uid() -> str:
        """The name of a meeting of processes."""
        return "one process"

    def bcast(self) -> None:
        """Nothing: nobody else has parameters."""

    def on_start(self) -> None:
        """Nothing: nobody else has a gradient yet."""

    def on_gradients_ready(self) -> None:
        """Nothing: the gradients are the sum already."""

    def __call__(self, layer: int) -> None:
        """Nothing: a layer's gradients are the sum already."""
