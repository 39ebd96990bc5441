"""``demitasse explain``: what was composed and planned, and why."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse import check_writable, write_json
from demitasse_cli import flags, report
from demitasse_cli import options as shared
from demitasse_cli.models import notes_of, solver_of, state_of, tell_notes

if TYPE_CHECKING:
    from demitasse import Buffer, Entry, Plan, Runtime

PLANNED = "planned"
"""The program of a plugin that plans for a machine other than this one."""


@click.command(
    "explain",
    epilog="Example: demitasse explain solver.prototxt --hw two-workers",
    cls=flags.FlagCommand,
    help="Show the composition with its reasons and, for a MODEL (a solver or a net), the plan.",
)
@click.argument("model", required=False, type=shared.file)
@shared.runtime_options
@flags.state_options
@shared.precision_option
@shared.overrides_option
@shared.samples_option
@click.option(
    "--kernel", "kernels", is_flag=True, help="Also show what the planned kernels say about themselves."
)
@shared.json_option("it")
def command(
    model: Path | None,
    hw: str,
    plugins: str | None,
    options: tuple[tuple[str, str, Any], ...],
    phase: str | None,
    level: int | None,
    stage: str | None,
    precision: str | None,
    settings: tuple[tuple[str, str], ...],
    samples: tuple[str, ...],
    kernels: bool,
    json_path: str | None,
) -> None:
    """Compose, plan, print; nothing is trained. Without a phase a solver's net is planned as it is
    trained, a net as it is tested. A kernel explains itself where its ``bind`` has a method
    ``explain``."""
    check_writable({"--json": json_path})
    plan: Plan | None = None
    given: dict[str, Any] = dict(settings)
    with shared.compose(hw, plugins, options) as runtime:
        parts = [str(runtime.explain())]
        record: dict[str, Any] = {"composition": runtime.composition.to_dict()}
        trained = {**flags.state(level, stage, "train_net.state", "train_state"), **given}
        planner = runtime if model is None else planner_of(runtime)
        if model is not None and runtime.machine.simulated:
            parts.append(f"planned for a described machine, {runtime.machine.name}; nothing runs")
            record["described"] = True
        solver = None if model is None or phase == "TEST" else solver_of(runtime, model, trained)
        if solver is not None:
            with shared.standing_in(samples, "train", *["test"] * bool(solver.tests)) as data:
                trainer = planner.trainer(solver, precision=precision, data=data)
            plan = trainer.plan
            workers = report.counted(trainer.workers, "worker")
            parts.append(f"batch {trainer.batch} on {workers}; the first worker's plan:")
            record |= {"batch": trainer.batch, "workers": trainer.workers}
            record |= {
                "synchronisation": trainer.notes,
                "varying": list(getattr(trainer, "varying", ())),
            }
            record["notes"] = notes_of(trainer.solver)
            tell_notes(trainer.solver)
        elif model is not None:
            named = (phase or "TEST").lower()
            overrides = {**flags.state(level, stage, state_of(runtime, model, f"{named}_net.")), **given}
            with shared.standing_in(samples, named) as data:
                net = planner.net(
                    model, phase=named, overrides=overrides, precision=precision, data=data
                )
            plan = net.plan
            record["varying"] = list(getattr(net, "varying", ()))
            record["notes"] = notes_of(net.definition)
            tell_notes(net.definition)
            parts.append(f"the net's plan in phase {named}, forward:")
        if plan is not None:
            parts.append(show(plan))
            if layers := record["varying"]:
                parts.append(
                    f"samples of {', '.join(layers)} have shapes of their own: the net is planned for "
                    f"each as it comes, and this is the plan for the first"
                )
            if notes := record.get("synchronisation"):
                parts.append("\n".join(["synchronisation", *notes]))
            explaining = [
                (entry, say)
                for entry in plan.entries
                if kernels and (say := getattr(entry.candidate.bind, "explain", None)) is not None
            ]
            parts += [f"{entry.layer} {entry.phase}: {say()}" for entry, say in explaining]
            if kernels and not explaining:
                parts.append("none of these kernels explains itself")
            record["plan"] = plain(plan)
    try:
        if json_path is not None:
            write_json(json_path, record)
    finally:
        if json_path != "-":
            click.echo("\n\n".join(parts))


def planner_of(runtime: Runtime) -> Runtime:
    """Return the runtime to plan with: for a machine other than this one, a plugin that needs none of
    its memory and streams, if one is composed; otherwise the runtime itself."""
    able = runtime.composition.serving("programs", program=PLANNED)
    if not runtime.machine.simulated or not any(True for _ in able):
        return runtime
    made: Runtime = runtime.program(PLANNED)
    return made


def show(plan: Plan) -> str:
    """Describe a plan for people: operations, memory, and where gradients are synchronised."""
    rows = [
        (
            number,
            report.layer_name(entry.layer),
            entry.phase,
            entry.operation,
            entry.plugin,
            entry.kernel,
            " ".join(_shape(buffer) for buffer in entry.outputs if buffer is not None),
            "in place" if entry.in_place else "",
            entry.reason,
        )
        for number, entry in enumerate(plan.entries)
    ]
    head = ("", "layer", "phase", "operation", "plugin", "kernel", "gives", "", "because")
    saved = plan.unshared_bytes - plan.arena_bytes
    share = f" ({saved / plan.unshared_bytes:.0%})" if plan.unshared_bytes else ""
    memory = (
        f"memory  arena {report.human_bytes(plan.arena_bytes)}, without sharing "
        f"{report.human_bytes(plan.unshared_bytes)}: saves {report.human_bytes(saved)}{share}; "
        f"inputs and constants {report.human_bytes(plan.fixed_bytes)}; "
        f"{count(plan):,} parameters, {count(plan, trained=True):,} of them trained"
    )
    parts = [report.table(head, rows, right=">"), memory]
    if plan.buckets:
        buckets = [
            (
                bucket.index,
                ", ".join(bucket.layers),
                f"{len(bucket.span):,}",
                _place(plan.entries, final),
                _place(plan.entries, first),
            )
            for bucket, final, first in zip(plan.buckets, plan.final, plan.first_read, strict=True)
        ]
        columns = ("bucket", "layers", "gradients", "synchronised after", "wanted before")
        parts.append(report.table(columns, buckets, right=">"))
    return "\n\n".join(parts)


def count(plan: Plan, trained: bool = False) -> int:
    """Count a plan's parameters, or those that are trained, without padding."""
    slots = [slot for slot in plan.slots if slot.trainable or not trained]
    return sum(math.prod(slot.spec.shape) for slot in slots)


def _shape(buffer: Buffer) -> str:
    shape = "x".join(map(str, buffer.spec.shape)) or "scalar"
    layout = buffer.spec.layout.name
    return shape if layout == "plain" else f"{shape}:{layout}"


def _place(entries: tuple[Entry, ...], index: int) -> str:
    entry = entries[index]
    return f"{index} {entry.layer} {entry.phase}"


def plain(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain data."""
    return {
        "name": plan.name,
        "phase": plan.phase,
        "dtype": plan.dtype,
        "arena_bytes": plan.arena_bytes,
        "unshared_bytes": plan.unshared_bytes,
        "fixed_bytes": plan.fixed_bytes,
        "parameters": count(plan),
        "trainable": count(plan, trained=True),
        "entries": [
            {
                "layer": entry.layer,
                "phase": entry.phase,
                "operation": entry.operation,
                "plugin": entry.plugin,
                "kernel": entry.kernel,
                "reason": entry.reason,
                "in_place": entry.in_place,
                "flops": entry.flops,
                "bytes": entry.bytes,
                "outputs": [_plain_buffer(buffer) for buffer in entry.outputs if buffer],
            }
            for entry in plan.entries
        ],
        "buckets": [
            {
                "layers": bucket.layers,
                "elements": len(bucket.span),
                "final": final,
                "first_read": first,
            }
            for bucket, final, first in zip(plan.buckets, plan.final, plan.first_read, strict=True)
        ],
    }


def _plain_buffer(buffer: Buffer) -> dict[str, Any]:
    return {
        "name": buffer.name,
        "shape": buffer.spec.shape,
        "dtype": buffer.spec.stored,
        "layout": buffer.spec.layout.name,
        "region": buffer.region,
        "offset": buffer.offset,
    }
