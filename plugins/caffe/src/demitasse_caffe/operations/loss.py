"""Losses: scalars (shape ()) computed from predictions and labels, targets, or each other. Also
operations that prepare predictions for a loss, or that measure how good they are.

Samples are along the first axis.
"""

from functools import partial

from demitasse.operations import (
    REQUIRED,
    Attributes,
    Shape,
    Shapes,
    count,
    define,
    per_element,
    same_as,
)

_NORMALIZED = {"ignore_label": None, "normalization": "valid"}
_define = partial(define, "loss")


def _same_samples(shapes: Shapes, *names: str) -> int:
    """Return the number of samples. Raise ValueError unless it is the same for all operands."""
    first = shapes[names[0]]
    for name in names:
        if not shapes[name] or shapes[name][0] != first[0]:
            given = ", ".join(f"{each} {shapes[each]}" for each in names)
            raise ValueError(f"{given} do not have the same first dimension, the samples")
    return int(first[0])


def _pairs(shapes: Shapes, a: str, b: str) -> tuple[Shape, ...]:
    _same_samples(shapes, a, b)
    if count(shapes[a]) != count(shapes[b]):
        raise ValueError(
            f"{a} {shapes[a]} has {count(shapes[a])} values, {b} {shapes[b]} {count(shapes[b])}"
        )
    return ((),)


def _one_label_a_sample(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    samples, label = _same_samples(shapes, "x", "label"), shapes["label"]
    if count(label) != samples:
        raise ValueError(f"label {label} has {count(label)} values, x {shapes['x']} {samples} samples")
    return ((),)


def _infogain_shapes(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    x, label, matrix, axis = shapes["x"], shapes["label"], shapes["matrix"], attributes["axis"]
    _same_samples(shapes, "x", "label")
    predictions = count(x[:axis]) * count(x[axis + 1 :])
    if count(label) != predictions:
        raise ValueError(
            f"label {label} has {count(label)} values, x {x} makes {predictions} predictions along "
            f"axis {axis}"
        )
    if count(matrix) != x[axis] ** 2:
        raise ValueError(
            f"an infogain matrix of shape {matrix} has {count(matrix)} values; {x[axis]} classes need "
            f"{x[axis]} x {x[axis]}"
        )
    return ((), x)


def _contrastive_shapes(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    samples = _same_samples(shapes, "a", "b", "similar")
    a, similar = shapes["a"], shapes["similar"]
    for name in ("a", "b"):
        if len(shapes[name]) < 2 or shapes[name][1] != a[1] or count(shapes[name][2:]) != 1:
            raise ValueError(f"a {a} and b {shapes['b']} are not vectors of one length for each sample")
    if count(similar) != samples:
        raise ValueError(f"similar {similar} has {count(similar)} values, a {a} {samples} samples")
    return ((),)


def _segments(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    x, label = shapes["x"], shapes["label"]
    if len(x) != 4 or label != (x[0], 1, *x[2:]):
        raise ValueError(f"label {label} does not have one class for each pixel of x {x}")
    return ((1, 1, 1, 3),)


def _margin_shapes(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    x, samples = shapes["x"], _same_samples(shapes, "x", "length", "label")
    if len(x) != 2 or count(shapes["length"]) != samples or count(shapes["label"]) != samples:
        raise ValueError(
            f"x {x} must be a row per sample, length {shapes['length']} and label {shapes['label']} a "
            f"number each"
        )
    return (x, (1,))


OPERATIONS = (
    _define(
        "angular_margin",
        "y = x, products of a sample with vectors of length 1, but at its label (factor * x + length * "
        "psi(x / length)) / (1 + factor), where psi(cos t) = (-1)^k cos(margin t) - 2 k for margin t "
        "from k pi to (k + 1) pi, margin a whole number to 4, and factor = max(least, base * (1 + gamma "
        "* (first + iteration + 1))^-power)",
        inputs="x length label iteration",
        outputs="y factor",
        shapes=_margin_shapes,
        flops=per_element("x", 1),
        attributes={
            "margin": REQUIRED,
            "base": 1.0,
            "gamma": 0.0,
            "power": 1.0,
            "least": 0.0,
            "first": 0,
        },
        gradients=["x length = angular_margin_backward(dy, x, length, label, factor)"],
    ),
    _define(
        "angular_margin_backward",
        "dx = dy, but at the label dy * (factor + a) / (1 + factor), dlength = dy there * length * b / "
        "(1 + factor); (a, b) is (psi', (psi - psi' cos t) / length) over its length",
        inputs="dy x length label factor",
        outputs="dx dlength",
        shapes=lambda shapes, attributes: (shapes["x"], shapes["length"]),
        flops=per_element("x", 1),
        attributes={"margin": REQUIRED},
        aliases=["dx = dy"],
    ),
    _define(
        "half_squared_distance",
        "loss = the sum of (a - b)^2 over twice the number of samples",
        inputs="a b",
        outputs="loss",
        shapes=lambda shapes, attributes: _pairs(shapes, "a", "b"),
        flops=per_element("a", 3),
        gradients=["a b = half_squared_distance_backward(dloss, a, b)"],
    ),
    _define(
        "half_squared_distance_backward",
        "da = dloss * (a - b) / samples, db = -da",
        inputs="dloss a b",
        outputs="da? db?",
        shapes=lambda shapes, attributes: (shapes["a"], shapes["b"]),
        flops=per_element("a", 3),
    ),
    _define(
        "hinge_loss",
        "the sum over classes of max(0, 1 - x at the label, 1 + x elsewhere), squared when norm is L2, "
        "as the mean over samples",
        inputs="x label",
        outputs="loss",
        shapes=_one_label_a_sample,
        flops=per_element("x", 3),
        attributes={"norm": "L1"},
        gradients=["x = hinge_loss_backward(dloss, x, label)"],
    ),
    _define(
        "hinge_loss_backward",
        "dx = dloss / samples * (-1 at the label, 1 elsewhere) where the hinge is open, times twice its "
        "opening when norm is L2",
        inputs="dloss x label",
        outputs="dx",
        shapes=same_as("x"),
        flops=per_element("x", 3),
        attributes={"norm": "L1"},
        aliases=["dx = x"],
    ),
    _define(
        "negative_log_likelihood",
        "the mean over samples of -log max(x[label], 1e-20), x probabilities",
        inputs="x label",
        outputs="loss",
        shapes=_one_label_a_sample,
        flops=lambda shapes, attributes: 10.0 * count(shapes["label"]),
        gradients=["x = negative_log_likelihood_backward(dloss, x, label)"],
    ),
    _define(
        "negative_log_likelihood_backward",
        "dx = -dloss / samples / max(x, 1e-20) at the label, 0 elsewhere",
        inputs="dloss x label",
        outputs="dx",
        shapes=same_as("x"),
        aliases=["dx = x"],
    ),
    _define(
        "infogain_loss",
        "the mean of -(the sum over classes l of matrix[label, l] * log max(softmax(x)[l], 1e-20)), "
        "over what softmax_loss's is; and the softmax itself",
        inputs="x label matrix",
        outputs="loss probability?",
        shapes=_infogain_shapes,
        flops=per_element("x", 16),
        attributes={"axis": 1, **_NORMALIZED},
        gradients=["x = infogain_loss_backward(dloss, probability, label, matrix)"],
    ),
    _define(
        "segment_scores",
        "of the pixels whose label is none of ignored, the best class of x (of equals the later): the "
        "share that is right, the mean of that over the classes that there are, and the mean over all "
        "classes of what is right over what is the class or is taken for it (1 where nothing is)",
        inputs="x label",
        outputs="scores",
        shapes=_segments,
        flops=per_element("x", 1),
        attributes={"ignored": ()},
    ),
    _define(
        "infogain_loss_backward",
        "dx = dloss * (probability * the sum of matrix[label] - matrix[label]) over the normaliser, 0 "
        "where ignored",
        inputs="dloss probability label matrix",
        outputs="dx",
        shapes=same_as("probability"),
        flops=per_element("probability", 4),
        attributes={"axis": 1, **_NORMALIZED},
        aliases=["dx = probability"],
    ),
    _define(
        "sigmoid_cross_entropy_loss",
        "the mean of -(target * log p + (1 - target) * log(1 - p)), p = 1 / (1 + exp(-x)), over: valid "
        "(targets whose whole part is not ignored), full (all), batch_size, or none (the sum)",
        inputs="x target",
        outputs="loss",
        shapes=lambda shapes, attributes: _pairs(shapes, "x", "target"),
        flops=per_element("x", 20),
        attributes=_NORMALIZED,
        gradients=["x = sigmoid_cross_entropy_loss_backward(dloss, x, target)"],
    ),
    _define(
        "sigmoid_cross_entropy_loss_backward",
        "dx = dloss * (p - target) over the normaliser, 0 where ignored",
        inputs="dloss x target",
        outputs="dx",
        shapes=same_as("x"),
        flops=per_element("x", 10),
        attributes=_NORMALIZED,
        aliases=["dx = x"],
    ),
    _define(
        "contrastive_loss",
        "half the mean over samples of d^2 where similar, else max(0, margin - d)^2 (legacy: max(0, "
        "margin - d^2)); d the distance of a and b (Hadsell, Chopra and LeCun 2006)",
        inputs="a b similar",
        outputs="loss",
        shapes=_contrastive_shapes,
        flops=per_element("a", 3),
        attributes={"margin": 1.0, "legacy": False},
        gradients=["a b = contrastive_loss_backward(dloss, a, b, similar)"],
    ),
    _define(
        "contrastive_loss_backward",
        "da = dloss / samples * (a - b) where similar, else -that times max(0, margin - d) / (d + 1e-4) "
        "(legacy: 1 where d^2 is below margin), db = -da",
        inputs="dloss a b similar",
        outputs="da? db?",
        shapes=lambda shapes, attributes: (shapes["a"], shapes["b"]),
        flops=per_element("a", 6),
        attributes={"margin": 1.0, "legacy": False},
    ),
)
