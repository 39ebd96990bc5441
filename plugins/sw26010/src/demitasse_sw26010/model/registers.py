"""Register communication: 256 bits from CPE to CPE, only along a row or a column, in FIFO order.

A receiver does not know the sender: it takes what came first along its row, or along its column. In
lock-step nobody can wait, so a full or an empty buffer is a mistake in the program.
"""

from __future__ import annotations

import numpy as np

from demitasse_sw26010.model.figures import CLOCK, CPES, MESH, MESSAGE_CYCLES
from demitasse_sw26010.model.mesh import ELAPSED, MESSAGES, work
from demitasse_sw26010.model.programs import Array, program

DEPTH = 4
"""The number of messages that a receiving buffer holds (assumed; the paper says only that it is
finite)."""

ROW, COLUMN = 0, 1
FLIGHT_CYCLES = 11.0
"""Cycles from sending a message until it can be used (assumed: as long as a vector load and an add)."""


@program
def buffers() -> tuple[Array, Array]:
    """Return the empty buffers (messages, lengths) of every CPE along its row and its column."""
    return np.full((CPES, 2, DEPTH, 4), np.nan), np.zeros((CPES, 2), np.int64)


@program
def send(
    count: Array, messages: Array, lengths: Array, sender: int, receiver: int, value: Array
) -> None:
    """Send four doubles from one CPE to another. Raises ValueError if they share neither row nor column,
    or if the receiver's buffer is full."""
    same_row = sender // MESH == receiver // MESH
    if sender == receiver or not (same_row or sender % MESH == receiver % MESH):
        raise ValueError("register communication is along a row or a column of the mesh, to another CPE")
    along = ROW if same_row else COLUMN
    if lengths[receiver, along] == DEPTH:
        raise ValueError("the receiver's buffer is full: the sender would wait for ever")
    for i in range(4):
        messages[receiver, along, lengths[receiver, along], i] = value[i]
    lengths[receiver, along] += 1
    count[MESSAGES] += 1.0


@program
def broadcast(
    count: Array, messages: Array, lengths: Array, sender: int, along: int, value: Array
) -> None:
    """Send four doubles to the seven others of the sender's row or column, in one message."""
    before = count[MESSAGES]
    row, column = sender // MESH, sender % MESH
    for i in range(MESH):
        receiver = row * MESH + i if along == ROW else i * MESH + column
        if receiver != sender:
            send(count, messages, lengths, sender, receiver, value)
    count[MESSAGES] = before + 1.0


@program
def receive(messages: Array, lengths: Array, cpe: int, along: int, value: Array) -> None:
    """Receive the first message in a buffer. Raises ValueError if there is none."""
    if lengths[cpe, along] == 0:
        raise ValueError("no message is there: the receiver would wait for ever")
    for i in range(4):
        value[i] = messages[cpe, along, 0, i]
    for slot in range(1, DEPTH):
        for i in range(4):
            messages[cpe, along, slot - 1, i] = messages[cpe, along, slot, i]
    lengths[cpe, along] -= 1


@program
def mesh_sum(count: Array, touch: bool, parts: Array) -> float:
    """Return the sum, on CPE 0, of one number from each CPE (``parts``, 64): along all rows at once,
    then along the first column. The receiver adds messages as they come."""
    steps = 2.0 * (MESH - 1)
    count[ELAPSED] += work(count, steps, steps * MESSAGE_CYCLES) + 2.0 * FLIGHT_CYCLES / CLOCK
    if not touch:
        count[MESSAGES] += float(CPES - 1)
        return 0.0
    messages, lengths = buffers()
    value = np.zeros(4)
    for step in range(1, MESH):
        for row in range(MESH):
            value[0] = parts[row * MESH + step]
            send(count, messages, lengths, row * MESH + step, row * MESH, value)
            receive(messages, lengths, row * MESH, ROW, value)
            parts[row * MESH] += value[0]
    for step in range(1, MESH):
        value[0] = parts[step * MESH]
        send(count, messages, lengths, step * MESH, 0, value)
        receive(messages, lengths, 0, COLUMN, value)
        parts[0] += value[0]
    return float(parts[0])


@program
def mesh_sums(count: Array, touch: bool, parts: Array) -> None:
    """Add up many numbers, each over all CPEs: ``parts`` is (64, a multiple of 256). In its row, a CPE
    receives an eighth of the numbers from each of the others; then, in its column, an eighth of those.
    It is left with the sums of a 64th of the numbers, which begin at ``sums_begin`` (COLUMN)."""
    size = parts.shape[1]
    for along, some in ((ROW, size // MESH), (COLUMN, size // CPES)):
        steps = (MESH - 1) * some / 4.0
        count[ELAPSED] += work(count, steps, steps * MESSAGE_CYCLES) + FLIGHT_CYCLES / CLOCK
        if touch:
            exchange_sums(count, parts, along, some)
        else:
            count[MESSAGES] += CPES * steps


@program
def sums_begin(cpe: int, along: int, size: int) -> int:
    """Return the first of those of ``size`` numbers that a CPE adds up along its row or its column."""
    begin = cpe % MESH * (size // MESH)
    return begin if along == ROW else begin + cpe // MESH * (size // CPES)


@program
def exchange_sums(count: Array, parts: Array, along: int, some: int) -> None:
    """Let each CPE send to each of the others of its row or column the ``some`` numbers which those
    receive and add up."""
    messages, lengths = buffers()
    value, size = np.zeros(4), parts.shape[1]
    for step in range(1, MESH):
        for at in range(0, some, 4):
            for cpe in range(CPES):
                row, column = cpe // MESH, cpe % MESH
                receiver = row * MESH + (column + step) % MESH
                if along == COLUMN:
                    receiver = (row + step) % MESH * MESH + column
                begin = at + sums_begin(receiver, along, size)
                for i in range(4):
                    value[i] = parts[cpe, begin + i]
                send(count, messages, lengths, cpe, receiver, value)
            for cpe in range(CPES):
                begin = at + sums_begin(cpe, along, size)
                receive(messages, lengths, cpe, along, value)
                for i in range(4):
                    parts[cpe, begin + i] += value[i]
