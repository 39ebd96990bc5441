"""Losses and scores: scalars (shape ()) computed from predictions and labels."""

from functools import partial

from demitasse.operations.record import Attributes, Shape, Shapes, count, define, per_element, same_as

_LABELLED = {"axis": 1, "ignore_label": None}
_define = partial(define, "loss")


def _check_labels(shapes: Shapes, attributes: Attributes) -> None:
    x, label, axis = shapes["x"], shapes["label"], attributes["axis"]
    predictions = count(x[:axis]) * count(x[axis + 1 :])
    if count(label) != predictions:
        made = f"x {x} makes {predictions} predictions along axis {axis}"
        raise ValueError(f"label {label} has {count(label)} values, {made}")


def _loss_shapes(shapes: Shapes, attributes: Attributes) -> tuple[Shape, Shape]:
    _check_labels(shapes, attributes)
    return ((), shapes["x"])


def _accuracy_shapes(shapes: Shapes, attributes: Attributes) -> tuple[Shape, Shape]:
    _check_labels(shapes, attributes)
    classes = shapes["x"][attributes["axis"]]
    if not 1 <= attributes["top_k"] <= classes:
        raise ValueError(f"top_k {attributes['top_k']} is not between 1 and the {classes} classes")
    return ((), (classes,))


OPERATIONS = (
    _define(
        "softmax_loss",
        "the mean of -log softmax(x)[label], over: valid (labels not ignored), full (all), "
        "batch_size, or none (the sum); and the softmax itself",
        inputs="x label",
        outputs="loss probability?",
        shapes=_loss_shapes,
        flops=per_element("x", 6),
        attributes={**_LABELLED, "normalization": "valid"},
        gradients=["x = softmax_loss_backward(dloss, probability, label)"],
    ),
    _define(
        "softmax_loss_backward",
        "dx = dloss * (probability - 1 at the label) over the normaliser, 0 where ignored",
        inputs="dloss probability label",
        outputs="dx:real",
        shapes=same_as("probability"),
        flops=per_element("probability", 2),
        attributes={**_LABELLED, "normalization": "valid"},
        aliases=["dx = probability"],
    ),
    _define(
        "accuracy",
        "the share of labels (not ignored) among the top_k of x along axis, of equals the later class "
        "first; and that share by class, 0 for a class that does not occur",
        inputs="x label",
        outputs="accuracy per_class?",
        shapes=_accuracy_shapes,
        flops=per_element("x"),
        attributes={**_LABELLED, "top_k": 1},
    ),
)
