"""Exactly how much memory a session takes, and the longest context that fits this machine.

And whether it fits the product that is compiled for, of which only the memory's size is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from speccc.errors import InputError
from speccc.ir.types import DTYPES
from speccc.runtime.session import LANES, TOPS, BufSpec, StepSpec, sizes_of
from speccc.runtime.step_spec import CACHES, INPUTS, SCALES

if TYPE_CHECKING:
    from speccc.passes.weight_layout import WeightLayout
    from speccc.targets.devices.profile import Profile

SYSTEM = Path("/")
"""Where /proc and /sys hang: tests put others there."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one session by use; `context` tokens fit it. `scratch` is one thread's."""

    context: int
    threads: int
    weights: int
    kv_cache: int
    rope_tables: int
    scores: int
    logits: int
    inputs: int
    activations: int
    scratch: int

    @property
    def total(self) -> int:
        """Bytes in all; a further session of the same model takes all but the weights again."""
        shared = self.weights + self.kv_cache + self.rope_tables + self.scores + self.logits
        return shared + self.inputs + self.activations + self.threads * self.scratch


def plan_memory(spec: StepSpec, weights: int, context: int, threads: int) -> MemoryPlan:
    """The plan for a context; `weights` is the bytes of the two constant arrays."""
    tiles = -(-context // LANES)
    sizes = {"m": spec.max_rows, **sizes_of(tiles)}
    used = dict.fromkeys(("kv", "rope", "logits", "inputs", "scores"), 0)
    for buf in spec.bufs:
        if buf.name not in ("weights", "vectors"):
            used[_use(buf, spec)] += _nbytes(buf, sizes)
    return MemoryPlan(
        context=context,
        threads=threads,
        weights=weights,
        kv_cache=used["kv"],
        rope_tables=used["rope"],
        scores=used["scores"],
        logits=used["logits"],
        inputs=used["inputs"],
        activations=4 * spec.arena,
        scratch=sum(count * DTYPES[name].nbytes for name, count in spec.scratch.items()),
    )


def step_traffic(layout: WeightLayout, embedding: str, head: str) -> dict[str, int]:
    """What one step reads of the weights, and the multiply-adds of one row.

    An embedding table that is not the head as well counts as nothing: a step takes single rows.
    """
    heads = [s for s in layout.matrices if s.name == head or (s.name == embedding and s.group)]
    skip = [s for s in layout.matrices if s.name == embedding and s not in heads and heads]
    read = [s.matrix for s in layout.matrices if s not in skip]
    return {
        "weight_bytes": sum(m.nbytes for m in read) + 4 * sum(v.size for v in layout.vectors),
        "dots_per_row": sum(m.rows * m.k for m in read),
    }


def _nbytes(buf: BufSpec, sizes: dict[str, int]) -> int:
    return math.prod(d if isinstance(d, int) else sizes[d] for d in buf.shape) * (
        DTYPES[buf.dtype].nbytes
    )


def _use(buf: BufSpec, spec: StepSpec) -> str:
    ropes = {f"{r.name}_{part}" for r in spec.ropes for part in ("cos", "sin")}
    uses = {
        **dict.fromkeys((*CACHES, *SCALES), "kv"),
        **dict.fromkeys(INPUTS, "inputs"),
        **dict.fromkeys(ropes, "rope"),
        **dict.fromkeys((spec.logits, spec.picks, *TOPS), "logits"),
    }
    return uses.get(buf.name, "scores")


def longest_context(spec: StepSpec, weights: int, threads: int, most: int, room: int) -> int:
    """Most tokens of context whose plan takes no more than `room` bytes; 0 when none does."""
    one = plan_memory(spec, weights, LANES, threads).total
    tile = plan_memory(spec, weights, 2 * LANES, threads).total - one
    fits = (room - (one - tile)) // tile if tile else most
    return max(0, min(most, fits * LANES))


def check_fits(
    spec: StepSpec, weights: int, context: int, threads: int, *, loaded: bool = False
) -> None:
    """InputError when the session would not fit into available memory; `loaded`: weights are in."""
    room = available_memory()
    if room is None:
        return
    constants = 0 if loaded else weights
    need = plan_memory(spec, constants, context, threads).total
    if need <= room:
        return
    longest = longest_context(spec, constants, threads, context, room)
    mend = f"give -c {longest} or less" if longest else "free some memory"
    raise InputError(
        f"a context of {context} needs {megabytes(need)}, {megabytes(room)} are available: {mend}"
    )


def check_product(spec: StepSpec, weights: int, context: int, profile: Profile) -> None:
    """InputError when a session would not fit into the memory of a profile's product.

    Nor may the weights be more than this machine can pack. What is not known is not asked.
    """
    here = available_memory()
    if here is not None and weights > here:
        what = f"packing its weights takes {megabytes(weights)}, {megabytes(here)} are available"
        raise InputError(f"{what}: free some memory")
    product = profile.device
    if product is None or product.memory is None:
        return
    room = product.memory.value
    need = plan_memory(spec, weights, context, 1).total
    if need <= room:
        return
    longest = longest_context(spec, weights, 1, context, room)
    mend = f"give -c {longest} or less" if longest else "take a product with more"
    raise InputError(
        f"a context of {context} needs {gibibytes(need)}, {product.title} has {gibibytes(room)}: "
        f"{mend}, or --target {profile.arch} for one that has",
        where=f"--target {profile.name}",
    )


def gibibytes(count: int) -> str:
    """Bytes as GiB, as the memory of cards is counted."""
    return f"{count / (1 << 30):.1f} GiB"


def megabytes(count: int) -> str:
    """Bytes as MB, for messages."""
    if count < 10_000_000:
        return f"{count / 1e6:.1f} MB"
    return f"{count / 1e6:.0f} MB" if count < 10_000_000_000 else f"{count / 1e9:.0f} GB"


def available_memory(root: Path | None = None) -> int | None:
    """Bytes that can still be taken: MemAvailable or what the cgroup leaves; None if unknown."""
    base = root or SYSTEM
    rooms = [r for r in (_mem_available(base), *_cgroup_rooms(base)) if r is not None]
    return min(rooms, default=None)


def _mem_available(base: Path) -> int | None:
    for line in _read(base / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_rooms(base: Path) -> list[int]:
    """What each cgroup above this process leaves (version 2; version 1's memory controller)."""
    rooms: list[int] = []
    for line in _read(base / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, files = base / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = base / "sys/fs/cgroup/memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = top / path.lstrip("/")
        for at in (folder, *folder.parents):
            room = _room(at, *files)
            if room is not None:
                rooms.append(room)
            if at == top:
                break
    return rooms


def _room(folder: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    most, now = _read(folder / limit).strip(), _read(folder / usage).strip()
    if not most.isdigit() or not now.isdigit() or int(most) >= 1 << 60:
        return None
    stat = dict(line.split(None, 1) for line in _read(folder / "memory.stat").splitlines() if line)
    return max(0, int(most) - int(now) + int(stat.get(reclaimable, 0)))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
