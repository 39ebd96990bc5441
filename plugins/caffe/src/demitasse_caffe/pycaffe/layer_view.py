"""A layer of a net, as scripts see it."""

from __future__ import annotations

from collections.abc import Sequence

from demitasse_caffe.pycaffe.blob import Blob, BlobVec


class LayerView:
    """A layer's type and its parameters."""

    def __init__(self, name: str, kind: str, blobs: Sequence[Blob]) -> None:
        self.name, self.type, self.blobs = name, kind, BlobVec(blobs)

    def __repr__(self) -> str:
        return f"<layer {self.name} ({self.type}), {len(self.blobs)} parameters>"
