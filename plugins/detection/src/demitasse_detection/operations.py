"""The operations of the plugin: detections in images, their losses, and the regions
that they come from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from demitasse.operations import (
    REQUIRED,
    Attributes,
    Shape,
    Shapes,
    define,
    per_element,
    shape_attribute,
)
from demitasse_detection.detections import ROW, capacity
from demitasse_detection.evaluation import ROW as EVALUATED
from demitasse_detection.matching import ROW as OBJECT
from demitasse_detection.proposals import ROW as REGION
from demitasse_detection.proposals import capacity as regions_of
from demitasse_detection.yolo_operations import WORDS_OF_YOLO

_define = partial(define, "detection")
_BOXES = {"classes": REQUIRED, "background": 0, "code": "CORNER", "encoded": False}


def _priors(shapes: Shapes, attributes: Attributes, places: int) -> int:
    """Return the number of priors. Raise ValueError if the predictions are not for that many."""
    priors, location, confidence = shapes["priors"], shapes["location"], shapes["confidence"]
    if len(priors) < 3 or priors[:2] != (1, 2) or prod(priors[2:]) % 4:
        raise ValueError(f"priors {priors} are not 1 x 2 x 4 numbers for each: boxes and variances")
    count, classes = prod(priors[2:]) // 4, attributes["classes"]
    images = location[0] if location else 0
    for name, wanted in (("location", 4 * places), ("confidence", classes)):
        if (
            not shapes[name]
            or shapes[name][0] != images
            or prod(shapes[name]) != images * count * wanted
        ):
            raise ValueError(
                f"{name} {shapes[name]} does not have {wanted} numbers for each of {count} priors and "
                f"{images} images ({classes} classes; location {location}, confidence {confidence})"
                f"{_of_faceboxes(count, prod(location[1:]) // (4 * places))}"
            )
    return int(count)


def _of_faceboxes(count: int, told: int) -> str:
    """Return a hint for predictions that fit the priors of FaceBoxes' own fork. It has 21 priors at each
    place of its first map (sizes of 32, 64 and 128), where SSD's fork and ours have 3. Its other maps
    have one at each place, a quarter and a sixteenth as many."""
    first, rest = divmod(told - count, 18)
    if rest or first < 1 or not 3 * first < count < 3.6 * first:
        return ""
    return (
        "; in FaceBoxes' own fork a PriorBox has 16 boxes for a min_size of 32 and 4 for one of 64: "
        "fixed_size: [32, 64, 128] fixed_ratio: 1 density: [4, 2, 1] make as many here, at other "
        "places"
    )


def _detections(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    count = _priors(shapes, attributes, 1 if attributes["shared"] else attributes["classes"])
    return ((1, 1, shapes["location"][0] * capacity(count, attributes), ROW),)


def _loss(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    _priors(shapes, attributes, 1)
    images, label = shapes["location"][0], shapes["label"]
    if not label or label[-1] != OBJECT or label[0] not in (1, images):
        raise ValueError(
            f"label {label} does not have {OBJECT} numbers for each object, of all {images} images "
            f"together or of each by itself"
        )
    return ((), shapes["location"], shapes["confidence"], (1,))


def _evaluated(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    found, label, classes = shapes["found"], shapes["label"], attributes["classes"]
    if not found or found[-1] != ROW:
        raise ValueError(
            f"found {found} does not have rows of {ROW} numbers, as a DetectionOutput layer makes"
        )
    if not label or label[-1] != OBJECT:
        raise ValueError(f"label {label} does not have {OBJECT} numbers for each object")
    counted = classes - (0 <= attributes["background"] < classes)
    return ((1, 1, counted + prod(found[:-1]), EVALUATED),)


def _pooled(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, regions, size = shapes["x"], shapes["regions"], attributes["size"]
    if len(x) != 4 or size < 1 or x[1] % size**2:
        raise ValueError(
            f"x {x} is not samples x channels x rows x columns, {size} x {size} channels each"
        )
    if not regions or prod(regions[1:]) != 5:
        raise ValueError(f"regions {regions} are not rows of 5 numbers: a sample and two corners")
    return ((regions[0], x[1] // size**2, size, size),)


def _aligned(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, regions, size = shapes["x"], shapes["regions"], attributes["size"]
    if len(x) != 4:
        raise ValueError(f"x {x} is not samples x channels x rows x columns")
    if not regions or prod(regions[1:]) != 5:
        raise ValueError(f"regions {regions} are not rows of 5 numbers: a sample and two corners")
    return ((regions[0], x[1], size[0] + 1, size[1] + 1),)


def _focal(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, label, axis = shapes["x"], shapes["label"], attributes["axis"]
    if not 0 <= axis < len(x) or prod(x) != prod(label) * x[axis]:
        raise ValueError(
            f"label {label} has {prod(label)} values, but x {x} makes {prod(x) // x[axis]} predictions "
            f"along axis {axis}"
        )
    return (), x, x


def _proposed(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    scores, told, images = shapes["scores"], shapes["told"], shapes["images"]
    each = len(attributes["ratios"]) * len(attributes["scales"])
    if len(scores) != 4 or scores[1] != 2 * each:
        raise ValueError(
            f"scores {scores} are not images x {2 * each} x rows x columns: background and object for "
            f"{each} boxes ({len(attributes['ratios'])} ratios, {len(attributes['scales'])} scales)"
        )
    if told != (scores[0], 4 * each, *scores[2:]):
        raise ValueError(
            f"told {told} does not have 4 numbers for each box that scores {scores} has one of"
        )
    if not images or images[-1] < 3 or prod(images[:-1]) not in (1, scores[0]):
        raise ValueError(f"images {images} are not rows of height, width and the factor of enlargement")
    count = scores[0] * regions_of(each * prod(scores[2:]), attributes)
    return (count, REGION), (count, 1)


def _label_losses(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, label, axis = shapes["probability"], shapes["label"], attributes["axis"]
    if not 0 <= axis < len(x) or prod(x) != prod(label) * x[axis]:
        raise ValueError(f"label {label} does not have one number for each place of probability {x}")
    return (label,)


def _hardest(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    regions, weights = shapes["regions"], shapes["weights"]
    if len(regions) < 2 or regions[1] != 5:
        raise ValueError(f"regions {regions} are not rows of 5 numbers: an image and two corners")
    places = regions[0] * prod(regions[2:])
    for name in ("losses", "label"):
        if prod(shapes[name]) != places:
            raise ValueError(
                f"{name} {shapes[name]} does not have one number for each of {places} regions"
            )
    if len(weights) < 2 or weights[0] != regions[0] or prod(weights[2:]) != prod(regions[2:]):
        raise ValueError(f"weights {weights} are not a row for each of regions {regions}")
    return (shapes["label"], weights)


OPERATIONS = (
    _define(
        "detections",
        "found = a row for each box that is found: image, class, confidence and two corners, by image "
        "and class, with rows of -1 behind them. A box is what location says beside a prior, in code, "
        "times the prior's variance unless that is encoded. Of a class it is found with more than "
        "confidence, among the top_k most confident ones, if it overlaps no better one by more than "
        "overlap, which falls by eta; of an image the keep most confident boxes are",
        inputs="location confidence priors",
        outputs="found",
        shapes=_detections,
        flops=per_element("confidence", 10.0),
        attributes={
            **_BOXES,
            "shared": True,
            "confidence": float("-inf"),
            "overlap": 0.3,
            "eta": 1.0,
            "top_k": -1,
            "keep": -1,
        },
    ),
    _define(
        "multibox_loss",
        "the sum over the priors that match an object of weight times of_places (SMOOTH_L1 or L2) of "
        "what location tells less what would tell the object, and over those and the negatives of "
        "of_classes (SOFTMAX or LOGISTIC) of confidence, over the normaliser: valid (matched priors), "
        "full (all), batch_size or none. The best prior that is left matches each object; with "
        "per_prediction so does each that overlaps one by overlap. Negatives overlap none by apart; the "
        "worst ones count, ratio for each matched one, or with mining NONE all. places and classes are "
        "the slopes, divisor the number of matched priors",
        inputs="location confidence priors label",
        outputs="loss places? classes? divisor?:float64",
        shapes=_loss,
        flops=per_element("confidence", 20.0),
        attributes={
            **_BOXES,
            "of_places": "SMOOTH_L1",
            "of_classes": "SOFTMAX",
            "weight": 1.0,
            "counted": (True, True),
            "per_prediction": True,
            "by_priors": True,
            "overlap": 0.5,
            "inside": False,
            "difficult": True,
            "mining": "MAX_NEGATIVE",
            "ratio": 3.0,
            "apart": 0.5,
            "normalization": "valid",
            "source": "",
        },
        gradients=["location confidence = multibox_loss_backward(dloss, places, classes)"],
    ),
    _define(
        "multibox_loss_backward",
        "the slopes times dloss",
        inputs="dloss places classes",
        outputs="dlocation? dconfidence?",
        shapes=lambda shapes, attributes: (shapes["places"], shapes["classes"]),
        flops=per_element("classes"),
    ),
    _define(
        "evaluate_detections",
        "counts = a row for each class but the background, -1, the class, how many objects there are of "
        "it, -1, -1; then one for each that is found: image, class, confidence, whether it is right and "
        "whether it is wrong; with rows of -1 behind them. The most confident one that overlaps an "
        "object of its class by overlap, and none more, is right. Without difficult, difficult objects "
        "do not count, nor does what finds them. What is no object is an error, which says that it was "
        "in source",
        inputs="found label",
        outputs="counts",
        shapes=_evaluated,
        flops=per_element("found"),
        attributes={
            "classes": REQUIRED,
            "background": 0,
            "overlap": 0.5,
            "difficult": True,
            "source": "",
        },
    ),
    _define(
        "proposals",
        "regions = for each image rows of its number and two corners in pixels, found = their scores: "
        "of boxes beside each place, stride pixels apart, of base times scales pixels and all ratios of "
        "height to width, where told puts them, within the image. Those of least pixels, times by what "
        "the image was enlarged, the before best scores of these, and of these, the best first, what "
        "overlaps no better one by more than overlap, after at most; the best again where there are "
        "fewer",
        inputs="scores told images",
        outputs="regions found?",
        shapes=_proposed,
        flops=per_element("told", 10.0),
        attributes={
            "stride": 16,
            "base": 16,
            "ratios": (0.5, 1.0, 2.0),
            "scales": (8.0, 16.0, 32.0),
            "least": 16,
            "before": 6000,
            "after": 300,
            "overlap": 0.7,
        },
    ),
    _define(
        "pooling_positions",
        "y[r, d, i, j] = the mean over cell (i, j), of size x size cells, of region r of channel "
        "(d * size + i) * size + j of x: regions[r] is the number of a sample and the corners x1, y1, "
        "x2, y2, which are rounded, and times scale are places in its planes, all of the last one "
        "inside. A region spans a tenth of a place at least; a cell is from the floor of where it "
        "begins to the ceiling of where it ends, less what is beyond the plane; an empty one is 0. What "
        "is no region is an error, which says that it was in source",
        inputs="x regions",
        outputs="y",
        shapes=_pooled,
        flops=per_element("x"),
        attributes={"size": REQUIRED, "scale": REQUIRED, "source": ""},
        gradients=["x = pooling_positions_backward(dy, regions)"],
    ),
    _define(
        "pooling_positions_backward",
        "dx = for each element the sum of dy over the cells that have it, each over their places; shape "
        "is that of x",
        inputs="dy regions",
        outputs="dx",
        shapes=shape_attribute,
        flops=per_element("dy"),
        attributes={"size": REQUIRED, "scale": REQUIRED, "source": "", "shape": None},
    ),
    _define(
        "label_losses",
        "losses = -log of the probability, along axis, of each label, at least the least normal number "
        "of 32 bits; 0 where the label is ignore_label. What is no class is an error, which says that "
        "it was in source",
        inputs="probability label",
        outputs="losses",
        shapes=_label_losses,
        flops=per_element("label", 10.0),
        attributes={"axis": 1, "ignore_label": None, "source": ""},
    ),
    _define(
        "hardest_regions",
        "labels = label and kept = weights at the count regions of each image whose losses are the "
        "largest (of equals the first), ignored and 0 at the others: regions are an image's number and "
        "two corners along axis 1. One of no image is an error, which says that it was in source",
        inputs="regions losses label weights",
        outputs="labels kept",
        shapes=_hardest,
        flops=per_element("losses", 10.0),
        attributes={"count": REQUIRED, "ignored": -1, "source": ""},
    ),
    _define(
        "aligned_regions",
        "y[r, c, i, j] = channel c of x, by straight lines between its places, at corner (i, j) of the "
        "size cells of region r: regions[r] is the number of a sample and the corners x1, y1, x2, y2, "
        "which grow by their sides and 1 times grown, and times scale less a half are places in its "
        "planes; 0 beyond a half of the planes' borders, and for a region without extent. What is no "
        "region is an error, which says that it was in source",
        inputs="x regions",
        outputs="y",
        shapes=_aligned,
        flops=lambda shapes, attributes: 8.0 * prod(_aligned(shapes, attributes)[0]),
        attributes={"size": REQUIRED, "scale": REQUIRED, "grown": 0.0, "source": ""},
        gradients=["x = aligned_regions_backward(dy, regions)"],
    ),
    _define(
        "aligned_regions_backward",
        "dx = for each element the sum of its shares of dy; shape is that of x",
        inputs="dy regions",
        outputs="dx",
        shapes=shape_attribute,
        flops=per_element("dy", 8.0),
        attributes={"size": REQUIRED, "scale": REQUIRED, "grown": 0.0, "source": "", "shape": None},
    ),
    _define(
        "focal_loss",
        "the sum over the labels, but for ignore_label, of -alpha (1 - p)^gamma log p, p being the "
        "softmax of x along axis at the label, over the normaliser: valid (labels that count), full "
        "(all), batch_size or none. probability is the softmax, and slopes are those of x. What is no "
        "class is an error, which says that it was in source",
        inputs="x label",
        outputs="loss probability? slopes?",
        shapes=_focal,
        flops=per_element("x", 10.0),
        attributes={
            "axis": 1,
            "ignore_label": None,
            "normalization": "valid",
            "alpha": 0.25,
            "gamma": 2.0,
            "source": "",
        },
        gradients=["x = focal_loss_backward(dloss, slopes)"],
    ),
    _define(
        "focal_loss_backward",
        "the slopes times dloss",
        inputs="dloss slopes",
        outputs="dx",
        shapes=lambda shapes, attributes: (shapes["slopes"],),
        flops=per_element("slopes"),
    ),
    *WORDS_OF_YOLO,
)
