"""The tables of papers, from all plugins that know them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from demitasse import ModelError, PluginError, compose, discover, unknown

KEYS = ("table", "row", "column", "unit", "paper", "predicted")
ME = "simulator"


def gather(
    paper: str, plugins: Sequence[str] | None = None, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """``{"paper", "cells", "notes"}``: the cells of all composed plugins whose hook ``reproductions``
    knows the paper; by default every installed one is asked. Raises ModelError for a paper that nobody
    knows, PluginError for an answer that is none."""
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
        # This plugin's own cells begin where others' end, so it comes last.
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
            cells += _checked(name, answer)
            notes += map(str, answer.get("notes", ()))
    if not answered:
        papers = {each for facts in known.values() for each in facts.get("papers", ())}
        if knowing := [name for name, facts in known.items() if paper in facts.get("papers", ())]:
            raise ModelError(
                f"no composed plugin knows the paper {paper!r}; compose {' or '.join(knowing)} "
                f"(--plugins +{knowing[0]}); asked: {', '.join(asked) or 'none'}"
            )
        raise ModelError(f"{unknown('paper', paper, papers)}; asked: {', '.join(asked) or 'none'}")
    return {"paper": paper, "cells": cells, "notes": notes}


def _checked(name: str, answer: Any) -> list[dict[str, Any]]:
    given = answer.get("cells") if isinstance(answer, Mapping) else None
    if not isinstance(given, Sequence) or not all(
        isinstance(cell, Mapping) and set(KEYS) <= set(cell) for cell in given
    ):
        needs = ", ".join(KEYS)
        raise PluginError(f"plugin {name!r}: its reproduction has no list of cells with {needs}")
    return [dict(cell) for cell in given]
