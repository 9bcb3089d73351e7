"""`cudal1 doctor`: what is found on this machine, and what to do about what is not.

Each check returns a Finding and raises nothing. Exit status 1 only where a finding is "broken", which stops every
use; a GPU, NVRTC or a compiler that is absent narrows what can be done, and the advice says to what.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import typer
from rich.console import Console
from rich.markup import escape

State = Literal["ok", "absent", "broken"]
_STYLE = {"ok": "green", "absent": "yellow", "broken": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked for. `absent` narrows what can be done, `broken` must be repaired."""

    name: str
    state: State
    detail: str
    advice: str = ""  # what to do; empty when ok


def doctor() -> None:
    """Says what is found on this machine, and what to do about what is not."""
    findings = examine()
    console = Console(soft_wrap=True, highlight=False)
    for f in findings:
        style = _STYLE[f.state]
        console.print(f"[{style}]{f.state:<7}[/{style}] {f.name:<13} {escape(f.detail)}")
        if f.advice:
            console.print(f"{'':<22}-> {escape(f.advice)}")
    if any(f.state == "broken" for f in findings):
        raise typer.Exit(1)


def examine() -> list[Finding]:
    return [check() for check in CHECKS]


def check_torch() -> Finding:
    try:
        import torch
    except ImportError as error:
        return Finding("torch", "broken", str(error), "install torch 2.11 or later")
    found = f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}, Python {platform.python_version()}"
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if (major, minor) < (2, 11):
        return Finding("torch", "broken", found, "install torch 2.11 or later")
    return Finding("torch", "ok", found)


def check_gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        advice = "CPU models run on Inductor; kernels can be tried on the host target, options={'target': 'host'}"
        return Finding("GPU", "absent", "no CUDA device that torch can use", advice)
    names = [torch.cuda.get_device_properties(i).name for i in range(torch.cuda.device_count())]
    return Finding("GPU", "ok", ", ".join(names))


def check_nvrtc() -> Finding:
    from cudal1_compile.errors import BuildError
    from cudal1_compile.runtime.nvrtc import compile_cubin

    try:
        compiled = compile_cubin('extern "C" __global__ void probe() {}', "sm_80", ("probe",))
    except BuildError as error:
        advice = "pip install nvidia-cuda-nvrtc, or a torch built for CUDA; without it no GPU kernel is built"
        return Finding("NVRTC", "absent", str(error), advice)
    return Finding("NVRTC", "ok", f"built a cubin of {len(compiled.cubin)} bytes for sm_80")


def check_compiler() -> Finding:
    advice = "install g++; without it there are no kernels on the host target, and CUDA uses its fallback launcher"
    compiler = shutil.which("g++")
    if compiler is None:
        return Finding("C++ compiler", "absent", "no g++ on PATH", advice)
    with tempfile.TemporaryDirectory() as folder:
        command = [compiler, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
        done = subprocess.run(
            command,
            input="#include <cmath>\nint main() { return 0; }\n",
            text=True,
            cwd=folder,
            capture_output=True,
        )
    if done.returncode != 0:
        return Finding("C++ compiler", "absent", f"{compiler} fails: {done.stderr.strip()[:200]}", advice)
    version = subprocess.run([compiler, "-dumpfullversion"], text=True, capture_output=True).stdout.strip()
    return Finding("C++ compiler", "ok", f"{compiler} {version}")


def check_cache() -> Finding:
    from cudal1_cache import CacheError
    from cudal1_compile.config import cache_dir
    from cudal1_compile.dispatch.kernel_cache import open_store

    advice = "set CUDAL1_CACHE_DIR to a directory that you may write; until then kernels are lost at exit"
    try:
        directory = cache_dir()
        with open_store(directory) as store:
            held = store.stats()
            if store.path is None:
                return Finding("cache", "absent", f"{directory} keeps nothing: {store.database.fault}", advice)
    except (CacheError, OSError) as error:
        return Finding("cache", "broken", str(error), advice)
    return Finding("cache", "ok", f"{directory}: {held.kernels} kernels, {held.attempts} attempts")


def check_model() -> Finding:
    from cudal1_compile.generate.errors import ModelMissing
    from cudal1_compile.generate.model_files import MODEL_DIR, check_model_dir, model_digest

    try:
        files = check_model_dir(MODEL_DIR)
    except ModelMissing as error:
        advice = "install the package with its model, or name another generator: options={'generator': ...}"
        return Finding("model", "absent", str(error).partition(". ")[0], advice)
    size_bytes = sum(f.stat().st_size for f in files)
    return Finding("model", "ok", f"bundled:{model_digest(files)[:12]}, {size_bytes / 1e6:.0f} MB in {MODEL_DIR}")


def check_hook() -> Finding:
    from cudal1_compile.inductor import hook

    fault = hook.self_test()
    if fault is not None:
        advice = "use a torch that was tested (2.11, 2.13); with this one every graph runs on plain Inductor"
        return Finding("self-test", "absent", f"the hook into Inductor: {fault}", advice)
    return Finding("self-test", "ok", "a kernel can be spliced into what Inductor compiles")


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_torch,
    check_gpu,
    check_nvrtc,
    check_compiler,
    check_cache,
    check_model,
    check_hook,
)
