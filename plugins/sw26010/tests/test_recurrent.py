"""Long short-term memory on the mesh compared with its formulas in float64, and its gradients with
finite differences of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mesh_problems import close, numbers

from demitasse_sw26010.kernels import candidates

Run = Callable[..., list[Any]]


def logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def formula(z: Any, w: Any, cont: Any, h: Any, c: Any, s: Any) -> tuple[Any, Any]:
    """Return all hidden states and cells by Hochreiter and Schmidhuber's formulas, with forget gates, in
    float64."""
    hidden, cell, units = h[0], c[0], w.shape[1]
    ys, cells = [], []
    for t in range(len(z)):
        goes_on = cont[t][:, None]
        total = z[t] + (goes_on * hidden) @ w.T + (0.0 if s is None else s)
        i, f, o = (logistic(total[:, k * units : (k + 1) * units]) for k in range(3))
        cell = goes_on * f * cell + i * np.tanh(total[:, 3 * units :])
        hidden = o * np.tanh(cell)
        ys.append(hidden)
        cells.append(cell)
    return np.array(ys), np.array(cells)


def problem(steps: int, streams: int, units: int, added: bool) -> list[Any]:
    """Return z, w, cont with sequences that begin, h, c and s in float32. s is None unless something is
    added."""
    z, w = numbers(steps, streams, 4 * units), numbers(4 * units, units, seed=1) / np.float32(units**0.5)
    cont = (np.arange(steps * streams).reshape(steps, streams) % 4 != 1).astype(np.float32)
    h, c = numbers(1, streams, units, seed=2), numbers(1, streams, units, seed=3)
    return [z, w, cont, h, c, numbers(streams, 4 * units, seed=4) if added else None]


def doubled(arrays: list[Any]) -> list[Any]:
    return [None if x is None else x.astype(float) for x in arrays]


@pytest.mark.parametrize(
    ("steps", "streams", "units", "added"),
    [(4, 3, 5, True), (3, 66, 70, False), (1, 1, 1, False), (2, 2, 256, True)],
    ids=["small", "several tiles", "one", "weights that need no padding"],
)
def test_long_short_term_memory(run: Run, steps: int, streams: int, units: int, added: bool) -> None:
    given = problem(steps, streams, units, added)
    y, hidden, cell, carried, cells, gates = run("lstm", given)
    expected, states = formula(*doubled(given))
    close(y, expected, 1e-5)
    close(cells, states, 1e-5)
    close(hidden, expected[-1:], 1e-5)
    close(cell, states[-1:], 1e-5)
    before = np.concatenate([given[3], expected[:-1]])
    close(carried, given[2][:, :, None] * before, 1e-5)

    dy, way = numbers(steps, streams, units, seed=5), doubled(problem(steps, streams, units, added))
    dz, dw, ds = run("lstm_backward", (dy, *given[1:3], given[4], carried, cells, gates))
    exact = doubled(given)

    def loss(epsilon: float, which: int) -> float:
        moved = [*exact]
        moved[which] = exact[which] + epsilon * directions[which]
        return float((formula(*moved)[0] * dy).sum())

    directions = {i: np.random.default_rng(7 + i).standard_normal(way[i].shape) for i in (0, 1)}
    if added:
        directions[5] = np.random.default_rng(12).standard_normal(way[5].shape)
    for which, gradient in ((0, dz), (1, dw), (5, ds)):
        if which in directions:
            slope = (loss(1e-5, which) - loss(-1e-5, which)) / 2e-5
            assert (gradient * directions[which]).sum() == pytest.approx(slope, rel=2e-4, abs=1e-4)
    close(ds, dz.astype(float).sum(0), 1e-5)


def test_gradients_of_single_numbers_and_their_bound(run: Run) -> None:
    given = problem(3, 2, 2, False)
    _, _, _, carried, cells, gates = run("lstm", given)
    dy = numbers(3, 2, 2, seed=5)
    rest = (dy, *given[1:3], given[4], carried, cells, gates)
    dz, dw, _ = run("lstm_backward", rest)
    exact = doubled(given)
    for which, gradient in ((0, dz), (1, dw)):
        for place in np.ndindex(gradient.shape):
            values = []
            for epsilon in (1e-6, -1e-6):
                moved = [x if x is None else x.copy() for x in exact]
                moved[which][place] += epsilon
                values.append((formula(*moved)[0] * dy).sum())
            assert gradient[place] == pytest.approx((values[0] - values[1]) / 2e-6, abs=2e-5)
    # The last step's slopes are clipped where they exceed the bound; the first step's have passed
    # through these.
    bound = float(np.abs(dz[-1]).max() / 2)
    (cut, *_) = run("lstm_backward", rest, {"bound": bound})
    close(cut[-1], np.clip(dz[-1], -bound, bound), 1e-6)
    assert np.abs(cut).max() <= np.float32(bound)


def test_only_what_is_asked_for_is_made(run: Run) -> None:
    given = problem(3, 2, 4, False)
    y, *rest = run("lstm", given, absent=(1, 2, 3, 4, 5))
    assert rest == [None] * 5
    close(y, formula(*doubled(given))[0], 1e-5)


def test_states_are_kept_from_one_iteration_to_the_next(run: Run) -> None:
    state, x = numbers(1, 3, 700), numbers(1, 3, 700, seed=1)
    (y,) = run("recall", (state,))
    assert (y == state).all()
    run("remember", (state, x))
    assert (state == x).all()


def test_weights_are_padded_once_and_each_step_costs_a_product(ask: Any) -> None:
    """Ten steps cost less than ten times one step; without backward's arrays, less is put."""

    def seconds(steps: int, absent: tuple[int, ...] = ()) -> float:
        (candidate,) = candidates(ask("lstm", problem(steps, 16, 100, False), {}, absent))
        assert candidate.seconds is not None
        return candidate.seconds

    assert 5 * seconds(1) < seconds(10) < 10 * seconds(1)
    assert seconds(10, (3, 4, 5)) < seconds(10)
