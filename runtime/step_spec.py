"""The `step` part of a manifest -> `StepSpec`, its fields checked alone and against each other."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from speccc.errors import InputError
from speccc.ir.types import DTYPES
from speccc.runtime.artifact_file import Entries
from speccc.runtime.devices.built_kernels import read_plan, sealed_code
from speccc.runtime.devices.drivers import ENDINGS
from speccc.runtime.devices.launch_plan import FILE, LaunchPlan
from speccc.runtime.session import LANES, TOPS, BufSpec, RopeSpec, StepSpec

MOST = 1 << 40
HEAD = ("head_first", "head_rows", "head_logits")
TOP = "head_top"
"""A size of steps that find the largest logits."""
NAMES = ("m", "length", "slots", "tiles", "weight_bytes", "vector_elements", *HEAD)
SCRATCH = ("f32", "i8", "i32")
KV_TYPES = ("f16", "i8", "f32")
INPUTS = ("tokens", "positions", "depth", "path")
CACHES = ("k_cache", "v_cache")
SCALES = ("k_scale", "v_scale")
LIBRARY = "step.so"
LAUNCHED = tuple(ENDINGS)
"""The backends whose step is launches of kernels; the CPU's is one function of a library."""
WORKSPACE = "workspace"
"""The role of a buffer that the step fills itself."""
_DIMENSIONS = ("m", "slots", "tiles")


def seal(step: Mapping[str, Any], library: Any) -> str:
    """SHA-256 that binds the way to call a step to its code: neither is used without the other."""
    facts = {k: v for k, v in step.items() if k != "seal"}
    text = json.dumps(facts, sort_keys=True).encode()
    return hashlib.sha256(hashlib.sha256(library).digest() + text).hexdigest()


def read_step(entries: Entries) -> StepSpec:
    """How to call the artifact's step; InputError names the field that is wrong."""
    where = str(entries.path)
    backend = str(entries.manifest.get("target")).partition(":")[0]
    plan = read_plan(entries.data, where) if backend in LAUNCHED else None
    for name in ("weights", "vectors", *(() if plan else (LIBRARY,))):
        if name not in entries.data:
            raise InputError(f"entry {name} is missing: compile the model again", where=where)
    step: Any = entries.manifest.get("step")
    try:
        spec = parse_step(step)
        code = sealed_code(entries.data, backend, where) if plan else entries.data[LIBRARY]
        if step["seal"] != seal(step, code):
            raise ValueError(f"it does not belong to {FILE if plan else LIBRARY}")
        _check_bufs(spec)
        if plan is not None:
            check_plan(spec, plan)
        if len(entries.data["vectors"]) % 4:
            raise ValueError("vectors is no f32 array")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
        raise InputError(
            f"manifest.json: step is damaged ({_line(e)}): compile the model again", where=where
        ) from e
    return spec


def parse_step(step: Any) -> StepSpec:
    """The record of a manifest's `step`; ValueError, KeyError or TypeError for a bad field."""
    if not isinstance(step, dict):
        raise ValueError("it is no object")
    names = [b["name"] for b in _list(step["bufs"])]
    return StepSpec(
        symbol=_name(step["symbol"]),
        bufs=tuple(_buf(b) for b in step["bufs"]),
        arena=_count(step["arena"]),
        scratch={_one_of(k, SCRATCH): _count(v) for k, v in step["scratch"].items()},
        sizes=tuple(_one_of(s, (*NAMES, TOP)) for s in _list(step["sizes"])),
        logits=_one_of(step["logits"], names),
        picks=_one_of(step["picks"], names),
        vocab=_positive(step["vocab"]),
        max_rows=_positive(step["max_rows"]),
        ropes=tuple(_rope(r) for r in _list(step["ropes"])),
        top=_count(step.get("top", 0)),
    )


def check_plan(spec: StepSpec, plan: LaunchPlan) -> None:
    """ValueError unless the launches know all buffers of the step, as large as it makes them."""
    if sorted(plan.sizes) != sorted(_sizes(spec)):
        raise ValueError(f"the sizes of {FILE} are others")
    sample = {name: n for n, name in enumerate(plan.sizes, start=2)}
    for buf in spec.bufs:
        known = plan.buffers.get(buf.name)
        if known is None:
            raise ValueError(f"{FILE} knows no buffer {buf.name}")
        sides = (d if isinstance(d, int) else sample[d] for d in buf.shape)
        if known.nbytes(sample) != math.prod(sides) * DTYPES[buf.dtype].nbytes:
            raise ValueError(f"{FILE} has another buffer {buf.name}")


def _sizes(spec: StepSpec) -> tuple[str, ...]:
    return (*NAMES, TOP) if spec.top else NAMES


def _line(e: Exception) -> str:
    return f"{e} is missing" if isinstance(e, KeyError) else " ".join(str(e).split())[:200]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{str(value)[:40]!r} is no list")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.isidentifier() or not value.isascii():
        raise ValueError(f"{str(value)[:40]!r} is no name")
    return value


def _one_of(value: Any, allowed: Collection[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{str(value)[:40]!r} is not known")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MOST:
        raise ValueError(f"{str(value)[:40]!r} is no count")
    return value


def _positive(value: Any) -> int:
    if not _count(value):
        raise ValueError("0 where a size is needed")
    return int(value)


def _buf(b: Any) -> BufSpec:
    dims = [d if isinstance(d, str) else _positive(d) for d in _list(b["shape"])]
    shape = tuple(_one_of(d, NAMES) if isinstance(d, str) else d for d in dims)
    fixed = math.prod(d for d in shape if isinstance(d, int))
    if not 1 <= len(shape) <= 8 or fixed >= MOST:
        raise ValueError(f"a buffer of shape {shape}")
    return BufSpec(_name(b["name"]), _one_of(b["dtype"], DTYPES), shape, _name(b["role"]))


def _rope(r: Any) -> RopeSpec:
    frequencies = _list(r["frequencies"])
    if not frequencies or not all(
        type(f) in (int, float) and math.isfinite(f) and abs(f) < MOST for f in frequencies
    ):
        raise ValueError("RoPE frequencies are finite numbers")
    return RopeSpec(_name(r["name"]), tuple(float(f) for f in frequencies))


def _check_bufs(spec: StepSpec) -> None:
    """ValueError unless the session will find the buffers it fills, of the shapes it fills."""
    wanted = _known(spec)
    bufs = {b.name: b for b in spec.bufs}
    if len(bufs) != len(spec.bufs):
        raise ValueError("a buffer is there twice")
    if tuple(b.name for b in spec.bufs)[: len(INPUTS)] != INPUTS:
        raise ValueError(f"the buffers do not begin with {', '.join(INPUTS)}")
    if set(spec.scratch) != set(SCRATCH) or sorted(spec.sizes) != sorted(_sizes(spec)):
        raise ValueError("scratch or sizes are incomplete")
    for name, (dtype, shape) in wanted.items():
        if name not in bufs:
            raise ValueError(f"buffer {name} is missing")
        if (bufs[name].dtype, bufs[name].shape) != (dtype, shape):
            raise ValueError(f"buffer {name} is not {dtype}{list(shape)}")
    for name in bufs.keys() - wanted.keys():
        buf = bufs[name]
        sizes = all(d in _DIMENSIONS for d in buf.shape if isinstance(d, str))
        if buf.role != WORKSPACE or buf.dtype != "f32" or not sizes:
            raise ValueError(f"buffer {name} is no workspace")


def _known(spec: StepSpec) -> dict[str, tuple[str, tuple[int | str, ...]]]:
    """Element type and shape of each buffer that the session itself fills or reads."""
    rows = spec.max_rows
    out: dict[str, tuple[str, tuple[int | str, ...]]] = {
        name: ("i32", ("m", rows) if name == "path" else ("m",)) for name in INPUTS
    }
    out["weights"] = ("u8", ("weight_bytes",))
    out["vectors"] = ("f32", ("vector_elements",))
    out["k_cache"], out["v_cache"] = _cache(spec)
    if out["k_cache"][0] == "i8":
        scale = next((b for b in spec.bufs if b.name == "k_scale"), None)
        groups = scale.shape[2] if scale is not None and len(scale.shape) == 4 else 0
        layers, heads, _, size, _ = out["k_cache"][1]
        if not isinstance(groups, int) or not groups or int(size) % groups:
            raise ValueError("buffer k_scale does not fit the cache")
        out |= {name: ("f32", (layers, heads, groups, "slots")) for name in SCALES}
    for rope in spec.ropes:
        for part in ("cos", "sin"):
            out[f"{rope.name}_{part}"] = ("f32", ("slots", len(rope.frequencies)))
    padded = -(-spec.vocab // LANES) * LANES
    out[spec.logits] = ("f32", ("m", padded))
    out[spec.picks] = ("i32", ("m",))
    if spec.top:
        values, tokens = TOPS
        out |= {values: ("f32", ("m", spec.top)), tokens: ("i32", ("m", spec.top))}
    return out


def _cache(spec: StepSpec) -> list[tuple[str, tuple[int | str, ...]]]:
    """K in tiles of 16 slots and V in panels of 16 columns, from the geometry that K claims."""
    keys = next((b for b in spec.bufs if b.name == "k_cache"), None)
    if keys is None or keys.dtype not in KV_TYPES or len(keys.shape) != 5:
        raise ValueError("buffer k_cache is missing or of the wrong kind")
    layers, heads, tiles, size, lanes = keys.shape
    fixed = isinstance(layers, int) and isinstance(heads, int) and isinstance(size, int)
    if not fixed or tiles != "tiles" or lanes != LANES or int(size) % LANES:
        raise ValueError(f"buffer k_cache has the shape {list(keys.shape)}")
    panels: tuple[int | str, ...] = (layers, heads, int(size) // LANES, "slots", LANES)
    return [(keys.dtype, keys.shape), (keys.dtype, panels)]
