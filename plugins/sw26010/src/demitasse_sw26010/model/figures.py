"""The figures of a core group, each with its source. ``paper`` is Fang et al., swCaffe (2018).

Two of them are not printed anywhere and are assumed, with the reason: how long a DMA takes to start,
and what a block of a strided transfer costs beyond its bytes. Everything else that a prediction rests
on is what the kernels do.
"""

MESH = 8
"""Rows and columns of CPEs (paper II.A)."""

CPES = MESH * MESH

CLOCK = 1.45e9
"""Cycles a second, of MPE and CPEs (paper II.A)."""

LDM_BYTES = 64 * 1024
"""Of one CPE (paper II.A)."""

PEAK = 742.4e9
"""FLOP/s of the 64 CPEs: one 256-bit multiply-add a cycle each (paper III.A, principle 1)."""

MPE_CYCLES = 4.0
"""Of a scalar loop on the MPE for each element: two loads, an operation and a store, in order."""

DMA_BANDWIDTH = 28e9
"""Bytes a second that DMA saturates at, read or write (paper III.A and Fig. 2)."""

DMA_PER_CPE = DMA_BANDWIDTH / 16
"""What one CPE draws at most (assumed: a quarter of the mesh saturates the memory controller)."""

DMA_LATENCY = 400 / CLOCK
"""From a DMA's start until its first byte (paper: hundreds of cycles; assumed: 400)."""

BLOCK_OVERHEAD = 192
"""The time that each block of a transfer takes beyond its own bytes, as bytes at full bandwidth: the
DRAM's row and command. Assumed: it gives Fig. 2's shape, 57% at blocks of 256 bytes and 14% at 32; of
the two values tried, 128 and 192, the one that meets Table II's printed cells better."""

SATISFACTORY_BLOCK = 256
"""Bytes that a block of a strided transfer should have (paper III.A, principle 3)."""

SATISFACTORY_TRANSFER = 2048
"""Bytes that a CPE's transfer should have (paper III.A, principle 3)."""

MESSAGE_BYTES = 32
"""Of a register message: 256 bits (paper II.A)."""

POINT_TO_POINT = 2549e9
"""Bytes a second that all CPEs receive by messages to one other (paper III.A, principle 4)."""

BROADCAST = 4461e9
"""Bytes a second that all CPEs receive when messages go to all of a row or a column (paper III.A,
principle 4)."""

MESSAGE_CYCLES = CPES * MESSAGE_BYTES * CLOCK / POINT_TO_POINT
BROADCAST_CYCLES = CPES * MESSAGE_BYTES * CLOCK / BROADCAST
"""Between the messages that a CPE takes, from one other or of a broadcast, when they are pipelined."""

REGISTER_ROWS, REGISTER_COLUMNS = 16, 4
"""The part of a product that a CPE keeps in registers: 16 of its 32 hold sums of 4 doubles, the
others operands on their way. Whole parts are computed: the mesh pads to them."""

ROUND_CYCLES = 40
"""To load and store a register part's sums (32 instructions on the memory pipeline) and to fill the
pipelines once (a message and a multiply-add: 8 more), for each of the eight steps of a product. Assumed:
with 20 cycles for each of k, in place of the 24 counted, and with 72 here, Table II was tried too."""


def dma_bandwidth(block: float, cpes: int = CPES) -> float:
    """Bytes a second of a transfer in blocks of so many bytes, as in Fig. 2, without its latency."""
    return min(DMA_BANDWIDTH, cpes * DMA_PER_CPE) * block / (block + BLOCK_OVERHEAD)
