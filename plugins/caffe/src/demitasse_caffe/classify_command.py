"""``demitasse classify``: the most likely classes of image files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from demitasse import DataError, check_writable, compose, is_folder, write_json

NETS, MEANS, LABELS = (".prototxt", ".pbtxt"), (".binaryproto", ".npy"), (".txt",)
WEIGHTS, BOTH = (".caffemodel", ".h5", ".demitasse"), ".onnx"
OTHER_MEANS = (".mat", ".npz")
IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""The suffixes of files in a folder that are classified."""


@click.command(
    "classify",
    epilog="Example: demitasse classify deploy.prototxt net.caffemodel words.txt cat.jpg",
    help="Print the most likely classes of image files. NET is a deploy net, WEIGHTS its caffemodel "
    "(an .onnx file is both); a mean (.binaryproto, .npy) and the class names (.txt, one per line) may "
    "be among the files, as for Caffe's classification.",
)
@click.argument(
    "given", metavar="NET WEIGHTS [MEAN] [LABELS] IMAGES|FOLDERS...", nargs=-1, required=True
)
@click.option("--mean", metavar="X,Y,Z", help="The mean of each channel, in the net's order.")
@click.option(
    "--scale",
    type=float,
    default=1.0,
    show_default=True,
    help="A factor applied after the mean is subtracted.",
)
@click.option(
    "--resize",
    type=click.IntRange(1),
    metavar="N",
    help="Resize to N x N and take the middle, as tests do; default: resize to the net's size.",
)
@click.option("--rgb", is_flag=True, help="The net takes red first, not blue.")
@click.option("--blob", metavar="NAME", help="The output, if the net has several.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="How many classes.")
@click.option(
    "--hw", default="auto", show_default=True, metavar="MACHINE", help="The machine's description."
)
@click.option("--plugins", metavar="A,B", help="The plugins, preferred first.")
@click.option(
    "--precision",
    type=click.Choice(["f32", "tf32", "bf16", "f64"]),
    help="The precision of activations and weights; default: f32.",
)
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the classes as JSON; - is standard output."
)
def command(
    given: tuple[str, ...],
    mean: str | None,
    scale: float,
    resize: int | None,
    rgb: bool,
    blob: str | None,
    top: int,
    hw: str,
    plugins: str | None,
    precision: str | None,
    json_path: str | None,
) -> None:
    """Print a line for each class of each image, in the order of the images."""
    from demitasse_caffe import classifying
    from demitasse_caffe.mean import read_mean

    net, weights, mean_file, labels_file, images = _sorted_out(given)
    check_writable({"--json": json_path})
    if mean is not None and mean_file is not None:
        raise click.UsageError(f"two means are given, {mean} and {mean_file}; leave one out")
    labels = [] if labels_file is None else classifying.read_labels(Path(labels_file))
    averages = None if mean is None else _numbers(mean)
    if mean_file is not None:
        averages = read_mean(Path(mean_file))
    records: list[dict[str, Any]] = []
    unread: list[DataError] = []
    with compose(hw, plugins.split(",") if plugins else None) as runtime:
        classifier = classifying.Classifier(
            runtime,
            net,
            weights,
            mean=averages,
            scale=scale,
            resize=resize,
            rgb=rgb,
            blob=blob,
            precision=precision,
        )
        for start in range(0, len(images), classifying.TOGETHER):
            part = images[start : start + classifying.TOGETHER]
            for image, scores in zip(part, _scores(classifier, part), strict=True):
                if isinstance(scores, DataError):
                    unread.append(scores)
                    records.append({"image": image, "error": str(scores)})
                    continue
                if labels and len(labels) != scores.size:
                    raise DataError(
                        f"{labels_file}: names {len(labels):,} classes, but output "
                        f"{classifier.blob!r} has {scores.size:,}"
                    )
                best = np.argsort(-scores, kind="stable")[:top].tolist()
                classes = [
                    {"class": c, **({"label": labels[c]} if labels else {}), "score": float(scores[c])}
                    for c in best
                ]
                records.append({"image": image, "classes": classes})
                if json_path != "-":
                    _print(image, classes)
    if json_path is not None:
        write_json(json_path, {"model": net, "weights": weights, "images": records})
    if unread:
        others = f" (and {len(unread) - 1:,} more of {len(images):,} images)" if unread[1:] else ""
        raise DataError(f"{unread[0]}{others}")


def _scores(classifier: Any, images: list[str]) -> list[np.ndarray | DataError]:
    """Return each image's scores, or why it cannot be read: some of many images may be damaged."""
    try:
        return list(classifier.scores(images))
    except DataError as error:
        if len(images) == 1:
            return [error]
        return [scores for image in images for scores in _scores(classifier, [image])]


def _sorted_out(given: tuple[str, ...]) -> tuple[str, str, str | None, str | None, list[str]]:
    """Return net, weights, mean, labels and images, recognised by their suffixes. Raise
    click's UsageError."""
    found: dict[str, list[str]] = {"net": [], "weights": [], "mean": [], "labels": [], "image": []}
    suffixes = {"net": NETS, "weights": WEIGHTS, "mean": MEANS, "labels": LABELS}
    for word in given:
        if Path(word).suffix.lower() in OTHER_MEANS:
            raise click.UsageError(
                f"{word}: a mean is a .binaryproto or .npy file; numpy.save writes an array as .npy"
            )
        if Path(word).suffix.lower() == BOTH:
            found["net"].append(word)
            found["weights"].append(word)
            continue
        kinds = (kind for kind, some in suffixes.items() if Path(word).suffix.lower() in some)
        found[next(kinds, "image")].append(word)
    for kind in ("net", "weights", "image"):
        if not found[kind]:
            ending = f" ({', '.join(suffixes[kind])})" if kind in suffixes else ""
            raise click.UsageError(f"no {'file of ' * (kind == 'weights')}{kind} is given{ending}")
    for kind in suffixes:
        if len(found[kind]) > 1:
            raise click.UsageError(f"one file of {kind} is needed, not {' and '.join(found[kind])}")
    mean, labels = (next(iter(found[kind]), None) for kind in ("mean", "labels"))
    images = [image for word in found["image"] for image in _images(word)]
    return found["net"][0], found["weights"][0], mean, labels, images


def _images(word: str) -> list[str]:
    """Return an image, or those of a folder sorted by name. Raise click's UsageError for a folder
    without images."""
    if not is_folder(word):
        return [word]
    images = sorted(str(p) for p in Path(word).iterdir() if p.suffix.lower() in IMAGES)
    if not images:
        raise click.UsageError(f"the folder {word} has no images ({', '.join(IMAGES)})")
    return images


def _numbers(text: str) -> np.ndarray:
    try:
        numbers = np.array([float(number) for number in text.split(",")], np.float32)
        if not np.isfinite(numbers).all():
            raise ValueError
    except ValueError as error:
        raise click.UsageError(f"--mean {text}: give numbers, like 104,117,123") from error
    return numbers


def _print(image: str, classes: list[dict[str, Any]]) -> None:
    click.echo(image)
    for each in classes:
        click.echo(f"  {each['score']:.4f}  {each.get('label', each['class'])}")
