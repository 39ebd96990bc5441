"""From records to samples: raw tensors, straight into the batch, or images, which are decoded."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from demitasse import DataError, Field
from demitasse_striped_io import loops
from demitasse_striped_io.augmentation import Transform, draws, places
from demitasse_striped_io.decoding import decode, opencv
from demitasse_striped_io.faults import Fault
from demitasse_striped_io.store import Store

PORTION = 1 << 20
"""So many bytes are read and then cast or transformed while they are in the cache."""


Fill = Callable[[np.ndarray, range], list[Fault]]
"""Reads the samples of some records, int64; returns those that cannot be read. The range has their
numbers in the global order."""


class Records(Protocol):
    """Samples by the numbers of their records. ``direct`` says that they are copied unchanged from the
    page cache or memory, so that preparing them in a separate buffer would gain nothing."""

    fields: Mapping[str, Field]
    direct: bool

    def into(self, out: Mapping[str, np.ndarray]) -> Fill:
        """Return the function that fills ``out`` (some or all fields; values are cast). The same arrays
        are filled batch after batch, so this does all work that depends only on them."""


class RawRecords:
    """Tensors of fixed size, as they are stored in the stripes."""

    def __init__(self, store: Store, seed: int) -> None:
        self._store, index = store, store.index
        self._main, self._small = index.main, index.small
        self._transform: Transform | None = None
        fields = dict(index.main)
        asked = store.options.height, store.options.width
        if any(asked) and all(field.shape[1:] != asked for field in fields.values()):
            raise DataError(
                f"{store.name}: its samples are pixels already, which cannot be resized when they are "
                f"read (height {asked[0]}, width {asked[1]}): convert the images again"
            )
        given = store.options.transform
        if given:
            (name, *others) = index.main
            if others:
                raise DataError(f"{store.name}: records of several fields cannot be transformed")
            self._transform = Transform(given, index.main[name], seed, store.options.stream)
            fields[name] = self._transform.field
        self.fields: Mapping[str, Field] = {**fields, **index.small}
        options = store.options
        self.direct = options.io == "page" and not (options.rate or options.patience or given)
        self._places: dict[str, tuple[int, int]] = {}
        at = 0
        for name, field in index.main.items():
            size = np.dtype(field.dtype).itemsize * math.prod(field.shape)
            self._places[name] = (at, size)
            at += size

    def into(self, out: Mapping[str, np.ndarray]) -> Fill:
        store, size = self._store, self._store.index.record
        small = [store.small(name, out[name]) for name in self._small if name in out]
        wanted = {name: out[name] for name in self._main if name in out}
        flat = _plain(wanted, self._main) if self._transform is None else None
        divided = flat is not None and len(flat) >= 2 * PORTION

        def fill(numbers: np.ndarray, where: range) -> list[Fault]:
            for copy in small:
                copy(numbers)
            if not wanted:
                return []
            records = store.resident()
            if flat is None:
                return self._in_portions(numbers, where, wanted, records)
            if records is None:
                return store.read(numbers, flat)
            if divided:
                self._copy(records, numbers, flat)
            else:
                loops.gather(records, numbers, size, flat)
            return self._loaded(numbers)

        return fill

    def _copy(self, records: np.ndarray, numbers: np.ndarray, flat: np.ndarray) -> None:
        size = self._store.index.record
        parts = min(self._store.options.workers, 1 + len(flat) // (2 * PORTION))
        cuts = np.arange(parts + 1) * len(numbers) // parts

        def part(i: int) -> None:
            loops.gather(records, numbers[cuts[i] : cuts[i + 1]], size, flat[cuts[i] * size :])

        self._store.divide(part, parts)

    def _loaded(self, numbers: np.ndarray) -> list[Fault]:
        bad = self._store.load_faults
        return [bad[int(n)] for n in numbers if int(n) in bad] if bad else []

    def _in_portions(
        self,
        numbers: np.ndarray,
        where: range,
        out: Mapping[str, np.ndarray],
        records: np.ndarray | None,
    ) -> list[Fault]:
        size, faults = self._store.index.record, list[Fault]()
        # A thread for each core, which takes portions one after the other.
        portion = max(1, PORTION // size)
        parts = min(self._store.options.workers, -(-len(numbers) // portion))
        cuts = np.arange(parts + 1) * len(numbers) // parts
        lock = threading.Lock()

        def part(i: int) -> None:
            scratch = np.empty(portion * size, np.uint8)
            for start in range(cuts[i], cuts[i + 1], portion):
                some = slice(start, min(start + portion, int(cuts[i + 1])))
                count = some.stop - some.start
                raw = scratch[: count * size]
                if records is None:
                    found = self._store.read(numbers[some], raw)
                else:
                    loops.gather(records, numbers[some], size, raw)
                    found = self._loaded(numbers[some])
                with lock:
                    faults.extend(found)
                self._spread(raw.reshape(count, size), where[some], some, out)

        self._store.divide(part, parts)
        return faults

    def _spread(self, raw: np.ndarray, where: range, some: slice, out: Mapping[str, np.ndarray]) -> None:
        for name, array in out.items():
            at, size = self._places[name]
            field = self._main[name]
            part = np.ascontiguousarray(raw[:, at : at + size])
            values = part.view(field.dtype).reshape(len(raw), *field.shape)
            target = array[some]
            if self._transform is None:
                np.copyto(target, values, casting="unsafe")
            else:
                made = target if target.dtype == np.float32 else np.empty(target.shape, np.float32)
                self._transform.apply(values, self._transform.places(where.start, len(where)), made)
                if made is not target:
                    np.copyto(target, made, casting="unsafe")


def _plain(out: Mapping[str, np.ndarray], main: Mapping[str, Field]) -> np.ndarray | None:
    """Return the bytes into which records can be copied unchanged; None if they cannot."""
    if len(main) != 1 or not out:
        return None
    ((name, array),) = out.items()
    straight = array.flags.c_contiguous and array.dtype == main[name].dtype
    return array.reshape(-1).view(np.uint8) if straight else None


class EncodedRecords:
    """Image files. ``data`` (channels, height, width) uint8, blue first; float32 with a transform.
    ``seconds`` counts the time spent reading and decoding."""

    direct = False

    def __init__(self, store: Store, seed: int) -> None:
        """Raises DataError if images differ in size and no option makes them equal."""
        self.seconds = {"reading": 0.0, "decoding": 0.0}
        self._counting = threading.Lock()
        self._store, options = store, store.options
        self._gray, self._seed = options.mode == "gray", seed
        if bool(options.height) != bool(options.width):
            raise DataError(
                f"{store.name}: give both a height and a width to resize images, not {options.height} "
                f"and {options.width}"
            )
        self._resized = (options.height, options.width) if options.height else None
        # Resized images have the same size: the net then crops them, as it does raw samples.
        self._crop = options.crop if self._resized is None else 0
        ((self._name, _),) = store.index.main.items()
        self._shape: tuple[int, ...]
        if self._resized is not None:
            self._shape = (1 if self._gray else 3, *self._resized)
        elif self._crop:
            self._shape = (1 if self._gray else 3, self._crop, self._crop)
        else:
            self._shape = self._first()
        field = Field(self._shape, "uint8")
        self._transform = (
            Transform(options.transform, field, seed, options.stream) if options.transform else None
        )
        delivered = self._transform.field if self._transform else field
        self.fields: Mapping[str, Field] = {self._name: delivered, **store.index.small}

    def _first(self) -> tuple[int, ...]:
        raw = np.empty(int(self._store.layout.lengths(np.array([0]))[0]), np.uint8)
        faults = self._store.read(np.array([0]), raw)
        if faults:
            raise DataError(f"{self._store.name}: {faults[0]}")
        height, width, channels = decode(raw, self._gray, None).shape
        return channels, height, width

    def into(self, out: Mapping[str, np.ndarray]) -> Fill:
        small = [self._store.small(name, out[name]) for name in self._store.index.small if name in out]
        target = out.get(self._name)

        def fill(numbers: np.ndarray, where: range) -> list[Fault]:
            for copy in small:
                copy(numbers)
            return [] if target is None else self._decoded(numbers, where, target)

        return fill

    def _decoded(self, numbers: np.ndarray, where: range, target: np.ndarray) -> list[Fault]:
        lengths = self._store.layout.lengths(numbers)
        ends = np.cumsum(lengths)
        raw = np.empty(int(ends[-1]), np.uint8)
        begin = time.perf_counter()
        faults = self._store.read(numbers, raw)
        there = time.perf_counter()
        bad = {fault.sample for fault in faults}
        options = self._store.options
        count, first = len(numbers), where.start
        cropped = draws(self._seed, options.stream, first, count)
        moved = self._transform.places(first, count) if self._transform else None
        parts = min(options.workers, count)
        lock = threading.Lock()
        turn = iter(range(count))

        def part(_: int) -> None:
            # Whichever thread is free takes the next, because photos differ in size.
            scratch = np.empty((1, *self._shape), np.uint8)
            straight = self._transform is None and target.dtype == np.uint8 and target.flags.c_contiguous
            for i in turn:
                if int(numbers[i]) in bad:
                    continue
                try:
                    made = target[i : i + 1] if straight else scratch
                    image = decode(raw[ends[i] - lengths[i] : ends[i]], self._gray, self._resized)
                    self._place(image, cropped[i : i + 1], made[0])
                except DataError as error:
                    number = int(numbers[i])
                    block = self._store.layout.block_of(number)
                    stripe = block % self._store.layout.stripes
                    with lock:
                        faults.append(Fault(stripe, block, number, str(error)))
                    continue
                if self._transform is not None and moved is not None:
                    done = np.empty((1, *target.shape[1:]), np.float32)
                    self._transform.apply(made, moved[i : i + 1], done)
                    target[i] = done[0]
                elif not straight:
                    target[i] = made[0]

        self._store.divide(part, parts)
        with self._counting:
            self.seconds["reading"] += there - begin
            self.seconds["decoding"] += time.perf_counter() - there
        return faults

    def _place(self, image: np.ndarray, drawn: np.ndarray, out: np.ndarray) -> None:
        height, width, channels = image.shape
        if self._crop:
            if self._crop > min(height, width):
                raise DataError(
                    f"its image of {width} x {height} is too small for a crop of {self._crop}"
                )
            rows, columns = height - self._crop, width - self._crop
            top, left = places(drawn, rows, columns, self._store.options.random)[0]
            image = image[top : top + self._crop, left : left + self._crop]
        if (channels, *image.shape[:2]) != self._shape:
            raise DataError(
                f"its image has shape {(channels, height, width)} (channels, height, width), but the "
                f"first sample's has {self._shape}; resize them (height and width) or crop"
            )
        if channels == 1:
            out[0] = image[:, :, 0]
        else:  # in vector code: 7 us for 256 x 256, where a compiled loop takes 37
            opencv().split(image, list(out))
