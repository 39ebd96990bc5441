"""Collecting the tables of a paper from all plugins that know it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from demitasse import ModelError, PluginError, compose, discover, uninstalled, unknown

KEYS = ("table", "row", "column", "unit", "paper", "predicted")
ANSWER = ("paper", "cells", "notes")
ME = "simulator"


def gather(
    paper: str, plugins: Sequence[str] | None = None, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Return ``{"paper", "cells", "notes"}`` with the cells of all composed plugins whose hook
    ``reproductions`` knows the paper. By default every installed plugin is asked. Raises ModelError for
    a paper that no plugin knows, PluginError for an answer of another form."""
    known = {
        m.name: m.roles["reproductions"]
        for m in discover()
        if "reproductions" in m.roles and not m.problem
    }
    names = list(plugins) if plugins is not None else [f"+{name}" for name in known]
    cells: list[dict[str, Any]] = []
    notes: list[str] = []
    answered, asked = False, list[str]()
    with compose("auto", names) as runtime:
        # This plugin's own cells are computed from those of others, so it comes last.
        serving = sorted(runtime.composition.serving("reproductions"), key=lambda each: each[0] == ME)
        for name, hook in serving:
            asked.append(name)
            if progress is not None:
                progress(f"{paper}: asking {name}")
            if name == ME:
                from demitasse_simulator.scalability import speedups

                answer = speedups(paper, cells)
            else:
                answer = hook(paper=paper)
            if answer is None:
                continue
            answered = True
            more, lines = _checked(name, answer)
            cells += more
            notes += lines
    if not answered:
        papers = {each for facts in known.values() for each in facts.get("papers", ())}
        if knowing := [name for name, facts in known.items() if paper in facts.get("papers", ())]:
            raise ModelError(
                f"no composed plugin knows the paper {paper!r}; compose {' or '.join(knowing)} "
                f"(--plugins +{knowing[0]}); asked: {', '.join(asked) or 'none'}"
            )
        told = f"{unknown('paper', paper, papers)}; asked: {', '.join(asked) or 'none'}"
        raise ModelError(told + uninstalled("reproductions", paper))
    return {"paper": paper, "cells": cells, "notes": notes}


def _checked(name: str, answer: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return an answer's cells, with Python numbers, and its notes. Raises PluginError, which says what
    is wrong with the answer."""
    who = f"plugin {name!r}: reproductions returned"
    if not isinstance(answer, Mapping):
        raise PluginError(f"{who} {answer!r:.99} (valid: None, or a table of cells and notes)")
    for key in answer:
        if key not in ANSWER:
            raise PluginError(unknown("key", str(key), ANSWER, who))
    for key in ("cells", "notes"):
        given = answer.get(key, [])
        if not isinstance(given, list | tuple) or (key == "cells" and key not in answer):
            found = f"{key} = {given!r:.99}" if key in answer else f"no {key}"
            raise PluginError(f"{who} {found} (valid: a list)")
    cells = [_cell(f"{who} cell {number}", cell) for number, cell in enumerate(answer["cells"], 1)]
    return cells, [str(note) for note in answer.get("notes", ())]


def _cell(where: str, cell: Any) -> dict[str, Any]:
    if not isinstance(cell, Mapping):
        raise PluginError(f"{where}: {cell!r:.99} (valid: a table of {', '.join(KEYS)})")
    if missing := [key for key in KEYS if key not in cell]:
        raise PluginError(f"{where} without {', '.join(missing)} (it has {', '.join(map(str, cell))})")
    made = dict(cell)
    for key in ("paper", "predicted"):
        value = cell[key]
        if value is None:
            continue
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            at = ", ".join(str(cell[label]) for label in ("table", "row", "column"))
            raise PluginError(f"{where} ({at}): {key} = {value!r} (valid: a finite number, or None)")
        made[key] = int(value) if isinstance(value, Integral) else float(value)  # JSON has no NumPy's
    return made
