"""The host target's compiler: candidate text in, a shared object out.

g++ compiles the unchanged device code behind header/host.h, which is precompiled once per machine. Two forms:
plain (what `load` runs) and check (every access goes through native/memory_check.cpp; only the runner of
hostrun.py can load it). The object may need libm, memcpy/memset and our own scheduler, nothing else; it offers its
entries, nothing else; and nothing in it would run when it is loaded (elf.py). An accepted object obeys all three.
"""

from __future__ import annotations

import platform
import re
import string
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

from cudal1_compile.errors import BuildError
from cudal1_compile.kernel.candidate import MAX_LAUNCHES
from cudal1_compile.runtime.elf import ElfFacts, ObjectFacts, read_elf, read_object, without_section
from cudal1_compile.runtime.nvrtc import check_image_size, shorten_errors
from cudal1_compile.runtime.scratch import ScratchFolder
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
LANGUAGE: tuple[str, ...] = (
    *("-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing", "-fwrapv"),
    *("-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-fno-gnu-unique", "-ftemplate-depth=200"),
    "-U_FORTIFY_SOURCE",
    *("-w", "-ftrack-macro-expansion=0", "-fno-diagnostics-show-caret"),
)
if platform.machine() == "x86_64":
    # a call through a pointer becomes one of a function that nobody has, and is refused by that name
    LANGUAGE += ("-mindirect-branch=thunk-extern", "-fno-jump-tables", "-fcf-protection=none")
# what a register holds that nothing wrote, by form: no lucky zero for a sum, no lucky lowest number for a maximum
UNWRITTEN = {True: "-ftrivial-auto-var-init=pattern", False: "-ftrivial-auto-var-init=zero"}
UNWRITTEN_FROM = 12  # the first g++ that can
PLAIN = ("-O2", "-fno-stack-protector")  # which some distributions' compilers have on
CHECK = (
    # what is read of debug information is lines only: a sixth of the compile less
    *("-O1", "-g1", "-gdwarf-4", "-gno-variable-location-views", "-fno-var-tracking"),
    *("-fsanitize=thread,bounds-strict,alignment", "-fno-sanitize-recover=all"),
    *("-fstack-protector-strong", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"),
    # a copy of few bytes would become loads and stores behind the checks' back; the header says __builtin_memcpy
    *("-fno-builtin-memcpy", "-fno-builtin-memmove", "-fno-builtin-memset"),
)
WRAPPED = ("memcpy", "memmove", "memset")
# no name of the code becomes an initialiser or is offered to others; what elf.py reads is all that there is
LINK = (
    *("-shared", "-nostdlib", "-Wl,--hash-style=sysv", "-Wl,-z,now", "-Wl,-z,noexecstack"),
    *("-Wl,-init=cudal1_no_initialiser", "-Wl,-fini=cudal1_no_initialiser"),
)
EXPORTS = "{ global: cudal1_entry_*; cudal1_touch_shared; local: *; };\n"
SANITIZER_ARRAY = ".init_array.00099"  # calls __tsan_init, of which the runner has no need

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

_THUNK = "__x86_indirect_thunk"
_EXPORT = re.compile(r"cudal1_entry_\w+|cudal1_touch_shared")
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


def compile_host(source: str, kernels: tuple[str, ...], check: bool, limit_s: float | None = None) -> bytes:
    """Compiles preamble + candidate. Raises BuildError with g++'s first errors, or naming a forbidden symbol.

    limit_s: of CPU time, by default COMPILE_LIMIT_S. A full disk or a machine too busy is an OSError: no fault of
    the candidate.
    """
    with ScratchFolder("build").use() as folder:
        text = folder / CANDIDATE_NAME
        text.write_text(translate(source, kernels))
        objects, image = folder / "kernel.o", folder / "kernel.so"
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
            run_in(folder, command, limit_s or COMPILE_LIMIT_S)
        except BuildError as error:
            raise BuildError(shorten_errors(_readable(str(error), str(folder)))) from None
        compiled = objects.read_bytes()
        if check:
            compiled = without_section(compiled, SANITIZER_ARRAY)
            objects.write_bytes(compiled)
        _check_object(read_object(compiled), kernels, check)
        _link(folder, objects, image, check)
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
    """Raises BuildError for an object that needs or offers more than device code may."""
    foreign = sorted(name for name in facts.undefined if name not in ALLOWED)
    if check:
        foreign = [name for name in foreign if not _CHECK_ONLY.fullmatch(name)]
    if any(name.startswith(_THUNK) for name in foreign):
        raise BuildError("device code may not call functions through pointers")
    if foreign:
        raise BuildError(f"device code may not call {', '.join(foreign[:5])}")
    if offered := sorted(name for name in facts.defined if not _EXPORT.fullmatch(name)):
        raise BuildError(f"device code may not define {', '.join(offered[:5])} for others")


def _check_object(facts: ObjectFacts, kernels: tuple[str, ...], check: bool) -> None:
    """Before linking, while it still tells what the code defines. Raises BuildError."""
    if facts.arrays:
        raise BuildError("device code may not hold variables that are initialised at run time")
    if facts.state and not check:  # the checks have data of their own there
        raise BuildError("device code may not hold variables that outlive a launch; declare scratch")
    ours = {*map(entry_symbol, kernels), "cudal1_touch_shared"}
    if foreign := sorted(name for name in facts.defined - ours if not name.startswith("_Z")):
        raise BuildError(f"device code may not define {', '.join(foreign[:5])}: a name of C's or the loader's")


def _link(folder: Path, objects: Path, image: Path, check: bool) -> None:
    exports = folder / "exports"
    exports.write_text(EXPORTS)
    options = [f"-Wl,--version-script={exports}", *(f"-Wl,--wrap={name}" for name in WRAPPED if check)]
    run_in(folder, [compiler(), *LINK, *options, str(objects), "-o", str(image), "-lm", "-lgcc"])


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
    names = ("scheduler", "runner", "seal", "memory_check")
    scheduler, runner, seal, memory = (NATIVE_DIR / f"{name}.cpp" for name in names)
    common_runner = (
        *("-std=c++17", "-O2", "-w", f"-I{NATIVE_DIR}", f"-DMAX_LAUNCHES={MAX_LAUNCHES}"),
        # libm is there before an object is opened: the sealed process can open no other file
        *("-rdynamic", *_own_library(), "-ldl", "-Wl,--no-as-needed", "-lm"),
    )
    return build_native(
        "host",
        (
            Step("runner", (runner, scheduler, seal), common_runner),
            Step("runner_check", (runner, scheduler, seal, memory), (*common_runner, "-O3", "-DCUDAL1_CHECKED")),
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
