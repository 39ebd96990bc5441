"""``demitasse doctor``: check the installation; each finding has a remedy."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
import platform
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse import check_writable, write_json
from demitasse_cli import options as shared
from demitasse_cli import report

if TYPE_CHECKING:
    from demitasse import Finding, Manifest

GROUP = "demitasse.plugins"

LEVELS = ("ok", "note", "problem")

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


class Doctor(click.Command):
    """A command with a flag for each topic that plugins check on request."""

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        """Return the options, including those of the topics that installed plugins declare."""
        from demitasse import discover

        flags: list[click.Parameter] = []
        for manifest in discover():
            for name, summary in () if manifest.problem else topics_of(manifest).items():
                flags.append(
                    click.Option([f"--{name}"], is_flag=True, help=f"{summary} ({manifest.name}).")
                )
        return [*flags, *super().get_params(context)]


def topics_of(manifest: Manifest) -> dict[str, str]:
    """Return the topics that a plugin checks only on request, each with a summary."""
    return dict(manifest.roles.get("diagnose", {}).get("topics", {}))


@click.command(
    "doctor",
    epilog="Example: demitasse doctor --json findings.json",
    cls=Doctor,
    help="Check every plugin and this environment; the exit status is 1 if something is wrong.",
)
@shared.json_option("the findings")
def command(json_path: str | None, **topics: bool) -> int:
    """Import each plugin, compare it with its manifest, ask it for its own findings, also on the
    ``topics`` that are asked for."""
    check_writable({"--json": json_path})
    chosen = frozenset(name for name, asked in topics.items() if asked)
    findings = [*environment(), *checked(chosen)]
    problems = [finding for finding in findings if finding.level == "problem"]
    try:
        if json_path is not None:
            plain = [dict(vars(finding)) for finding in findings]
            write_json(json_path, {"problems": len(problems), "findings": plain})
    finally:
        if json_path != "-":
            rows = [(finding.level, finding.subject, _words(finding)) for finding in findings]
            click.echo(report.table(("level", "subject", "finding"), rows))
            click.echo(report.counted(len(problems), "problem"))
    return 1 if problems else 0


def _words(finding: Finding) -> str:
    return f"{finding.message}; remedy: {finding.remedy}" if finding.remedy else finding.message


def environment() -> Iterator[Finding]:
    """Yield facts about Python, NumPy, its BLAS, and threads."""
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
    """Check every installed plugin: its manifest, its module, and its own findings, including those on
    ``topics`` that it knows. Then check whether the automatic plugins work together."""
    from demitasse import discover

    manifests = discover()
    found: list[Finding] = []
    for manifest in manifests:
        found += _check(manifest, [other.name for other in manifests], topics)
    found += _unentered(manifests)
    found += _claims(manifests)
    found += _together(manifests)
    yield from found
    subjects = {f"plugin {manifest.name}" for manifest in manifests}
    if not any(each.level == "problem" and each.subject in subjects for each in found):
        yield from _composed()


def _check(manifest: Manifest, installed: list[str], topics: frozenset[str]) -> Iterator[Finding]:
    from demitasse import Finding

    subject = f"plugin {manifest.name}"
    if manifest.problem:
        yield Finding("problem", subject, manifest.problem, _mend_manifest(manifest))
        return
    for other in sorted({*manifest.requires} - {*installed}):
        message = f"requires {other!r}, which is not installed"
        yield Finding("problem", subject, message, f"pip install demitasse-{other}")
    try:
        module = importlib.import_module(manifest.module)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a broken plugin must not stop the checks
        message = f"cannot be imported: {type(error).__name__}: {error}"
        yield Finding("problem", subject, message, _mend_import(manifest, error))
        return
    implemented = {name for name, value in vars(module).items() if hasattr(value, "demitasse_impl")}
    declared = set(manifest.roles)
    if implemented != declared:
        missing, silent = sorted(declared - implemented), sorted(implemented - declared)
        message = (
            f"its manifest and module differ: declared only {', '.join(missing) or 'none'}; "
            f"implemented only {', '.join(silent) or 'none'}"
        )
        steps = [f"mark a function {name} of {manifest.module} with hookimpl" for name in missing]
        steps += [f"add a table [roles.{name}] to its plugin.toml" for name in silent]
        told = _broken(manifest) or ""
        if "unknown hook" in told:  # the manifest has no table for such a hook
            yield Finding("problem", subject, told, f"fix it{_or_reinstall(manifest)}")
            return
        yield Finding("problem", subject, message, f"{'; '.join(steps)}; or {_uninstall(manifest)}")
        return
    # A missing requirement or a duplicate name is reported separately.
    whole = {*manifest.requires} <= {*installed} and installed.count(manifest.name) == 1
    if whole and (broken := _broken(manifest)) is not None:
        yield Finding("problem", subject, broken, f"fix it{_or_reinstall(manifest)}")
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
                        f"{finding!r} is not a Finding whose level is known (valid: {', '.join(LEVELS)})"
                    )
                yield finding
        except (Exception, SystemExit) as error:  # noqa: BLE001  as above
            message = f"its diagnosis failed: {type(error).__name__}: {error}"
            remedy = f"fix its hook diagnose{_place(error, manifest)}, or {_uninstall(manifest)}"
            yield Finding("problem", subject, message, remedy)


def _or_reinstall(manifest: Manifest) -> str:
    return f", or {_reinstall(manifest)}, or {_uninstall(manifest)}"


def _broken(manifest: Manifest) -> str | None:
    """Return why a plugin, composed only with what it requires, is rejected through its own fault."""
    from demitasse import DemitasseError, Level, Machine, PluginError, compose

    try:
        machine = Machine("the doctor's", (Level("machine"),), fingerprint="any")
        with compose(machine, [manifest.name, *manifest.requires]):
            return None
    except PluginError as error:
        return str(error) if repr(manifest.name) in str(error) else None
    except DemitasseError:  # caused by other plugins, which are reported separately
        return None


def _unentered(manifests: tuple[Manifest, ...]) -> Iterator[Finding]:
    """Find installed packages that are meant to be plugins but declare no entry point for it."""
    from demitasse import Finding

    entered = {manifest.distribution for manifest in manifests}
    for each in importlib.metadata.distributions():
        files = each.files or ()
        holds = any(
            path.name == "plugin.toml" and path.parent.name.startswith("demitasse_") for path in files
        )
        if each.name not in entered and (holds or each.name.startswith("demitasse-")):
            groups = sorted({point.group for point in each.entry_points})
            message = (
                f"has no entry point in the group {GROUP!r} (its groups: {', '.join(groups) or 'none'})"
            )
            remedy = f'add [project.entry-points."{GROUP}"] to its pyproject.toml and reinstall it'
            yield Finding("problem", f"distribution {each.name}", message, remedy)


def _claims(manifests: tuple[Manifest, ...]) -> Iterator[Finding]:
    """Find plugin names that two distributions use, and commands that two plugins offer."""
    from demitasse import Finding

    makers: dict[str, list[str]] = {}
    owners: dict[str, list[Manifest]] = {}
    for manifest in manifests:
        makers.setdefault(manifest.name, []).append(manifest.distribution)
        for name in manifest.roles.get("commands", {}).get("commands", {}):
            owners.setdefault(name, []).append(manifest)
    for name, both in makers.items():
        if len(both) > 1:
            message = f"is provided by {' and '.join(both)}, so nothing can be composed"
            yield Finding("problem", f"plugin {name}", message, f"pip uninstall {' or '.join(both)}")
    for name, claiming in owners.items():
        if len(claiming) > 1:
            message = f"is claimed by the plugins {' and '.join(each.name for each in claiming)}"
            remedy = f"pip uninstall {' or '.join(each.distribution for each in claiming)}"
            yield Finding("problem", f"command {name}", message, remedy)


def _together(manifests: tuple[Manifest, ...]) -> Iterator[Finding]:
    """Find automatic plugins (composed unless excluded) that do not work together."""
    from demitasse import Finding

    automatic = {each.name: each for each in manifests if each.automatic and not each.problem}
    installed = {each.name for each in manifests}
    told = set[frozenset[str]]()
    for manifest in automatic.values():
        subject, alone = f"plugin {manifest.name}", f"--plugins -{manifest.name}"
        for other in sorted((set(manifest.requires) & installed) - set(automatic)):
            message = (
                f"is automatic but requires {other!r}, which is not: nothing can be composed without a "
                f"list of plugins"
            )
            remedy = f"at each run --plugins +{other}, or {alone}; or {_uninstall(manifest)}"
            yield Finding("problem", subject, message, remedy)
        for other in sorted(set(manifest.conflicts) & set(automatic)):
            pair = frozenset((manifest.name, other))
            if pair not in told:
                told.add(pair)
                message = (
                    f"conflicts with {other!r}, and both are automatic: nothing can be composed without "
                    f"a list of plugins"
                )
                remedy = f"at each run {alone} or --plugins -{other}; or {_uninstall(manifest)}"
                yield Finding("problem", subject, message, remedy)


def _composed() -> Iterator[Finding]:
    """Check that all automatic plugins make a runtime: two may define one operation or layer type."""
    from demitasse import DemitasseError, Finding, Level, Machine, compose

    try:
        with compose(Machine("the doctor's", (Level("machine"),), fingerprint="any")):
            pass
    except DemitasseError as error:
        remedy = "leave out one of the plugins named (--plugins -NAME, or pip uninstall)"
        yield Finding("problem", "automatic plugins", str(error), remedy)


def _mend_manifest(manifest: Manifest) -> str:
    if manifest.problem.startswith("it is for"):  # for another version of Demitasse
        return f"pip install --upgrade demitasse {manifest.distribution}; or {_uninstall(manifest)}"
    if manifest.problem.startswith("its package"):
        return f"{_reinstall(manifest)}; or {_uninstall(manifest)}"
    return f"fix its plugin.toml, or {_reinstall(manifest)}, or {_uninstall(manifest)}"


def _mend_import(manifest: Manifest, error: BaseException) -> str:
    package = str(manifest.module).partition(".")[0]
    if isinstance(error, ImportError) and error.name == "demitasse":  # older than the plugin needs
        return f"pip install --upgrade demitasse {manifest.distribution}; or {_uninstall(manifest)}"
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith(package):
        again = f"{_reinstall(manifest)} installs its dependencies"
        return f"{again}; install {error.name} if it is not one of them; or {_uninstall(manifest)}"
    return f"fix it{_place(error, manifest)}, or {_reinstall(manifest)}, or {_uninstall(manifest)}"


def _place(error: BaseException, manifest: Manifest) -> str:
    """Say where in a plugin's package an error was raised, as the end of a sentence."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" in {error.filename}, line {error.lineno}"
    package = str(manifest.module).partition(".")[0]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if package in Path(frame.filename).parts]
    return f" in {own[-1].filename}, line {own[-1].lineno}" if own else ""


def _reinstall(manifest: Manifest) -> str:
    return f"pip install --force-reinstall {manifest.distribution or f'demitasse-{manifest.name}'}"


def _uninstall(manifest: Manifest) -> str:
    return f"pip uninstall {manifest.distribution or f'demitasse-{manifest.name}'}"
