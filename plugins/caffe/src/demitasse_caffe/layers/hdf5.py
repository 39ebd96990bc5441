"""Blobs that are read from HDF5 files, and blobs that are written to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demitasse import DataSpec, GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer
from demitasse_caffe.layers.data import read
from demitasse_caffe.paths import located


class HDF5Data(CaffeLayer):
    """Tops from the datasets of their names in the HDF5 files that a text file lists. With shuffle, the
    files of an epoch and the rows of each file are shuffled."""

    name = "HDF5Data"
    bottoms = (0, 0)
    tops = (1, None)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        data = message.hdf5_data_param
        if data.batch_size < 1:
            raise ValueError("hdf5_data_param needs a batch_size of 1 or more")
        if message.HasField("transform_param"):
            raise ValueError("has a transform_param; HDF5Data reads blobs as they are")
        spec = DataSpec(
            located(data.source, layer.location.file) if data.source else "",
            "hdf5",
            data.shuffle,
            graph.seed,
            {"fields": tuple(layer.tops)},
            layer.location,
        )
        fields = dict.fromkeys(layer.tops, "real")
        return read("hdf5_data_param", layer, spec, data.batch_size, fields, graph)


class HDF5Output(CaffeLayer):
    """Writes its bottoms as the datasets ``data`` and ``label`` of a file in the working directory.
    Every forward pass replaces the whole file."""

    name = "HDF5Output"
    bottoms = (2, 2)
    tops = (0, 0)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        output = message.hdf5_output_param
        if not output.file_name:
            raise ValueError("hdf5_output_param needs a file_name")
        data, label = bottoms
        if data.shape[:1] != label.shape[:1]:
            raise ValueError(f"its bottoms have different numbers of samples: {data!r}, {label!r}")
        graph.apply("write_arrays", data, label, path=output.file_name)
        return []
