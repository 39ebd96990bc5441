"""From records to samples: raw tensors straight into the batch, or images that are decoded."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from demitasse import DataError, Field
from demitasse_striped_io import loops
from demitasse_striped_io.augmentation import Transform, draws, places
from demitasse_striped_io.decoding import decode, opencv
from demitasse_striped_io.faults import Fault
from demitasse_striped_io.store import Store

PORTION = 1 << 20
"""Bytes that are read, then cast or transformed while they are in the cache."""


class Records(Protocol):
    """Samples by the numbers of their records. ``direct`` says that they are copied as they are, from
    the page cache or memory: then nothing is gained by preparing them in a buffer of one's own."""

    fields: Mapping[str, Field]
    direct: bool

    def fill(self, numbers: np.ndarray, where: np.ndarray, out: Mapping[str, np.ndarray]) -> list[Fault]:
        """Write samples into ``out`` (some fields or all; values are cast); those that cannot be read
        are returned. ``where`` are their numbers in the global order."""


class RawRecords:
    """Tensors of one size, as they lie in the stripes."""

    def __init__(self, store: Store, seed: int) -> None:
        self._store, index = store, store.index
        self._main, self._small = index.main, index.small
        self._transform: Transform | None = None
        fields = dict(index.main)
        given = store.options.transform
        if given:
            (name, *others) = index.main
            if others:
                raise DataError(f"{store.name}: records of several fields are not transformed")
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

    def fill(self, numbers: np.ndarray, where: np.ndarray, out: Mapping[str, np.ndarray]) -> list[Fault]:
        for name, field in out.items():
            if name in self._small:
                field[...] = self._store.table[name][numbers]
        wanted = [name for name in self._main if name in out]
        if not wanted:
            return []
        records = self._store.resident()
        if len(self._main) == 1 and self._transform is None and _plain(out[wanted[0]], self._main):
            flat = out[wanted[0]].reshape(-1).view(np.uint8)
            if records is None:
                return self._store.read(numbers, flat)
            self._copy(records, numbers, flat)
            return self._loaded(numbers)
        return self._in_portions(numbers, where, {name: out[name] for name in wanted}, records)

    def _copy(self, records: np.ndarray, numbers: np.ndarray, flat: np.ndarray) -> None:
        size = self._store.index.record
        parts = min(self._store.options.workers, 1 + len(flat) // (2 * PORTION))
        if parts == 1:
            loops.gather(records, numbers, size, flat)
            return
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
        where: np.ndarray,
        out: Mapping[str, np.ndarray],
        records: np.ndarray | None,
    ) -> list[Fault]:
        size, faults = self._store.index.record, list[Fault]()
        # A thread for each core, and the portions of each one after the other.
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

        if parts == 1:
            part(0)
        else:
            self._store.divide(part, parts)
        return faults

    def _spread(
        self, raw: np.ndarray, where: np.ndarray, some: slice, out: Mapping[str, np.ndarray]
    ) -> None:
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
                self._transform.apply(values, drawn_by(self._transform.places, where), made)
                if made is not target:
                    np.copyto(target, made, casting="unsafe")


def drawn_by(draw: Callable[[int, int], np.ndarray], where: np.ndarray) -> np.ndarray:
    """What ``draw(first, count)`` gives for numbers of the global order, most of which follow each
    other."""
    breaks = np.flatnonzero(np.diff(where) != 1) + 1
    parts: Sequence[np.ndarray] = np.split(where, breaks)
    return np.concatenate([draw(int(part[0]), len(part)) for part in parts])


def _plain(array: np.ndarray, main: Mapping[str, Field]) -> bool:
    (field,) = main.values()
    return array.flags.c_contiguous and array.dtype == field.dtype


class EncodedRecords:
    """Image files. ``data`` (channels, height, width) uint8, blue first; with a transform float32.
    ``seconds`` counts what reading and what decoding took."""

    direct = False

    def __init__(self, store: Store, seed: int) -> None:
        """Raises DataError when images differ in size and nobody says what to make of them."""
        self.seconds = {"reading": 0.0, "decoding": 0.0}
        self._counting = threading.Lock()
        self._store, options = store, store.options
        self._gray, self._seed = options.mode == "gray", seed
        if bool(options.height) != bool(options.width):
            raise DataError(
                f"{store.name}: images are resized to a height and a width, not {options.height} and "
                f"{options.width}; give both"
            )
        self._resized = (options.height, options.width) if options.height else None
        # What is resized has one size already: then the net cuts, as from raw samples.
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

    def fill(self, numbers: np.ndarray, where: np.ndarray, out: Mapping[str, np.ndarray]) -> list[Fault]:
        for name, field in out.items():
            if name in self._store.index.small:
                field[...] = self._store.table[name][numbers]
        if self._name not in out:
            return []
        lengths = self._store.layout.lengths(numbers)
        ends = np.cumsum(lengths)
        raw = np.empty(int(ends[-1]), np.uint8)
        begin = time.perf_counter()
        faults = self._store.read(numbers, raw)
        there = time.perf_counter()
        bad = {fault.sample for fault in faults}
        options = self._store.options
        cropped = drawn_by(lambda f, n: draws(self._seed, options.stream, f, n), where)
        moved = drawn_by(self._transform.places, where) if self._transform else None
        count, target = len(numbers), out[self._name]
        parts = min(options.workers, count)
        lock = threading.Lock()
        turn = iter(range(count))

        def part(_: int) -> None:
            # Whoever is free takes the next: photos differ in size.
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

        if parts == 1:
            part(0)
        else:
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
                f"its image has shape {(channels, height, width)} (channels, height, width), the first "
                f"sample's {self._shape}; resize them (height and width) or crop"
            )
        if channels == 1:
            out[0] = image[:, :, 0]
        else:  # in vector code: 7 us for 256 x 256, a compiled loop takes 37
            opencv().split(image, list(out))
