"""``demitasse doctor``: what is wrong with the installation, and how to mend it."""

from __future__ import annotations

import importlib
import inspect
import os
import platform
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from demitasse_cli import report

if TYPE_CHECKING:
    from demitasse import Finding, Manifest

LEVELS = ("ok", "note", "problem")

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


class Doctor(click.Command):
    """A command with a flag for each topic that plugins can look into on request."""

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        """The options, with those of the topics that installed plugins declare."""
        from demitasse import discover

        flags: list[click.Parameter] = []
        for manifest in discover():
            for name, summary in () if manifest.problem else topics_of(manifest).items():
                flags.append(
                    click.Option([f"--{name}"], is_flag=True, help=f"{summary} ({manifest.name}).")
                )
        return [*flags, *super().get_params(context)]


def topics_of(manifest: Manifest) -> dict[str, str]:
    """What a plugin looks into only when asked, with a summary each."""
    return dict(manifest.roles.get("diagnose", {}).get("topics", {}))


@click.command(
    "doctor",
    cls=Doctor,
    help="Check every plugin and this environment; the exit status is 1 if something is wrong.",
)
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the findings as JSON; - is standard output."
)
def command(json_path: str | None, **topics: bool) -> int:
    """Import each plugin, compare it with its manifest, ask it for its own findings, also on the
    ``topics`` that are asked for."""
    chosen = frozenset(name for name, asked in topics.items() if asked)
    findings = [*environment(), *checked(chosen)]
    problems = [finding for finding in findings if finding.level == "problem"]
    if json_path is not None:
        report.write_json(
            json_path,
            {"problems": len(problems), "findings": [dict(vars(finding)) for finding in findings]},
        )
    if json_path != "-":
        rows = [(finding.level, finding.subject, _words(finding)) for finding in findings]
        click.echo(report.table(("level", "subject", "finding"), rows))
        click.echo(report.counted(len(problems), "problem"))
    return 1 if problems else 0


def _words(finding: Finding) -> str:
    return f"{finding.message}; remedy: {finding.remedy}" if finding.remedy else finding.message


def environment() -> Iterator[Finding]:
    """Facts about Python, NumPy, its BLAS and threads."""
    from demitasse import Finding, __version__

    yield Finding("ok", "demitasse", __version__)
    yield Finding("ok", "python", f"{platform.python_version()} at {sys.executable}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding(
        "ok", "machine", f"{platform.system()} {platform.machine()}, {cores} cores for this process"
    )
    try:
        import numpy as np
    except ImportError as error:
        yield Finding(
            "problem",
            "numpy",
            f"cannot be imported: {error}",
            "pip install --force-reinstall numpy",
        )
        return
    build: Any = np.show_config(mode="dicts")
    blas = build.get("Build Dependencies", {}).get("blas", {})
    yield Finding(
        "ok",
        "numpy",
        f"{np.__version__}, BLAS {blas.get('name', 'unknown')} {blas.get('version', '')}".rstrip(),
    )
    for variable in THREAD_VARIABLES:
        if variable in os.environ:
            value = os.environ[variable]
            wrong = not value.split(",")[0].isdigit() or int(value.split(",")[0]) < 1
            remedy = f"unset {variable}, or give it a number of threads" if wrong else ""
            yield Finding("problem" if wrong else "note", variable, f"is set to {value!r}", remedy)


def checked(topics: frozenset[str] = frozenset()) -> Iterator[Finding]:
    """Every installed plugin: its manifest, its module, and what it says of itself, and of ``topics``
    where it knows them."""
    from demitasse import discover

    manifests = discover()
    for manifest in manifests:
        yield from _check(manifest, {other.name for other in manifests}, topics)
    yield from _claims(manifests)


def _check(manifest: Manifest, installed: set[str], topics: frozenset[str]) -> Iterator[Finding]:
    from demitasse import Finding

    subject = f"plugin {manifest.name}"
    if manifest.problem:
        yield Finding("problem", subject, manifest.problem, _reinstall(manifest))
        return
    for other in sorted(set(manifest.requires) - installed):
        yield Finding(
            "problem",
            subject,
            f"requires {other!r}, which is not installed",
            f"pip install demitasse-{other}",
        )
    try:
        module = importlib.import_module(manifest.module)
    except Exception as error:  # noqa: BLE001  whatever a plugin does, the others are still checked
        message = f"cannot be imported: {type(error).__name__}: {error}"
        yield Finding("problem", subject, message, _reinstall(manifest))
        return
    implemented = {name for name, value in vars(module).items() if hasattr(value, "demitasse_impl")}
    declared = set(manifest.roles)
    if implemented != declared:
        missing = ", ".join(sorted(declared - implemented)) or "none"
        silent = ", ".join(sorted(implemented - declared)) or "none"
        message = f"its manifest and module differ: declared only {missing}; implemented only {silent}"
        yield Finding("problem", subject, message, _reinstall(manifest))
        return
    yield Finding(
        "ok", subject, f"{manifest.version}, api {manifest.api}, {', '.join(sorted(declared))}"
    )
    if "diagnose" in implemented:
        try:
            takes = inspect.signature(module.diagnose).parameters
            asked = {"topics": topics & {*topics_of(manifest)}} if "topics" in takes else {}
            for finding in module.diagnose(**asked) or ():
                if not isinstance(finding, Finding) or finding.level not in LEVELS:
                    raise TypeError(
                        f"{finding!r} is no Finding of a level that there is ({', '.join(LEVELS)})"
                    )
                yield finding
        except Exception as error:  # noqa: BLE001  as above
            message = f"its diagnosis failed: {type(error).__name__}: {error}"
            yield Finding("problem", subject, message, _reinstall(manifest))


def _claims(manifests: tuple[Manifest, ...]) -> Iterator[Finding]:
    """Names that two distributions give a plugin, and commands that two plugins offer."""
    from demitasse import Finding

    makers: dict[str, list[str]] = {}
    owners: dict[str, list[str]] = {}
    for manifest in manifests:
        makers.setdefault(manifest.name, []).append(manifest.distribution)
        for name in manifest.roles.get("commands", {}).get("commands", {}):
            owners.setdefault(name, []).append(manifest.name)
    remedy = "uninstall one of them"
    for name, both in makers.items():
        if len(both) > 1:
            message = f"is provided by {' and '.join(both)}: nothing can be composed"
            yield Finding("problem", f"plugin {name}", message, remedy)
    for name, both in owners.items():
        if len(both) > 1:
            message = f"is claimed by the plugins {' and '.join(both)}"
            yield Finding("problem", f"command {name}", message, remedy)


def _reinstall(manifest: Manifest) -> str:
    return f"pip install --force-reinstall {manifest.distribution or f'demitasse-{manifest.name}'}"
