"""metrics.jsonl of a run as pictures: one PNG a curve, and nothing else. Without matplotlib there are none."""

from __future__ import annotations

import json
import logging
from pathlib import Path

log = logging.getLogger(__name__)

CURVES = ("reward", "right", "speedup", "kl", "hacks", "loss")


def plot(out: Path) -> list[Path]:
    """Writes OUT/plots/CURVE.png; returns the files."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log.info("matplotlib is not installed (extra `train`): no plots, the figures are in metrics.jsonl")
        return []
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    (out / "plots").mkdir(exist_ok=True)
    written = []
    for name in CURVES:
        figure = Figure(figsize=(6, 3.5), layout="constrained")
        axes = figure.add_subplot(xlabel="step", ylabel=name)
        axes.plot([r["step"] for r in rows if name in r], [r[name] for r in rows if name in r])
        axes.grid(alpha=0.3)
        written.append(out / "plots" / f"{name}.png")
        figure.savefig(written[-1], dpi=120)
    return written
