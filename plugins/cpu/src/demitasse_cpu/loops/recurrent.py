"""One step of a recurrence. Rows are streams; each has its gates one after the other, with a number for
each unit."""

from __future__ import annotations

from typing import Any

from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.exponentials import exponential, exponential_less_one


@inlined
def _sigmoid(value: Any, one: Any) -> Any:
    """Compute a sigmoid from the exponential of a number below 0, which stays in range."""
    small = exponential(-abs(value))
    return (one if value > 0 else small) / (one + small)


@inlined
def _tanh(value: Any, one: Any) -> Any:
    less = exponential_less_one(-(one + one) * abs(value))
    size = -less / (one + one + less)
    return -size if value < 0 else size


@compiled()
def copied(x: Array, y: Array, begin: int, end: int) -> None:
    source, target = x[begin:end], y[begin:end]
    for i in range(target.size):
        target[i] = source[i]


@compiled()
def carry(h: Array, cont: Array, carried: Array, units: int, begin: int, end: int) -> None:
    """Copy the hidden state that is carried into a step; it is zero where a sequence begins."""
    for row in range(begin, end):
        goes_on = h.dtype.type(cont[row])
        source, target = h[row * units : (row + 1) * units], carried[row * units : (row + 1) * units]
        for i in range(units):
            target[i] = goes_on * source[i]


@compiled()
def lstm_step(
    z: Array,
    fixed: Array,
    cont: Array,
    before: Array,
    cell: Array,
    hidden: Array,
    gates: Array,
    adds: bool,
    units: int,
    begin: int,
    end: int,
) -> None:
    """Compute a step. Its gates are ``z`` plus ``fixed`` (empty for none) plus, if ``adds``, what is
    already in ``gates``. ``before`` is the previous cell, and may be the same memory as ``cell``."""
    one, zero = z.dtype.type(1), z.dtype.type(0)
    for row in range(begin, end):
        at, wide = row * units, row * 4 * units
        goes_on = z.dtype.type(cont[row])
        totals, given = gates[wide : wide + 4 * units], z[wide : wide + 4 * units]
        if adds:
            for i in range(4 * units):
                totals[i] += given[i]
        else:
            for i in range(4 * units):
                totals[i] = given[i]
        if fixed.size > 0:
            more = fixed[wide : wide + 4 * units]
            for i in range(4 * units):
                totals[i] += more[i]
        for i in range(3 * units):
            totals[i] = _sigmoid(totals[i], one)
        candidates = totals[3 * units :]
        for i in range(units):
            candidates[i] = _tanh(candidates[i], one)
        let_in, keep, let_out = totals[:units], totals[units : 2 * units], totals[2 * units : 3 * units]
        old, new, out = before[at : at + units], cell[at : at + units], hidden[at : at + units]
        for i in range(units):
            kept = zero if goes_on == 0 else goes_on * keep[i] * old[i]
            new[i] = kept + let_in[i] * candidates[i]
            out[i] = let_out[i] * _tanh(new[i], one)


@compiled()
def lstm_step_backward(
    dy: Array,
    dhidden: Array,
    after: Array,
    dcell: Array,
    before: Array,
    cont: Array,
    cell: Array,
    gates: Array,
    dbefore: Array,
    dz: Array,
    bound: float,
    units: int,
    begin: int,
    end: int,
) -> None:
    """Compute the gradients of a step. The gradient that arrives at the hidden state is ``dy`` plus,
    where the step ``after`` (its cont; empty for none) continues this one, ``dhidden``. ``dy`` and
    ``dcell`` may be empty for none. ``dbefore`` may be the same memory as ``dcell``. ``dbefore`` and
    ``dz`` may be empty if nobody reads them. ``dz`` is clipped to the range from ``-bound`` to
    ``bound``, unless that is 0."""
    one, zero = gates.dtype.type(1), gates.dtype.type(0)
    for row in range(begin, end):
        at, wide = row * units, row * 4 * units
        goes_on = gates.dtype.type(cont[row])
        passed = gates.dtype.type(after[row]) if after.size > 0 else zero
        parts, now = gates[wide : wide + 4 * units], cell[at : at + units]
        let_in, keep = parts[:units], parts[units : 2 * units]
        let_out, candidates = parts[2 * units : 3 * units], parts[3 * units :]
        old = before[at : at + units]
        for i in range(units):
            through = _tanh(now[i], one)
            of_hidden = dy[at + i] if dy.size > 0 else zero
            if passed != 0:
                of_hidden += passed * dhidden[at + i]
            total = dcell[at + i] if dcell.size > 0 else zero
            total += of_hidden * let_out[i] * (one - through * through)
            if dz.size > 0:
                kept = zero if goes_on == 0 else goes_on * old[i]
                share = candidates[i]
                dz[wide + i] = total * share * let_in[i] * (one - let_in[i])
                dz[wide + units + i] = total * kept * keep[i] * (one - keep[i])
                dz[wide + 2 * units + i] = of_hidden * through * let_out[i] * (one - let_out[i])
                dz[wide + 3 * units + i] = total * let_in[i] * (one - share * share)
                if bound > 0:
                    most = gates.dtype.type(bound)
                    for gate in range(4):
                        at_gate = wide + gate * units + i
                        dz[at_gate] = min(max(dz[at_gate], -most), most)
            if dbefore.size > 0:
                dbefore[at + i] = total * keep[i] * goes_on


@compiled()
def rnn_step(z: Array, fixed: Array, hidden: Array, units: int, begin: int, end: int) -> None:
    """Compute a step from ``z`` and ``fixed`` (empty for none), added to what is already in
    ``hidden``."""
    one = z.dtype.type(1)
    for at in range(begin * units, end * units, units):
        totals, given = hidden[at : at + units], z[at : at + units]
        if fixed.size > 0:
            more = fixed[at : at + units]
            for i in range(units):
                totals[i] += more[i]
        for i in range(units):
            totals[i] = _tanh(totals[i] + given[i], one)


@compiled()
def rnn_step_backward(
    dy: Array,
    dhidden: Array,
    after: Array,
    y: Array,
    dz: Array,
    units: int,
    begin: int,
    end: int,
) -> None:
    """Compute the gradient of a step. ``dhidden`` and ``after`` are as in lstm_step_backward."""
    one, zero = y.dtype.type(1), y.dtype.type(0)
    for row in range(begin, end):
        at = row * units
        passed = y.dtype.type(after[row]) if after.size > 0 else zero
        value, arriving, target = y[at : at + units], dy[at : at + units], dz[at : at + units]
        for i in range(units):
            target[i] = arriving[i] * (one - value[i] * value[i])
        if passed != 0:
            more = dhidden[at : at + units]
            for i in range(units):
                target[i] += passed * more[i] * (one - value[i] * value[i])


@compiled()
def sum_of_steps(x: Array, total: Array, begin: int, end: int) -> None:
    """Sum rows as long as ``total``, in their order, for elements ``begin`` to ``end``."""
    target = total[begin:end]
    for i in range(target.size):
        target[i] = 0
    for at in range(0, x.size, total.size):
        source = x[at + begin : at + end]
        for i in range(target.size):
            target[i] += source[i]
