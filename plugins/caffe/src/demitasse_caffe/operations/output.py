"""Tensors that leave a net other than by being read by its caller."""

from __future__ import annotations

from demitasse.operations import REQUIRED, define, nothing, per_element

OPERATIONS = (
    # The operands are marked as updated, because an operation that only reads and produces nothing would
    # be left out.
    define(
        "output",
        "write_arrays",
        "the values of data and label, in a file at path",
        inputs="data! label!",
        outputs="",
        shapes=nothing,
        flops=per_element("data", 0.0),
        attributes={"path": REQUIRED},
    ),
)
