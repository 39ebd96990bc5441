"""The counted cost of running a program of the mesh once, and what is notable about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from demitasse_sw26010.model.figures import CLOCK, SATISFACTORY_BLOCK, SATISFACTORY_TRANSFER

FLOPS_OF_MESSAGE = 16.0
"""The flops of a product that a CPE computes for each message: 16 vectors of 4 multiply-adds for 8
messages."""


@dataclass(frozen=True)
class Cost:
    """The simulated cost of a program. Times are in seconds; DMA and computing may overlap within
    ``seconds``. There are the bytes of DMA in each direction, and of these the bytes in strided blocks
    under 256 bytes and in transfers under 2 KiB for each CPE; the DMA requests; the register messages;
    the flops requested; and the cycles of each CPE's two pipelines and of the MPE."""

    seconds: float
    dma_seconds: float
    compute_seconds: float
    get_bytes: float
    put_bytes: float
    transfers: float
    short_bytes: float
    small_bytes: float
    messages: float
    flops: float
    float_cycles: float
    memory_cycles: float
    mpe_cycles: float

    @classmethod
    def of(cls, count: Sequence[float]) -> Cost:
        """Return the cost that a program's counters say."""
        return cls(*(float(value) for value in count))

    @classmethod
    def total(cls, costs: Iterable[Cost]) -> Cost:
        """Return the cost of programs that run one after the other."""
        rows = [vars(cost).values() for cost in costs]
        return cls(*map(sum, zip(*rows, strict=True)))

    def findings(self) -> Iterator[str]:
        """Yield which of the four principles of Section III the program violates, if it takes any
        time."""
        moved = self.get_bytes + self.put_bytes
        if self.mpe_cycles > 0.05 * self.seconds * CLOCK:
            yield (
                f"principle 1: {self.mpe_cycles / CLOCK / self.seconds:.0%} of the time is work on the "
                f"MPE; move it to the CPEs"
            )
        possible = self.messages * FLOPS_OF_MESSAGE
        if self.flops < 0.5 * possible:
            yield (
                f"principle 1: {self.flops / possible:.0%} of the mesh's products are useful; the rest "
                f"is padding to its tiles"
            )
        if self.dma_seconds > 0.2 * self.seconds:
            if self.small_bytes > 0.5 * moved:
                yield (
                    f"principle 3: {self.small_bytes / moved:.0%} of the DMA moves less than "
                    f"{SATISFACTORY_TRANSFER} bytes a CPE at a time; move more at once"
                )
            if self.short_bytes > 0.5 * moved:
                yield (
                    f"principle 3: {self.short_bytes / moved:.0%} of the DMA is in strided blocks of "
                    f"less than {SATISFACTORY_BLOCK} bytes; make rows longer"
                )
        if self.flops > 26.5 * moved and not self.messages:
            yield "principle 4: much arithmetic and no register message; share operands along rows"
