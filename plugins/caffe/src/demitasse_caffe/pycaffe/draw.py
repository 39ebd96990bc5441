"""Pictures of nets in SVG, made without any other program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from demitasse import ModelError
from demitasse_caffe.drawing import svg

EXTENSIONS = ("svg",)


class Graph:
    """A drawn net with those methods of pydot's graphs that scripts use."""

    def __init__(self, picture: str) -> None:
        self._picture = picture

    def create(self, format: str = "svg") -> bytes:
        """Return the content of the picture's file."""
        _check(format)
        return self._picture.encode()

    def create_svg(self) -> bytes:
        """Return the content of the picture's SVG file."""
        return self.create("svg")

    def write(self, path: str | Path, format: str = "svg") -> None:
        """Write the picture to a file."""
        Path(path).write_bytes(self.create(format))

    def write_svg(self, path: str | Path) -> None:
        """Write the picture to an SVG file."""
        self.write(path)


def get_pydot_graph(
    caffe_net: Any,
    rankdir: str,
    label_edges: bool = True,
    phase: int | None = None,
    display_lrm: bool = False,
) -> Graph:
    """Draw a net (a NetParameter). ``rankdir`` is TB, BT or LR. Edges always have labels, and
    learning-rate multipliers are not shown."""
    return Graph(svg(caffe_net, rankdir, phase))


def draw_net(
    caffe_net: Any,
    rankdir: str,
    ext: str = "svg",
    phase: int | None = None,
    display_lrm: bool = False,
) -> bytes:
    """Draw a net and return the content of the picture's file. Raise ModelError for
    any format but SVG."""
    return get_pydot_graph(caffe_net, rankdir, phase=phase).create(ext)


def draw_net_to_file(
    caffe_net: Any,
    filename: str | Path,
    rankdir: str = "LR",
    phase: int | None = None,
    display_lrm: bool = False,
) -> None:
    """Draw a net and write the picture to a file whose name ends in .svg."""
    path = Path(filename)
    _check(path.suffix.lstrip("."))
    path.write_bytes(draw_net(caffe_net, rankdir, phase=phase))


def _check(format: str) -> None:
    if format.lower() not in EXTENSIONS:
        raise ModelError(
            f"nets are drawn as {', '.join(EXTENSIONS)}, not as {format or 'a file without a suffix'}; "
            f"browsers show it, and Inkscape or rsvg-convert make other formats of it"
        )
