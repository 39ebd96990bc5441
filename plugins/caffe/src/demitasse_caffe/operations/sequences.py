"""Sequences with shorter label sequences: predictions (T, N, C) of C classes at T steps of N samples,
against labels (N, ...). One class, the blank, means that a step outputs nothing; in labels it fills
unused places, and a -1 ends a label. A sample may have fewer ``steps`` than T. Source: Graves et al.
2006, *Connectionist Temporal Classification*."""

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
    _check_numbers("steps", shapes.get("steps"), x[axis])
    return ((x[axis],),)


def _check_numbers(name: str, shape: Shape | None, samples: int) -> None:
    """Raise ValueError if an operand is given but does not have one number for each sample."""
    if shape is not None and shape != (samples,):
        raise ValueError(f"{name} {shape} should be ({samples},), a number for each sample")


def _decoded_shapes(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    x, blank = shapes["x"], attributes["blank"]
    if len(x) != 3 or not 0 <= blank < x[2]:
        raise ValueError(
            f"x {x} should be (steps, samples, classes), and the blank {blank} one of the classes"
        )
    _check_numbers("steps", shapes.get("steps"), x[1])
    return (x[1], x[0]), (x[1],)


def _distance_shapes(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    y, label = shapes["y"], shapes["label"]
    if len(y) != 2 or not label or label[0] != y[0]:
        raise ValueError(f"y {y} should be (samples, steps), and label {label} a row for each sample")
    return (y[0],), (y[0],)


def _row_shapes(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    label = shapes["label"]
    if len(label) != 2:
        raise ValueError(f"label {label} should be (places, samples)")
    _check_numbers("lengths", shapes.get("lengths"), label[1])
    return ((label[1], label[0]),)


def _length_shapes(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    cont, label = shapes["cont"], shapes.get("label")
    if len(cont) != 2 or (label is not None and label[:1] != cont[1:]):
        raise ValueError(
            f"cont {cont} should be (steps, samples), and label {label} a row for each sample"
        )
    return ((cont[1],),)


OPERATIONS = (
    _define(
        "ctc_loss",
        "of each sample minus the log of the sum, over all paths of a class a step that are its label "
        "once classes that repeat are joined and blanks left out, of the product of softmax(x) along a "
        "path; 0 where there are too few steps for the label; of its first steps alone, if they are "
        "given",
        inputs="x label steps?",
        outputs="losses",
        shapes=lambda shapes, attributes: _samples(shapes, attributes, 1),
        flops=lambda shapes, attributes: (
            10.0 * count(shapes["x"]) + 60.0 * shapes["x"][0] * count(shapes["label"])
        ),
        attributes={"blank": REQUIRED},
        gradients=["x = ctc_loss_backward(dlosses, x, label, steps)"],
    ),
    _define(
        "ctc_loss_backward",
        "dx = dlosses * (softmax(x) - the share of those paths that have the class at the step); 0 "
        "where there are too few steps for the label, and behind a sample's steps",
        inputs="dlosses x label steps?",
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
    _define(
        "ctc_greedy_decode",
        "y (N, T) = the best class of each of a sample's steps (of equals the first), blanks left out "
        "and, if merge, those that repeat joined, -1 behind them; scores = minus the sum of what those "
        "best classes have in x (T, N, C)",
        inputs="x steps?",
        outputs="y scores?",
        shapes=_decoded_shapes,
        flops=per_element("x", 1),
        attributes={"blank": REQUIRED, "merge": True},
    ),
    _define(
        "edit_distances",
        "of each sample how many classes must be put in, left out or changed to make its label, blanks "
        "left out, of y (N, T), which a -1 ends, over the length of the longer of both (0 of two that "
        "are empty); right = 1 where that is 0, else 0",
        inputs="y label",
        outputs="distances right",
        shapes=_distance_shapes,
        flops=lambda shapes, attributes: 3.0 * count(shapes["y"]) * count(shapes["label"][1:]),
        attributes={"blank": REQUIRED},
    ),
    _define(
        "labels_of_samples",
        "y (N, L) = label (L, N) + shift with its axes exchanged, and -1 where label is negative, and "
        "behind each sample's length, if they are given",
        inputs="label lengths?",
        outputs="y",
        shapes=_row_shapes,
        flops=per_element("label", 0),
        attributes={"shift": 0},
    ),
    _define(
        "sequence_lengths",
        "of each sample the number of steps until cont (T, N) is 0 again, the first step left aside; 0 "
        "where that is 1 and its label, if given, empty, with which batches are filled up",
        inputs="cont label?",
        outputs="steps",
        shapes=_length_shapes,
        flops=per_element("cont", 0),
    ),
)
