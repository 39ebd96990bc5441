"""The figures of a core group, each with its source. ``paper`` is Fang et al., swCaffe (2018).

Figures that are not printed anywhere are assumed, with the reason. Above all, these are how long a DMA
takes to start, and what a block of a strided transfer costs beyond its bytes. Everything else on which a
prediction rests is what the kernels do.
"""

MESH = 8
"""The rows and the columns of CPEs (paper II.A)."""

CPES = MESH * MESH

CLOCK = 1.45e9
"""Cycles per second of the MPE and the CPEs (paper II.A)."""

LDM_BYTES = 64 * 1024
"""Bytes of LDM of one CPE (paper II.A)."""

PEAK = 742.4e9
"""FLOP/s of the 64 CPEs: one 256-bit multiply-add per cycle each (paper III.A, principle 1)."""

MPE_CYCLES = 4.0
"""Cycles of a scalar loop on the MPE for each element: two loads, an operation and a store, in order."""

DMA_BANDWIDTH = 28e9
"""Bytes per second at which DMA saturates, read or write (paper III.A and Fig. 2)."""

DMA_PER_CPE = DMA_BANDWIDTH / 16
"""The maximum bytes per second of one CPE (assumed: a quarter of the mesh saturates the memory
controller)."""

DMA_LATENCY = 400 / CLOCK
"""Seconds from the start of a DMA until its first byte (paper: hundreds of cycles; assumed: 400)."""

BLOCK_OVERHEAD = 192
"""The time that each block of a transfer takes beyond its own bytes, as bytes at full bandwidth: the
DRAM's row and command. Assumed: it gives Fig. 2's shape, 57% for blocks of 256 bytes and 14% for blocks
of 32. Of the two values tried, 128 and 192, it agrees better with Table II's printed cells."""

SATISFACTORY_BLOCK = 256
"""The minimum number of bytes that a block of a strided transfer should have (paper III.A, principle
3)."""

SATISFACTORY_TRANSFER = 2048
"""The minimum number of bytes that a CPE's transfer should have (paper III.A, principle 3)."""

MESSAGE_BYTES = 32
"""Bytes of a register message: 256 bits (paper II.A)."""

POINT_TO_POINT = 2549e9
"""Bytes per second that all CPEs together receive by point-to-point messages (paper III.A, principle
4)."""

BROADCAST = 4461e9
"""Bytes per second that all CPEs together receive by broadcasts to a row or a column (paper III.A,
principle 4)."""

MESSAGE_CYCLES = CPES * MESSAGE_BYTES * CLOCK / POINT_TO_POINT
BROADCAST_CYCLES = CPES * MESSAGE_BYTES * CLOCK / BROADCAST
"""Cycles between the messages that a CPE receives, point to point or by broadcast, when they are
pipelined."""

REGISTER_ROWS, REGISTER_COLUMNS = 16, 4
"""The part of a product that a CPE keeps in registers: 16 of its 32 hold sums of 4 doubles, and the
others hold operands on their way. Only whole parts are computed, so the mesh pads to them."""

ROUND_CYCLES = 40
"""Cycles to load and store a register part's sums (32 instructions on the memory pipeline) and to fill
the pipelines once (a message and a multiply-add: 8 more), for each of the eight steps of a product.
Assumed; Table II was also tried with 72 here and 20 cycles for each of k, instead of the 24 counted."""


def dma_bandwidth(block: float, cpes: int = CPES) -> float:
    """Return the bytes per second of a transfer in blocks of this many bytes, as in Fig. 2, without its
    latency."""
    return min(DMA_BANDWIDTH, cpes * DMA_PER_CPE) * block / (block + BLOCK_OVERHEAD)
