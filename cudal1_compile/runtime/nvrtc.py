"""NVRTC through ctypes: CUDA C++ text in, a cubin and each kernel's resources out. Needs no GPU.

The library is looked for in the wheels (torch's own first, so that toolkit and driver match), then in a CUDA
toolkit. It knows neither programs nor candidates, and it loads nothing onto a device.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cudal1_compile.config import environment_path
from cudal1_compile.errors import BuildError
from cudal1_compile.runtime.sass import repair_waits

log = logging.getLogger(__name__)

# --no-cache: an object from NVRTC's own cache (seen with driver 580) comes without ptxas's report
# 549: a variable is used before its value is set; what it then holds differs from GPU to GPU, and from day to day
FLAGS = ("-std=c++17", "--disable-warnings", "--diag-error=549", "--ptxas-options=-v", "--no-cache")
MAX_REASON_LINES = 6
MAX_REASON_CHARS = 800
MAX_IMAGE_BYTES = 4 << 20  # it is stored and goes through pipes; an honest host image has some 15 KB

_ENTRY = re.compile(r"ptxas info\s*: Function properties for (\S+)\s*\n[^\n]*?(\d+) bytes stack frame")
_DATA = re.compile(r"^\s*(?:\.\w+\s+)*?\.(?:global|const)\s[^=;{]*?([\w$]+)(?:\[\d*\])*\s*[=;]")
_WORD = re.compile(r"[\w$]+")
_LIBRARY_DATA = {"__cudart_i2opi_f", "__cudart_i2opi_d", "__cudart_sin_cos_coeffs"}  # of sines
_USED = re.compile(r"Used (\d+) registers(?:[^\n]*?(\d+) bytes smem)?")


@dataclass(frozen=True)
class KernelInfo:
    """What one kernel takes, as ptxas reports it."""

    symbol: str  # the mangled name in the cubin
    registers: int  # a thread
    shared_bytes: int  # static, a block
    local_bytes: int  # stack frame and spills, a thread


@dataclass(frozen=True)
class Compiled:
    """A cubin, and the resources of the kernels asked for, by their plain names."""

    cubin: bytes
    kernels: dict[str, KernelInfo]


def compile_cubin(source: str, arch: str, kernels: tuple[str, ...], name: str = "cudal1.cu") -> Compiled:
    """Builds device code for one GPU arch (sm_90a). Raises BuildError with the compiler's first errors."""
    nvrtc = library()
    program = ctypes.c_void_p()
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None))
    try:
        for kernel in kernels:
            _check(nvrtc, nvrtc.nvrtcAddNameExpression(program, kernel.encode()))
        options = [f"--gpu-architecture={arch}".encode(), *(flag.encode() for flag in FLAGS)]
        code = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if code != 0:
            raise BuildError(shorten_errors(_log_text(nvrtc, program) or _error_text(nvrtc, code)))
        symbols = {kernel: _lowered(nvrtc, program, kernel) for kernel in kernels}
        infos = _kernel_infos(_log_text(nvrtc, program))
        cubin = _image(nvrtc, program, "CUBIN")
        check_image_size(len(cubin))
        _refuse_data(_image(nvrtc, program, "PTX").decode())
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return Compiled(repair_waits(cubin), {kernel: infos[symbol] for kernel, symbol in symbols.items()})


def check_image_size(size_bytes: int) -> None:
    """Raises BuildError for what is too large to be stored, whatever it was built for."""
    if size_bytes > MAX_IMAGE_BYTES:
        raise BuildError(
            f"the built code has {size_bytes} bytes, at most {MAX_IMAGE_BYTES} are allowed: use smaller constants"
        )


def shorten_errors(text: str) -> str:
    """The first error lines of a compiler's log, without carets, paths and notes."""
    lines = [line.strip() for line in text.splitlines()]
    errors = [line for line in lines if re.search(r"\berror\b", line)] or [line for line in lines if line]
    return "\n".join(errors[:MAX_REASON_LINES])[:MAX_REASON_CHARS]


def version() -> str:
    """NVRTC's version, `13.0`."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc = library()
    _check(nvrtc, nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Loads libnvrtc and, before it, its builtins. Raises BuildError where there is none."""
    tried = []
    for path in _candidates():
        try:
            for builtins in sorted(path.parent.glob("libnvrtc-builtins.so*")):
                if ".alt." not in builtins.name:
                    ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
            found = ctypes.CDLL(str(path))
        except OSError as error:
            tried.append(f"{path}: {error}")
            continue
        found.nvrtcGetErrorString.restype = ctypes.c_char_p
        log.debug("nvrtc: %s", path)
        return found
    raise BuildError(f"no NVRTC found (pip install nvidia-cuda-nvrtc, or set CUDA_HOME); tried {tried}")


def _kernel_infos(ptxas_log: str) -> dict[str, KernelInfo]:
    found = {}
    for entry in _ENTRY.finditer(ptxas_log):
        used = _USED.search(ptxas_log, entry.end())
        if used:
            found[entry[1]] = KernelInfo(entry[1], int(used[1]), int(used[2] or 0), int(entry[2]))
    return found


def _candidates() -> list[Path]:
    folders: list[Path] = []
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        folders += sorted(Path(root).glob("cu*/lib"), reverse=True) + [Path(root) / "cuda_nvrtc" / "lib"]
    torch_spec = importlib.util.find_spec("torch")
    for root in torch_spec.submodule_search_locations or () if torch_spec else ():
        folders.append(Path(root) / "lib")
    for home in (environment_path("CUDA_HOME"), environment_path("CUDA_PATH"), "/usr/local/cuda"):
        folders += [Path(home) / "lib64", Path(home) / "targets/x86_64-linux/lib"] if home else []
    found = [path for folder in folders for path in sorted(folder.glob("libnvrtc*.so*"), reverse=True)]
    return [path for path in found if "builtins" not in path.name and ".alt." not in path.name]


def _lowered(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, kernel: str) -> str:
    symbol = ctypes.c_char_p()
    _check(nvrtc, nvrtc.nvrtcGetLoweredName(program, kernel.encode(), ctypes.byref(symbol)))
    assert symbol.value is not None
    return symbol.value.decode()


def _image(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, kind: str) -> bytes:
    """kind: CUBIN or PTX."""
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{kind}")(program, buffer))
    return buffer.raw


def _refuse_data(ptx: str) -> None:
    """Constants are folded into the code, unless it has their address: then a launch may leave them changed."""
    named = {name: line for line in ptx.splitlines() for name in _DATA.findall(line)}
    lines = set(named.values())
    code = "\n".join(line for line in ptx.splitlines() if line not in lines)
    if used := set(_WORD.findall(code)) & named.keys() - _LIBRARY_DATA:
        raise BuildError(
            f"{min(used)}: data in device memory outlives a launch; use a constant's value, never its address"
        )


def _log_text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    _check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(max(1, size.value))
    _check(nvrtc, nvrtc.nvrtcGetProgramLog(program, buffer))
    return buffer.value.decode(errors="replace")


def _check(nvrtc: ctypes.CDLL, code: int) -> None:
    if code != 0:
        raise BuildError(f"NVRTC: {_error_text(nvrtc, code)}")


def _error_text(nvrtc: ctypes.CDLL, code: int) -> str:
    return (nvrtc.nvrtcGetErrorString(code) or b"unknown error").decode()
