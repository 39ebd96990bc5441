"""What the author of a kernel sees of it once it is planned: its cost, its LDM, and the principles it
violates."""

from __future__ import annotations

from dataclasses import dataclass

from demitasse_sw26010.kernels.program import Binder
from demitasse_sw26010.model.cost import Cost
from demitasse_sw26010.model.figures import LDM_BYTES


@dataclass(frozen=True)
class KernelReport:
    """One kernel: its simulated cost, the LDM that its programs use on each CPE, by buffer, and the
    principles of Section III that it violates. ``str`` formats the report as lines."""

    kernel: str
    cost: Cost
    ldm: tuple[tuple[str, int], ...]
    findings: tuple[str, ...]

    def __str__(self) -> str:
        cost, moved = self.cost, self.cost.get_bytes + self.cost.put_bytes
        rate = cost.flops / cost.seconds / 1e9 if cost.seconds else 0.0
        taken = ", ".join(f"{name} {nbytes:,}" for name, nbytes in self.ldm)
        lines = [
            f"{self.kernel}: {cost.seconds * 1e3:.3f} ms (simulated), {rate:.1f} GFLOP/s",
            f"  DMA {moved / 1e6:,.2f} MB in {cost.dma_seconds * 1e3:.3f} ms, computing "
            f"{cost.compute_seconds * 1e3:.3f} ms, {cost.messages:,.0f} register messages",
            f"  LDM of a CPE: {taken or 'none'}; {LDM_BYTES:,} bytes available",
            *(f"  {finding}" for finding in self.findings),
        ]
        return "\n".join(lines)


def report_of(binder: Binder) -> KernelReport:
    """Return the report on the programs that a candidate binds."""
    cost = binder.cost
    parts = {part.program.kernel: None for part in binder.parts}
    ldm = {b.name: b.nbytes for part in binder.parts for b in part.program.ldm.buffers}
    return KernelReport(", ".join(parts), cost, tuple(ldm.items()), tuple(cost.findings()))
