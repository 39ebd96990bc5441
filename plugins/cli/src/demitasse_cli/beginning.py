"""What a run reports before it begins: plugins and the reasons for them, weights, batch and rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

from demitasse_cli import launch, report
from demitasse_cli.models import tell_notes

if TYPE_CHECKING:
    from demitasse import Runtime


def tell_beginning(
    runtime: Runtime, trainer: Any, scaling: str, resume: str | None, stream: TextIO
) -> None:
    """Print all of it, and how this run's processes differ from the description."""
    print(composed(runtime), file=stream)
    if told := untuned(runtime):
        print(told, file=stream)
    for path, loaded in trainer.loaded.items():
        print(f"weights {path}: {loaded}", file=stream)
    tell_notes(trainer.solver, *trainer.loaded.values())
    print(effective(trainer, scaling, resume), file=stream, flush=True)
    counted = launch.counted_otherwise(runtime.machine, trainer.processes.size)
    for told in filter(None, (counted, launch.bound_narrowly())):
        print(told, file=stream, flush=True)


def composed(runtime: Runtime) -> str:
    """Return the plugins with reasons, one per line."""
    composition = runtime.composition
    elsewhere = ""
    if runtime.machine.simulated:
        elsewhere = " (described elsewhere: threads and memory are not bound)"
    roles: dict[str, list[str]] = {manifest.name: [] for manifest in composition.plugins}
    reasons: dict[str, str] = {}
    for choice in composition.choices:
        roles.setdefault(choice.plugin, []).append(choice.role)
        reasons.setdefault(choice.plugin, choice.reason)
    rows = [
        (name, reasons.get(name, ""), ", ".join(dict.fromkeys(served))) for name, served in roles.items()
    ]
    unused: dict[str, list[str]] = {}
    for name, reason in composition.rejected:
        unused.setdefault(reason, []).append(name)
    return "\n".join(
        [
            f"machine  {composition.machine}{elsewhere}",
            report.table(("plugin", "because", "for"), rows),
            *(f"not used  {', '.join(names)}: {reason}" for reason, names in unused.items()),
        ]
    )


def untuned(runtime: Runtime) -> str:
    """Return a line if the machine's description names plugins and none of them tries kernels where its
    workers compute, although an installed one would; otherwise "". Untried kernels are right, but may
    take twice as long."""
    from demitasse import arrange, discover

    machine, composition = runtime.machine, runtime.composition
    if machine.plugins is None or machine.simulated:
        return ""
    space = arrange(machine, "float32", runtime.processes)[0].place.space
    if any(each.serves("tuner", space=space) for each in composition.plugins):
        return ""
    left_out = {name for name, _ in composition.rejected}
    able = [m for m in discover() if m.serves("tuner", space=space) and m.automatic and not m.problem]
    names = [each.name for each in able if each.name not in left_out]
    if not names:
        return ""
    return (
        f"kernels are taken untried, which may be slow: machine {machine.name!r} names no plugin that "
        f"tries them (--plugins +{names[0]})"
    )


def effective(trainer: Any, scaling: str, resume: str | None) -> str:
    """Return the batch size and learning rate that the workers have together, and where the run begins.
    Under weak scaling, also the rate by the linear rule, which it is up to the user to set."""
    workers = report.counted(trainer.workers, "worker")
    if trainer.processes.size > 1:
        workers += f" in {trainer.processes.size} processes"
    begin = f"from iteration {trainer.iteration}"
    if resume is not None:
        begin += f" ({resume})"
    rate, rule = trainer.solver.rate(trainer.iteration), ""
    if scaling == "weak" and trainer.workers > 1:
        scaled = rate * trainer.workers
        rule = f" as the solver says (by the linear rule: {scaled:.4g} for {trainer.workers} batches)"
    batch = f"batch {trainer.batch} on " if trainer.batch else ""  # a user's layer may make the samples
    return (
        f"{batch}{workers} ({scaling} scaling)  "
        f"learning rate {trainer.solver.rate(trainer.iteration):.4g}{rule}  "
        f"{begin} to {trainer.solver.max_iterations}"
    )
