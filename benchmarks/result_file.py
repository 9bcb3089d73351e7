"""Results files: one JSON object with summary, device, versions, command, commit, n, intervals and detail.

    write_result(out, "generator", summary, n, intervals, detail, device)   ->   out/generator.h100.json

`detail` has a row a program, model or candidate: medians and quartiles, no samples; texts only of what failed.
Samples lie in the rows.jsonl that a run leaves in its OUT.

A dry run (a CPU, tiny sizes) proves that a script works. It is written as NAME.dry.json, says so in its `device`,
and is refused inside benchmarks/results.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from cudal1_compile.judge.versions import VERIFIER_VERSION

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "triton", "transformers", "accelerate", "numpy", "nvidia-cuda-nvrtc")
BOOTSTRAP = 2000
DIGITS = 6  # of floats in `detail`


def geomean(values: Sequence[float]) -> float:
    """NaN for no values; raises ValueError for one that is not positive."""
    if not values:
        return math.nan
    if min(values) <= 0:
        raise ValueError(f"geometric mean of {min(values)}: every value must be positive")
    return math.exp(sum(math.log(v) for v in values) / len(values))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def bootstrap(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float], level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of a statistic over resampled programs; (NaN, NaN) for no values."""
    if not values:
        return math.nan, math.nan
    rng = random.Random(seed)
    found = sorted(statistic(rng.choices(values, k=len(values))) for _ in range(BOOTSTRAP))
    tail = (1 - level) / 2
    return found[int(tail * BOOTSTRAP)], found[min(BOOTSTRAP - 1, int((1 - tail) * BOOTSTRAP))]


def device_name() -> str:
    """The GPU's name, or the CPU's."""
    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name(0))
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def device_stem(name: str = "") -> str:
    """A short name for a file: `h100` of `NVIDIA H100 80GB HBM3`; of this machine's device where none is given."""
    if not name and not torch.cuda.is_available():
        return "host"
    words = (name or device_name()).lower().replace("nvidia", "").split()
    return re.sub(r"[^a-z0-9]+", "", words[0]) if words else "cuda"


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "verifier": str(VERIFIER_VERSION)}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def commit() -> str:
    """The checkout's commit, or CUDAL1_COMMIT where the files travelled without their repository."""
    if given := os.environ.get("CUDAL1_COMMIT"):
        return given
    try:
        run = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return run.stdout.strip() if run.returncode == 0 else "unknown"


def command() -> str:
    """The command that is running, as a user would type it."""
    module = getattr(sys.modules.get("__main__"), "__spec__", None)
    script = Path(sys.argv[0])
    start = f"python {script}" if script.suffix == ".py" else script.name  # an installed command goes by its name
    if module is not None:
        start = f"python -m {module.name}"
    return " ".join([start.removesuffix(".__main__"), *sys.argv[1:]])


def write_result(
    out: Path,
    name: str,
    summary: Mapping[str, Any],
    n: int,
    intervals: Mapping[str, tuple[float, float]],
    detail: Any,
    dry: bool = False,
    measured: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the file whole or not at all; NaN becomes null, floats in `detail` have six digits.

    measured: device, versions and commit of the process that did, where it was not this one. Then this one asks no
    device for its name.
    """
    if dry and RESULTS.resolve() in (out.resolve(), *out.resolve().parents):
        raise ValueError(f"{out}: a dry run is no result; give an --out outside {RESULTS.name}/")
    origin = measured or {"device": device_name(), "versions": versions(), "commit": commit()}
    if dry:
        origin = {**origin, "device": f"dry run on {origin['device']}"}
    body = {
        "summary": dict(summary),
        "device": origin["device"],
        "versions": origin["versions"],
        "command": command(),
        "commit": origin["commit"],
        "n": n,
        "intervals": {k: list(v) for k, v in intervals.items()},
        "detail": _without_nan(detail, DIGITS),
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.{'dry' if dry else device_stem(measured['device'] if measured else '')}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(_without_nan(body), indent=1, allow_nan=False) + "\n")
    os.replace(temporary, path)
    return path


def _without_nan(value: Any, digits: int = 17) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _without_nan(v, digits) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(v, digits) for v in value]
    return value


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []
