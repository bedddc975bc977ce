"""T(m) of every engine over the machine's two limits, as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speccc.bench.measure import EngineResult
from speccc.bench.roofline import Roofline
from speccc.errors import InputError, UnsupportedError

COLORS = ("#1f6fb4", "#d1602b", "#4a9a4a")


def check_plot(path: Path) -> None:
    """Refuses what could not be drawn after minutes of measuring.

    UnsupportedError without matplotlib, InputError for a file that cannot be written.
    """
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError("name a .png, .svg or .pdf file with --plot", where=str(path))
    if path.is_dir() or not path.parent.is_dir():
        raise InputError("no such folder for --plot", where=str(path))
    _pyplot()


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise UnsupportedError(
            "--plot needs it: pip install 'speccc[bench]'", where="matplotlib"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot(
    path: Path, results: Mapping[str, EngineResult], limits: Roofline, title: str, subtitle: str
) -> None:
    """Draws T(m) in milliseconds over m, both on logarithmic axes; bands are quartiles."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 5.5), layout="constrained")
    for color, (kind, result) in zip(COLORS, results.items(), strict=False):
        widths = sorted(result.verify_ms)
        label = " ".join(str(result.facts.get(key, "")) for key in ("engine", "version")).strip()
        axes.plot(
            widths, [result.verify_ms[m] for m in widths], "o-", color=color, label=label or kind
        )
        low, high = zip(*(result.verify_quartiles_ms[m] for m in widths), strict=True)
        axes.fill_between(widths, low, high, color=color, alpha=0.2, linewidth=0)
    widths = sorted(limits.bandwidth_ms)
    rate, dots = limits.ceilings.read_bytes_s / 1e9, limits.ceilings.int8_dots_s / 1e9
    axes.plot(widths, [limits.bandwidth_ms[m] for m in widths], "--", color="black",
              label=f"read once at {rate:.1f} GB/s")  # fmt: skip
    axes.plot(widths, [limits.compute_ms[m] for m in widths], ":", color="black",
              label=f"{dots:.0f} G int8 multiply-adds/s")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = [m for m in (1, 2, 4, 8, 16, 32, 64) if widths[0] <= m <= widths[-1]]
    axes.set_xticks(ticks, [str(m) for m in ticks])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("m: tokens verified in one step")
    axes.set_ylabel(f"T(m) in ms, behind {limits.depth} tokens")
    axes.set_title(f"{title}\n", fontsize=12)
    axes.text(0.5, 1.01, subtitle, transform=axes.transAxes, ha="center", va="bottom", fontsize=8)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(frameon=False)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(error.strerror or str(error), where=str(path)) from None
    finally:
        pyplot.close(figure)
