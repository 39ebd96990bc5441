"""Sequences whose labels are shorter than they: predictions (T, N, C) of C classes at T steps of N
samples, against (N, ...) labels. One class, the blank, is of steps that say nothing; in labels it stands
where there is none. Source: Graves et al. 2006, *Connectionist Temporal Classification*.
"""

from functools import partial

from demitasse.operations import REQUIRED, Attributes, Shape, Shapes, count, define, per_element, same_as

_define = partial(define, "sequences")


def _samples(shapes: Shapes, attributes: Attributes, axis: int) -> tuple[Shape, ...]:
    x, label, blank = shapes["x"], shapes["label"], attributes["blank"]
    if len(x) != 3 or not label or label[0] != x[axis] or not 0 <= blank < x[2]:
        order = "steps, samples, classes" if axis else "samples, steps, classes"
        raise ValueError(
            f"x {x} should be ({order}), label {label} a row for each sample, and the blank {blank} one "
            f"of the classes"
        )
    return ((x[axis],),)


OPERATIONS = (
    _define(
        "ctc_loss",
        "of each sample minus the log of the sum, over all paths of a class a step that are its label "
        "once classes that repeat are joined and blanks left out, of the product of softmax(x) along a "
        "path; 0 where there are too few steps for the label",
        inputs="x label",
        outputs="losses",
        shapes=lambda shapes, attributes: _samples(shapes, attributes, 1),
        flops=lambda shapes, attributes: (
            10.0 * count(shapes["x"]) + 60.0 * shapes["x"][0] * count(shapes["label"])
        ),
        attributes={"blank": REQUIRED},
        gradients=["x = ctc_loss_backward(dlosses, x, label)"],
    ),
    _define(
        "ctc_loss_backward",
        "dx = dlosses * (softmax(x) - the share of those paths that have the class at the step)",
        inputs="dlosses x label",
        outputs="dx",
        shapes=same_as("x"),
        flops=lambda shapes, attributes: (
            20.0 * count(shapes["x"]) + 150.0 * shapes["x"][0] * count(shapes["label"])
        ),
        attributes={"blank": REQUIRED},
    ),
    _define(
        "sequences_right",
        "of each sample of x (N, T, C) 1 where the best class of each step (of equals the first), those "
        "that repeat joined and blanks left out, are its label, else 0",
        inputs="x label",
        outputs="right",
        shapes=lambda shapes, attributes: _samples(shapes, attributes, 0),
        flops=per_element("x", 1),
        attributes={"blank": REQUIRED},
    ),
)
