"""The host target's compiler: candidate text in, a shared object out.

g++ compiles the unchanged device code behind header/host.h, which is precompiled once per machine. Two forms:
plain (what `load` runs) and check (every access goes through native/memory_check.cpp; only the runner of
hostrun.py can load it). The object may need libm, memcpy/memset and our own scheduler, nothing else: that
allow-list over its undefined symbols, and no initialisers, is what an accepted object obeys.
"""

from __future__ import annotations

import re
import string
import tempfile
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

from cudal1_compile.candidate import MAX_LAUNCHES
from cudal1_compile.errors import BuildError
from cudal1_compile.runtime.elf import ElfFacts, read_elf
from cudal1_compile.runtime.nvrtc import check_image_size, shorten_errors
from cudal1_compile.runtime.source import CANDIDATE_NAME, HEADER_DIR
from cudal1_compile.runtime.toolchain import (
    NATIVE_DIR,
    Step,
    build_native,
    compiler,
    compiler_version,
    run,
    run_in,
)

COMPILE_LIMIT_S = 20.0  # of CPU time; usual ones take 0.2 s
STATIC_SHARED_LIMIT = 48 * 1024  # of a kernel
LANGUAGE = (
    *("-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing", "-fwrapv"),
    *("-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-fno-gnu-unique", "-ftemplate-depth=200"),
    "-U_FORTIFY_SOURCE",
    *("-w", "-ftrack-macro-expansion=0", "-fno-diagnostics-show-caret"),
)
# what a register holds that nothing wrote, by form: no lucky zero for a sum, no lucky lowest number for a maximum
UNWRITTEN = {True: "-ftrivial-auto-var-init=pattern", False: "-ftrivial-auto-var-init=zero"}
UNWRITTEN_FROM = 12  # the first g++ that can
PLAIN = ("-O2", "-fno-stack-protector")  # which some distributions' compilers have on
CHECK = (
    # what is read of debug information is lines only: a sixth of the compile less
    *("-O1", "-g1", "-gdwarf-4", "-gno-variable-location-views", "-fno-var-tracking"),
    *("-fsanitize=thread,bounds-strict,alignment", "-fno-sanitize-recover=all"),
    *("-fstack-protector-strong", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"),
)
WRAPPED = ("memcpy", "memmove", "memset")
LINK = ("-shared", "-nostdlib", "-Wl,--hash-style=gnu")

_MATHS = """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1 fabs
    fdim floor fma fmax fmin fmod hypot ilogb j0 j1 ldexp lgamma llrint llround log log10 log1p log2 logb
    lrint lround nearbyint nextafter pow remainder rint round scalbn sin sincos sinh sqrt tan tanh tgamma
    trunc y0 y1
"""
_OURS = """
    cudal1_active_mask cudal1_barrier cudal1_clock cudal1_collective cudal1_dynamic cudal1_fence cudal1_state
    cudal1_wait_for_blocks
    cudal1_trap __tls_get_addr memcpy memmove memset
"""
ALLOWED = frozenset(_MATHS.split()) | {name + "f" for name in _MATHS.split()} | frozenset(_OURS.split())
_CHECK_ONLY = re.compile(
    r"__tsan_\w+|__ubsan_handle_\w+_abort|__wrap_(?:memcpy|memmove|memset)|__stack_chk_fail|cudal1_(?:cached_read|block_atomic)"
)

_WORD_CHARACTERS = f"{string.ascii_letters}{string.digits}_"
_DYNAMIC = re.compile(
    r"\bextern\s+__shared__\s+(?:(?:__align__|alignas)\s*\([^)]*\)\s*)?([\w:<>\s]++)(?:\[\s*\]\s*(;))?"
)


def prepare() -> None:
    """Builds what every host kernel needs. Raises BuildError without a compiler, OSError without room or time."""
    compiler()
    precompiled_header(True)
    precompiled_header(False)
    runtime_folder()


def compile_host(source: str, kernels: tuple[str, ...], check: bool) -> bytes:
    """Compiles preamble + candidate. Raises BuildError with g++'s first errors, or naming a forbidden symbol.

    A full disk or a machine too busy is an OSError: no fault of the candidate.
    """
    with tempfile.TemporaryDirectory(prefix="cudal1-") as folder:
        text = Path(folder, CANDIDATE_NAME)
        text.write_text(translate(source, kernels))
        objects, image = Path(folder, "kernel.o"), Path(folder, "kernel.so")
        header = precompiled_header(check) / "host.h"
        command = [
            compiler(),
            "-c",
            *_flags(check),
            "-include",
            str(header),
            "-x",
            "c++",
            str(text),
            "-o",
            str(objects),
        ]
        try:
            run_in(Path(folder), command, COMPILE_LIMIT_S)
        except BuildError as error:
            raise BuildError(shorten_errors(_readable(str(error), folder))) from None
        wraps = [f"-Wl,--wrap={name}" for name in WRAPPED] if check else []
        run_in(Path(folder), [compiler(), *LINK, *wraps, str(objects), "-o", str(image), "-lm", "-lgcc"])
        check_image_size(image.stat().st_size)
        built = image.read_bytes()
    facts = read_elf(built)
    check_facts(facts, check)
    limit = STATIC_SHARED_LIMIT * len(kernels)  # the object does not tell whose it is
    if facts.tls_bytes > limit:
        raise BuildError(
            f"{facts.tls_bytes} bytes of static shared memory in {len(kernels)} kernels, at most {limit} allowed"
        )
    return built


def translate(source: str, kernels: tuple[str, ...]) -> str:
    """The two constructs that no macro can express, the entry points, and a touch for the shared memory."""
    text = _DYNAMIC.sub(_dynamic, source)
    text = re.sub(r"\bstatic\s+__shared__", "__shared__", text)
    entries = "".join(f"CUDAL1_ENTRY({name})\n" for name in kernels)
    return f"{text}\n{entries}CUDAL1_TOUCH_SHARED\n"


@lru_cache(maxsize=2)
def _flags(check: bool) -> tuple[str, ...]:
    known = int(compiler_version().split(".")[0]) >= UNWRITTEN_FROM
    return (*LANGUAGE, *((UNWRITTEN[check],) if known else ()), *(CHECK if check else PLAIN))


def entry_symbol(kernel: str) -> str:
    """The C symbol through which a launch calls the kernel: void (void** arguments)."""
    return f"cudal1_entry_{kernel}"


def check_facts(facts: ElfFacts, check: bool) -> None:
    """Raises BuildError for an object that needs more than device code may use."""
    foreign = sorted(name for name in facts.undefined if name not in ALLOWED)
    if check:
        foreign = [name for name in foreign if not _CHECK_ONLY.fullmatch(name)]
    if foreign:
        raise BuildError(f"device code may not call {', '.join(foreign[:5])}")
    if facts.initialisers > (1 if check else 0):  # the one of a check build calls __tsan_init
        raise BuildError("device code may not hold variables that are initialised at run time")


def is_checked(facts: ElfFacts) -> bool:
    """Whether an object is a check build, which only the checking runner can load."""
    return any(name.startswith("__tsan_") for name in facts.undefined)


def precompiled_header(check: bool) -> Path:
    """The folder of host.h and its .gch for one form of build."""
    return _standing(partial(_build_header, check), _build_header.cache_clear)


def runtime_folder() -> Path:
    """The folder with `runner`, `runner_check` (child processes) and `libcudal1_host.so` (in process)."""
    return _standing(_build_runtime, _build_runtime.cache_clear)


def _standing(build: Callable[[], Path], forget: Callable[[], None]) -> Path:
    """What was built before, unless somebody has removed the cache since."""
    folder = build()
    if not folder.is_dir():
        forget()
        folder = build()
    return folder


@lru_cache(maxsize=2)
def _build_header(check: bool) -> Path:
    flags = (*_flags(check), "-x", "c++-header", f"-I{HEADER_DIR}", f"-I{NATIVE_DIR}")
    sources = (HEADER_DIR / "host.h",)
    return build_native(f"header-{'check' if check else 'plain'}", (Step("host.h.gch", sources, flags),))


@lru_cache(maxsize=1)
def _build_runtime() -> Path:
    common = ("-std=c++17", "-O2", "-w", "-fno-exceptions", f"-I{NATIVE_DIR}")
    scheduler, runner, memory = (NATIVE_DIR / f"{name}.cpp" for name in ("scheduler", "runner", "memory_check"))
    common_runner = (
        *("-std=c++17", "-O2", "-w", f"-I{NATIVE_DIR}", f"-DMAX_LAUNCHES={MAX_LAUNCHES}"),
        *("-rdynamic", *_own_library(), "-ldl", "-lm"),
    )
    return build_native(
        "host",
        (
            Step("runner", (runner, scheduler), common_runner),
            Step("runner_check", (runner, scheduler, memory), (*common_runner, "-O3", "-DCUDAL1_CHECKED")),
            Step(
                "libcudal1_host.so",
                (NATIVE_DIR / "host_driver.cpp", scheduler),
                (*common, "-shared", "-fPIC", "-lm"),
            ),
        ),
    )


def _own_library() -> tuple[str, ...]:
    """The C++ library within the runner, where there is one to link: a run starts 1 ms earlier."""
    name = "libstdc++.a"
    found = run([compiler(), f"-print-file-name={name}"]).stdout.strip()
    return ("-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL") if found != name else ()


def _dynamic(match: re.Match[str]) -> str:
    declared = match[1].rstrip()
    kind = declared.rstrip(_WORD_CHARACTERS)
    if not match[2] or not kind or kind == declared:
        return match[0]
    lines = "\n" * match[0].count("\n")
    return f"CUDAL1_DYNAMIC_SHARED({kind.strip()}, {declared[len(kind) :]});{lines}"


def _readable(text: str, folder: str) -> str:
    return text.replace(f"{folder}/", "").replace(f"{HEADER_DIR}/", "")
