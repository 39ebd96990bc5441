"""Solver updates: operations on a slice of flat memory, so that the owner of a slice can update it.

``segments`` divides the slice into (start, stop, rate multiplier, decay multiplier), in elements: one
for each parameter blob's part of it, in order and without gaps.
"""

from demitasse.operations.record import REQUIRED, define, nothing, per_element

OPERATIONS = (
    define(
        "update",
        "momentum_update",
        "history = momentum * history + rate * (scale * gradient + decay * parameter), then parameter "
        "-= history, rate and decay times each segment's multipliers; regularization L1 decays by "
        "sign(parameter); an absent scale is 1",
        inputs="parameter! gradient history! rate scale?:float64",
        outputs="",
        shapes=nothing,
        flops=per_element("parameter", 6),
        attributes={"momentum": 0.0, "decay": 0.0, "regularization": "L2", "segments": REQUIRED},
    ),
)
