"""``demitasse convert``: weights, nets and solvers from one file format to another."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse import check_writable, write_json
from demitasse_cli import options as shared
from demitasse_cli import report

if TYPE_CHECKING:
    from demitasse import ModelReader, NetDefinition, Runtime, Weights


@click.command(
    "convert",
    epilog="Example: demitasse convert out/lenet_iter_10000.demitasse lenet.caffemodel",
    help="Convert weights and solver state, or a net or solver, from IN to OUT. The suffixes name the "
    "formats; older forms of a format are upgraded to the current one.",
)
@click.argument("source", metavar="IN", type=shared.file)
@click.argument("target", metavar="OUT", type=shared.file)
@shared.plugins_option
@click.option(
    "--weights", metavar="FILE[,FILE]", help="The weights of a net, for a format that holds both (ONNX)."
)
@click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")
@shared.json_option("the result")
def command(
    source: Path,
    target: Path,
    plugins: str | None,
    weights: str | None,
    force: bool,
    json_path: str | None,
) -> None:
    """Convert, and say what was written."""
    from demitasse import ModelError

    check_writable({"OUT": target, "--json": json_path})
    if target.exists() and (not force or target.resolve() == source.resolve()):
        raise ModelError(
            f"{target} already exists; --force overwrites it"
            if not force
            else f"{target} is the file to convert; give another name"
        )
    with shared.compose("auto", plugins) as runtime:
        convert = _conversion(runtime, target, weights)
        with _as_before(target, _suffixes(runtime)):
            done = convert(runtime, source, target)
    record = {"source": str(source), "target": str(target), **done}
    record["bytes"] = target.stat().st_size
    parts = [_contents(record), report.human_bytes(record["bytes"]), *record["notes"]]
    try:
        if json_path is not None:
            write_json(json_path, record)
    finally:
        click.echo(f"wrote {target}: {'; '.join(parts)}", file=report.lines_to(json_path))


@contextmanager
def _as_before(target: Path, suffixes: set[str]) -> Iterator[None]:
    """If the block raises, undo what it has written: the target, files with other suffixes beside it,
    and the folders created for them are removed, and files that were overwritten are restored."""
    folder = target.parent
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    stem = target.name.removesuffix(max(filter(target.name.endswith, suffixes), key=len, default=""))
    new = [p for p in (target, *(folder / f"{stem}{s}" for s in sorted(suffixes))) if not p.exists()]
    there = target.resolve()  # so that a symbolic link stays one
    old = _second_name(there) if target.exists() else None
    try:
        yield
    except BaseException:
        for path in new:
            path.unlink(missing_ok=True)
        for each in made:  # innermost first; a folder into which someone else has put a file stays
            with suppress(OSError):
                each.rmdir()
        if old is not None:
            old.replace(there)
            old.unlink(missing_ok=True)  # replace() does nothing for two names of one file
        raise
    if old is not None:
        old.unlink()


def _second_name(path: Path) -> Path:
    """Return a hidden hard link beside the file, or a copy if the file system has no hard links."""
    other = path.with_name(f".{path.name[:200]}.{os.getpid()}-{secrets.token_hex(4)}.before")
    try:
        other.hardlink_to(path)
    except OSError:
        shutil.copy2(path, other)
    return other


def _suffixes(runtime: Runtime) -> set[str]:
    """Return the suffixes of all files that composed plugins write."""
    found: set[str] = set()
    for plugin in runtime.composition.plugins:
        found |= {*plugin.roles.get("model_writer", {}).get("suffixes", ())}
        found |= {*plugin.roles.get("programs", {}).get("converts", {})}
    return found


def _conversion(
    runtime: Runtime, target: Path, given: str | None
) -> Callable[[Runtime, Path, Path], dict[str, Any]]:
    """Return the function that writes such a target: a writer of weights, or the program that a plugin's
    manifest names for the suffix of a net (``roles.programs.converts``). It takes the runtime, source
    and target and returns ``kind``, ``layers``, ``upgraded`` and ``notes``. If the manifest lists the
    suffix in ``with_weights``, it also gets weights. Raises ModelError with all suffixes."""
    from demitasse import ModelError, uninstalled

    plugins = runtime.composition.plugins
    weights = {suffix for p in plugins for suffix in p.roles.get("model_writer", {}).get("suffixes", ())}
    nets: dict[str, str] = {}
    both: set[str] = set()
    for plugin in reversed(plugins):
        nets |= plugin.roles.get("programs", {}).get("converts", {})
        both |= set(plugin.roles.get("programs", {}).get("with_weights", ()))
    if given is not None and not target.name.endswith(tuple(both)):
        raise ModelError(
            f"{target}: --weights is for a format that holds a net and its weights "
            f"({', '.join(sorted(both)) or 'none is composed'})"
        )
    if target.name.endswith(tuple(weights)):
        return _weights
    program = next((name for suffix, name in nets.items() if target.name.endswith(suffix)), None)
    if program is None:
        raise ModelError(
            f"{target}: no composed plugin writes files with this suffix (weights: "
            f"{', '.join(sorted(weights)) or 'none'}; nets and solvers: "
            f"{', '.join(sorted(nets)) or 'none'})"
            + (uninstalled("model_writer", target.name) or uninstalled("converts", target.name))
        )

    def convert(runtime: Runtime, source: Path, target: Path) -> dict[str, Any]:
        runtime.read(source)  # raises the right error for a missing file or an unknown format
        options = {} if given is None else {"weights": given}
        return dict(runtime.program(program, source, target, **options))

    return convert


def _weights(runtime: Runtime, source: Path, target: Path) -> dict[str, Any]:
    reader = runtime.read(source)
    given = reader.weights()
    given.net = _net_with(reader)
    # Only reading the result shows what its format could not hold.
    kept = runtime.read(runtime.write(target, given)).weights()
    arrays = [array for layer in kept.parameters.values() for array in layer]
    left = _left_out(given, kept)
    told = [f"left out, since the format has no place for it: {', '.join(left)}"] if left else []
    return {
        "kind": "weights",
        "layers": len(kept.parameters),
        "parameters": sum(array.size for array in arrays),
        "iteration": kept.iteration,
        "state": list(kept.state),
        "gradients": bool(kept.gradients),
        "left_out": left,
        "notes": [*told, *given.notes],
    }


def _net_with(reader: ModelReader) -> NetDefinition | None:
    """Return the net that a file of weights also contains, or None. Its phase is that in which it was
    saved: the phase of most of its layers."""
    from demitasse import ModelError

    found = []
    for phase in ("train", "test"):
        with suppress(ModelError):
            found.append(reader.net(phase))
    return max(found, key=lambda net: len(net.layers), default=None)


def _left_out(given: Weights, kept: Weights) -> list[str]:
    left = []
    if given.iteration is not None and kept.iteration is None:
        left.append(f"iteration {given.iteration}")
    if missing := [name for name in given.state if name not in kept.state]:
        left.append(f"solver state {', '.join(missing)}")
    if given.gradients and not kept.gradients:
        left.append("gradients")
    if missing := [name for name in given.record if name not in kept.record]:
        left.append(f"the run's record of {', '.join(missing)}")
    return left


def _contents(record: dict[str, Any]) -> str:
    layers = report.counted(record["layers"], "layer")
    if record["kind"] != "weights":
        alike = Path(record["source"]).suffix == Path(record["target"]).suffix
        form = "already in the current form" if alike else ""
        form = "upgraded to the current form" if record["upgraded"] else form
        return ", ".join(filter(None, [record["kind"], layers * bool(record["layers"]), form]))
    parts = [f"{layers}, {record['parameters']:,} parameters"]
    if record["iteration"] is not None:
        parts.append(f"iteration {record['iteration']}")
    if record["state"]:
        parts.append(f"solver state {', '.join(record['state'])}")
    return "; ".join(parts)
