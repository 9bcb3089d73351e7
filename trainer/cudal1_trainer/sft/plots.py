"""metrics.jsonl of a run as pictures: one PNG a curve, and nothing else. Without matplotlib there are none."""

from __future__ import annotations

import json
import logging
from pathlib import Path

log = logging.getLogger(__name__)

CURVES = ("reward", "right", "speedup", "kl", "hacks", "loss", "lr", "tokens_per_s")


def plot(out: Path) -> list[Path]:
    """Writes OUT/plots/CURVE.png for every curve that the run has; returns the files."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log.info("matplotlib is not installed (extra `train`): no plots, the figures are in metrics.jsonl")
        return []
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = {row["step"]: row for row in lines}.values()  # a killed run went on and wrote some steps again
    heldout = json.loads((out / "report.json").read_text()).get("heldout_loss")
    (out / "plots").mkdir(exist_ok=True)
    written = []
    for name in CURVES:
        points = [(row["step"], row[name]) for row in rows if name in row]
        if not points:
            continue
        figure = Figure(figsize=(6, 3.5), layout="constrained")
        axes = figure.add_subplot(xlabel="step", ylabel=name)
        axes.plot(*zip(*points, strict=True))
        axes.grid(alpha=0.3)
        if name == "loss" and heldout is not None:
            axes.axhline(heldout, linestyle="--", color="black", label=f"held out, at the end: {heldout:.3g}")
            axes.set_yscale("log")
            axes.legend()
        written.append(out / "plots" / f"{name}.png")
        figure.savefig(written[-1], dpi=120)
    return written
