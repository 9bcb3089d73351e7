"""The tasks' speed over the best other arm as a picture, coloured by family. Without matplotlib there is none."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from benchmarks.speed.summary import Row, over, tracks

log = logging.getLogger(__name__)

INCHES_A_TASK = 0.14


def plot(rows: Sequence[Row], path: Path) -> Path | None:
    """Bars by length, of cold caches and default flags; writes nothing where no task has a time."""
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError:
        log.info("matplotlib is not installed (extra `train`): no plot, the figures are in the JSON file")
        return None
    part = next(iter(tracks(rows).values()), [])
    bars = sorted((v, row["task"], row["family"]) for row in part if (v := over(row)["best"]) is not None)
    if not bars:
        return None
    families = sorted({family for _, _, family in bars})
    palette = [*colormaps["tab20"].colors, *colormaps["tab20b"].colors]
    colours = {family: palette[i % len(palette)] for i, family in enumerate(families)}
    figure = Figure(figsize=(8, 1.5 + INCHES_A_TASK * len(bars)), layout="constrained")
    axes = figure.add_subplot(xlabel="best other arm's time over cudal1's, host included", xscale="log")
    for at, (speed, _, family) in enumerate(bars):
        axes.barh(at, speed - 1, left=1, color=colours[family])
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.xaxis.set_minor_formatter("{x:g}x")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(bars)), [name for _, name, _ in bars], fontsize=5)
    axes.set_ylim(-1, len(bars))
    for family, colour in colours.items():
        axes.barh(0, 0, color=colour, label=family)
    axes.legend(fontsize=6, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    return path
