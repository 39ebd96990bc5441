"""A net's layer as scripts see it."""

from __future__ import annotations

from collections.abc import Sequence

from demitasse_caffe.pycaffe.blob import Blob, BlobVec


class LayerView:
    """The type and the parameters of a layer."""

    def __init__(self, name: str, kind: str, blobs: Sequence[Blob]) -> None:
        self.name, self.type, self.blobs = name, kind, BlobVec(blobs)

    def __repr__(self) -> str:
        return f"<layer {self.name} ({self.type}), {len(self.blobs)} parameters>"
