"""Samples from databases of images with boxes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from demitasse import DataError, Field
from demitasse_datasets import images
from demitasse_datasets.annotated.augmentation import Augmentation
from demitasse_datasets.annotated.record import Annotated, parse_annotated
from demitasse_datasets.crops import fit
from demitasse_datasets.decoders import decoders, for_each
from demitasse_datasets.keys import Get, Reader, shown
from demitasse_datasets.samples import naming

ROW = 8
"""The numbers of an object: 0, its class and number, xmin, ymin, xmax, ymax, and whether it is
difficult."""
NONE = -1
"""The value of unused rows."""


class AnnotatedSamples:
    """The records of a database in the order of their keys: ``data``, uint8 (channels, height, width),
    and ``label``, float32 (1, objects, 8): rows of objects, followed by rows of -1. If the first record
    has no boxes, ``label`` is its Datum's label instead. With ``boxed``, all records count as boxes.
    ``augmentation`` changes each image, by its number in the global order."""

    def __init__(
        self, reader: Reader, mode: str, augmentation: Augmentation, objects: int, boxed: bool = False
    ) -> None:
        self.name, self.size = reader.path, reader.size
        self._reader, self._mode, self._objects, self._forced = reader, mode, objects, boxed
        self._augmentation, self._pool = augmentation, decoders()
        with reader.session() as get, naming(f"{self.name}: {self._key(0)}"):
            record = parse_annotated(get(0), boxed)
            pixels = self._pixels(record)
        self._boxed, self._channels = record.boxes is not None, pixels.shape[2]
        if len(augmentation.fill) not in (1, self._channels):
            told = f"{len(augmentation.fill)} means for images of {self._channels} channels"
            raise DataError(f"{self.name}: {told}; give 1 or {self._channels}")
        size = augmentation.size or pixels.shape[:2]
        self.fields: Mapping[str, Field] = {
            "data": Field((pixels.shape[2], *size), "uint8"),
            "label": Field((1, objects, ROW), "float32") if self._boxed else Field((), "int32"),
        }

    def gather(self, numbers: np.ndarray, out: Mapping[str, np.ndarray], first: int) -> None:
        def one(i: int) -> None:
            number = int(numbers[i])
            with self._reader.session() as get, naming(self._key(number)):
                self._write(get, number, first + i, out, i)

        for_each(self._pool, len(numbers), one)

    def _write(
        self, get: Get, number: int, sample: int, out: Mapping[str, np.ndarray], place: int
    ) -> None:
        record = parse_annotated(get(number), self._forced)
        if (record.boxes is not None) != self._boxed:
            has, first = ("no boxes", "some") if self._boxed else ("boxes", "none")
            raise DataError(f"it has {has}, but the first record has {first}")
        rows = np.empty((0, ROW - 1)) if record.boxes is None else record.boxes
        pixels = self._pixels(record)
        if pixels.shape[2] != self._channels:
            raise DataError(
                f"its image has {pixels.shape[2]} channels, but the first {self._channels}; read all in "
                f"color or gray (transform_param {{ force_color: true }})"
            )
        pixels, rows = self._augmentation(pixels, rows, sample)
        if "data" in out:
            fit(images.planes(pixels), out["data"][place])
        if "label" in out and not self._boxed:
            out["label"][place] = record.datum.label
        elif "label" in out:
            if len(rows) > self._objects:
                raise DataError(
                    f"its image has {len(rows):,} objects, but a sample's label has room for "
                    f"{self._objects:,}: give annotated_data_param {{ max_objects: {len(rows)} }}, or "
                    f"as many as any image has"
                )
            label = out["label"][place, 0]
            label[: len(rows), 0], label[: len(rows), 1:] = 0, rows
            label[len(rows) :] = NONE

    def where(self, number: int) -> str:
        return f"{self.name}: {self._key(number)}"

    def _key(self, number: int) -> str:
        return f"key {shown(self._reader.key(number))}"

    def _pixels(self, record: Annotated) -> np.ndarray:
        """Return pixels (height, width, channels), uint8."""
        if record.datum.encoded:
            return images.decode(record.datum.data, self._mode)
        pixels = record.datum.pixels()
        if pixels.dtype != np.uint8:
            raise DataError("its Datum has float_data, but images with boxes need bytes")
        return np.ascontiguousarray(pixels.transpose(1, 2, 0))
