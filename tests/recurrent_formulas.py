"""Recurrent layers by their formulas, step by step in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def pieces(cont: np.ndarray) -> list[tuple[int, slice]]:
    """Streams and steps of the sequences that the indicators cut a batch into."""
    steps, streams = cont.shape
    found = []
    for stream in range(streams):
        starts = sorted({0, *np.flatnonzero(cont[:, stream] == 0).tolist()})
        ends = [*starts[1:], steps]
        found += [(stream, slice(a, b)) for a, b in zip(starts, ends, strict=True)]
    return found


def lstm(x: np.ndarray, cont: np.ndarray, s: Any, p: list[np.ndarray]) -> np.ndarray:
    w_x, b, *static, w_h = p
    y = np.zeros((*cont.shape, w_h.shape[1]))
    for stream, piece in pieces(cont):
        h = c = np.zeros(w_h.shape[1])
        for t in range(piece.start, piece.stop):
            total = w_x @ x[t, stream].reshape(-1) + b + w_h @ h
            if static:
                total = total + static[0] @ s[stream].reshape(-1)
            i, f, o, g = total.reshape(4, -1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            y[t, stream] = h = sigmoid(o) * np.tanh(c)
    return y


def rnn(x: np.ndarray, cont: np.ndarray, s: Any, p: list[np.ndarray]) -> np.ndarray:
    w_x, b, *static, w_h, w_o, b_o = p
    y = np.zeros((*cont.shape, len(b)))
    for stream, piece in pieces(cont):
        h = np.zeros(len(b))
        for t in range(piece.start, piece.stop):
            fixed = static[0] @ s[stream].reshape(-1) if static else 0
            h = np.tanh(w_x @ x[t, stream].reshape(-1) + b + fixed + w_h @ h)
            y[t, stream] = np.tanh(w_o @ h + b_o)
    return y
