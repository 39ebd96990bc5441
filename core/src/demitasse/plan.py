"""The plan, as a record: operations in order, their kernels and buffers, and the points at which
gradients are synchronised. ``planning.py`` makes one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from demitasse.errors import Rooted
from demitasse.operations.kernel import Candidate, Place, TensorSpec
from demitasse.synchronisation import Bucket, Span


@dataclass(frozen=True)
class Buffer:
    """Where a tensor lies: a region of the worker's memory and an offset in bytes. The regions are
    ``arena`` (shared by tensors that do not live at the same time), ``fixed`` (inputs, constants,
    scalars), ``parameters`` and ``gradients``."""

    name: str
    spec: TensorSpec
    region: str
    offset: int


@dataclass(frozen=True)
class Entry:
    """One operation of a step: the chosen kernel and the reason, its buffers, flops and bytes moved. An
    entry that depends only on fixed parameters runs ``once``, and its result is kept. If a gradient is
    made in ``stretches`` (spans of flat memory), all of them use the same buffer in turn: each is final,
    and used for its update, before the next is made."""

    operation: str
    layer: str
    phase: str
    plugin: str
    kernel: str
    reason: str
    inputs: tuple[Buffer | None, ...]
    outputs: tuple[Buffer | None, ...]
    workspace: Buffer | None
    in_place: bool
    flops: float
    bytes: float
    candidate: Candidate = field(compare=False, repr=False)
    once: bool = False
    stretches: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Slot:
    """A parameter's part of flat memory, in elements. ``rate`` and ``decay`` multiply the solver's.
    ``owners`` are (layer, number) pairs, several if the parameter is shared."""

    owners: tuple[tuple[str, int], ...]
    span: Span
    spec: TensorSpec
    rate: float
    decay: float
    trainable: bool


@dataclass(frozen=True)
class Plan(Rooted):
    """A net in one phase, ready to be bound to memory.

    Flat memory has ``parameters`` elements, of which the first ``trainable`` have gradients and solver
    state. For each bucket, ``first_read`` is the entry before which its parameters must have arrived and
    ``final`` the entry after which its gradients are complete. ``brief`` is, for each bucket, the offset
    in the arena, in bytes, of gradients that are dropped once they are final; it is empty if gradients
    have memory of their own. The arena would take ``unshared_bytes`` if nothing in it shared memory."""

    elsewhere = "its kernels belong to this process: send its str(), or make another there"
    name: str
    phase: str
    dtype: str
    place: Place
    entries: tuple[Entry, ...] = field(repr=False)
    buffers: Mapping[str, Buffer] = field(repr=False)
    scalars: Mapping[str, Buffer] = field(repr=False)
    outputs: Mapping[str, Buffer] = field(repr=False)
    objective: tuple[tuple[Buffer, float], ...] = field(repr=False)
    slots: tuple[Slot, ...] = field(repr=False)
    buckets: tuple[Bucket, ...] = field(repr=False)
    first_read: tuple[int, ...] = field(repr=False)
    final: tuple[int, ...] = field(repr=False)
    brief: tuple[int, ...] = field(repr=False)
    trainable: int
    parameters: int
    arena_bytes: int
    unshared_bytes: int
    fixed_bytes: int

    def __str__(self) -> str:
        lines = [
            f"{e.layer:<16} {e.phase:<8} {e.operation:<30} {f'{e.plugin}: {e.kernel}':<36} "
            f"{' '.join(str(b.spec) for b in e.outputs if b)}{' in place' * e.in_place}"
            for e in self.entries
        ]
        arena, unshared = self.arena_bytes / 2**20, self.unshared_bytes / 2**20
        counts = f"{self.parameters:,} parameters in {len(self.buckets)} buckets"
        memory = f"arena {arena:.2f} MiB ({unshared:.2f} MiB without sharing)"
        return "\n".join([*lines, f"{len(self.entries)} operations, {counts}, {memory}"])
