"""What a bench of speed found: as one JSON object, and as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import click

from speccc.bench.long_context import AtContext, explained_ms
from speccc.bench.measure import EngineResult
from speccc.bench.memory import PeakMemory
from speccc.bench.roofline import Roofline
from speccc.cli import output

Rows = list[tuple[str, ...]]


def dearer_widths(verify_ms: Mapping[int, float]) -> list[tuple[int, int]]:
    """Pairs (width, next width) where the narrower pass takes longer."""
    widths = sorted(verify_ms)
    return [(low, high) for low, high in pairwise(widths) if verify_ms[low] > verify_ms[high]]


@dataclass(frozen=True, slots=True)
class SpeedReport:
    """Results by engine, ours first; `contexts` is empty when no lengths were asked for."""

    settings: dict[str, object]
    results: dict[str, EngineResult]
    limits: Roofline
    contexts: dict[str, list[AtContext]]
    memory: PeakMemory

    @property
    def ours(self) -> EngineResult:
        """The first engine's."""
        return next(iter(self.results.values()))

    def document(self) -> dict[str, object]:
        """The fields `docs` describe; keys are only ever added."""
        first, *others = self.results
        return {
            **self.results[first].document(),
            "against": {kind: self.results[kind].document() for kind in others},
            "dearer_widths": dearer_widths(self.ours.verify_ms),
            "roofline": self.limits.document(),
            "contexts": {k: [asdict(at) for at in v] for k, v in self.contexts.items()},
            "memory": self.memory.document(),
            "settings": self.settings,
        }

    def show(self) -> None:
        """Tables on stdout."""
        output.table(self._verify(), ("T(m), ms", *self._heads(), "T(m)/T(1)", "bandwidth"))
        for line in self._checks():
            click.echo(line)
        output.table(self._rates(), ("tok/s", *self._heads()))
        if self.contexts:
            output.table(self._contexts(), ("behind", *self._heads(), "growth", "of it KV bytes"))
        output.table(self._memory(), ("memory", "bytes", ""))

    def _heads(self) -> list[str]:
        return [*self.results, *(["ratio"] if len(self.results) == 2 else [])]

    def _with_ratio(self, values: Sequence[float], form: str, *, more: bool = False) -> list[str]:
        """Each engine's value, and ours over theirs (or theirs over ours where less is better)."""
        cells = [format(value, form) for value in values]
        if len(values) == 2:
            ratio = values[0] / values[1] if values[1] else 0.0
            cells.append(f"{ratio:.2f}{'x' if more else ''}")
        return cells

    def _verify(self) -> Rows:
        rows: Rows = []
        first = self.ours.verify_ms[min(self.ours.verify_ms)]
        for m, taken in sorted(self.ours.verify_ms.items()):
            cells = [
                f"{r.verify_ms[m]:.2f} [{low:.2f} {high:.2f}]"
                for r in self.results.values()
                for low, high in (r.verify_quartiles_ms[m],)
            ]
            if len(self.results) == 2:
                other = list(self.results.values())[1]
                cells.append(f"{taken / other.verify_ms[m]:.3f}")
            percent = f"{self.limits.bandwidth_percent[m]:.0f}%"
            rows.append((f"m = {m}", *cells, f"{taken / first:.2f}", percent))
        return rows

    def _checks(self) -> list[str]:
        ms, limits = self.ours.verify_ms, self.limits
        dear = [f"{a} over {b} by {100 * (ms[a] / ms[b] - 1):.1f}%" for a, b in dearer_widths(ms)]
        width = min(ms)
        read = limits.traffic.read_bytes(width, limits.depth) / 1e6
        rate, dots = limits.ceilings.read_bytes_s / 1e9, limits.ceilings.int8_dots_s / 1e9
        most = limits.ceilings.most_read_bytes_s / 1e9
        return [
            f"medians [quartiles]; bandwidth: share of {rate:.1f} GB/s, measured beside each round "
            f"(at best {most:.1f} GB/s; int8 peak {dots:.0f} G multiply-adds/s)",
            f"T({width}) reads {read:.1f} MB of weights and KV: "
            f"{limits.bandwidth_percent[width]:.0f}% of the bandwidth",
            f"no width dearer than the next one up: {'no, ' + ', '.join(dear) if dear else 'yes'}",
        ]

    def _rates(self) -> Rows:
        results = list(self.results.values())
        more = [r.prefill_tok_s for r in results]
        rows: Rows = [("prefill", *self._with_ratio(more, ".1f", more=True))]
        for name in self.ours.tasks:
            tasks = [r.tasks[name] for r in results]
            plain = [t.plain_tok_s for t in tasks]
            spec = [t.speculative_tok_s for t in tasks]
            rows += [
                (f"{name}: plain", *self._with_ratio(plain, ".1f", more=True)),
                (f"{name}: speculative", *self._with_ratio(spec, ".1f", more=True)),
                (f"{name}: speculative / own plain",
                 *(f"{s / p:.2f}x" if p else "-" for s, p in zip(spec, plain, strict=True))),
                (f"{name}: acceptance length", *(f"{t.acceptance_length:.2f}" for t in tasks)),
                (f"{name}: identical", *("yes" if t.identical else "no" for t in tasks)),
            ]  # fmt: skip
            if len(tasks) == 2 and plain[1]:
                rows.append((f"{name}: speculative / their plain", f"{spec[0] / plain[1]:.2f}x"))
        return rows

    def _contexts(self) -> Rows:
        rows: Rows = []
        base = next(iter(self.contexts.values()))[0]
        for n, at in enumerate(next(iter(self.contexts.values()))):
            for width, taken in at.verify_ms.items():
                values = [engine[n].verify_ms[width] for engine in self.contexts.values()]
                kv = explained_ms(
                    at.context, base.context, self.limits.traffic.kv_bytes_per_token,
                    self.limits.ceilings.read_bytes_s,
                )  # fmt: skip
                grown = taken - base.verify_ms[width]
                rows.append(
                    (f"{at.context}: T({width})", *self._with_ratio(values, ".2f"),
                     f"{grown:.2f}", f"{kv:.2f}")
                )  # fmt: skip
        return rows

    def _memory(self) -> Rows:
        rows: Rows = []
        m, before = self.memory, 0
        for stage, count in m.stages.items():
            rows.append((stage, output.size(max(0, count - before)), "more resident after it"))
            before = count
        rows.append(("plan", output.size(m.plan_bytes), f"a session of {m.context} tokens"))
        rows.append(("peak", output.size(m.peak_bytes), f"{m.ratio:.2f}x the plan"))
        peaks = [(k, r.peak_memory_bytes) for k, r in self.results.items()]
        rows += [(f"bench: {k}", output.size(p or 0), "peak of its process") for k, p in peaks]
        return rows
