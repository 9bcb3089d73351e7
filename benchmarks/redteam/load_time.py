"""Attacks on loading that no candidate's text leads to: objects forged byte by byte, or built from host code.

    load_time_rows(folder) -> one row an object: what the gate said of it, and what came of it when it was opened
    in the sealed child without that gate

An object is accepted where the gate lets it pass; it escapes where its code did what it was made for in the child.
Cubins meet their gate here; what a driver does with them is for a machine that has one (`load_cubins`).
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import reduce
from multiprocessing import get_context
from pathlib import Path

from benchmarks.redteam.forge import forged_cubins, forged_objects
from benchmarks.redteam.honest import SILU_SCALAR
from benchmarks.redteam.regions import region
from cudal1_compile.errors import BuildError
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime import driver, hostbuild
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.cubin import check_cubin
from cudal1_compile.runtime.elf import read_elf
from cudal1_compile.runtime.hostrun import open_unseen
from cudal1_compile.runtime.target import GPU_ARCHES, HOST, Target
from cudal1_compile.runtime.toolchain import compiler

HEADERS = ("fcntl", "signal", "stdlib", "unistd", "sys/mman", "sys/ptrace", "sys/socket", "sys/syscall")
# what code does once it runs; MARKER: a file that must not be there afterwards
PAYLOADS = {
    "makes a file": 'open("MARKER", O_CREAT | O_WRONLY, 0600);',
    "starts a shell": 'system("touch MARKER");',
    "leaves a daemon": 'if (!fork()) { setsid(); open("MARKER", O_CREAT | O_WRONLY, 0600); }',
    "opens a socket": 'if (socket(AF_UNIX, SOCK_STREAM, 0) >= 0) open("MARKER", O_CREAT | O_WRONLY, 0600);',
    "kills its parent": "kill(getppid(), SIGKILL);",
    "traces its parent": 'ptrace(PTRACE_ATTACH, getppid(), 0, 0); open("MARKER", O_CREAT | O_WRONLY, 0600);',
    "makes a file in memory": 'syscall(SYS_memfd_create, "x", 0);',
    "asks by a ring": "char p[120] = {}; syscall(SYS_io_uring_setup, 8, p);",
    "reads its parent's memory": "syscall(SYS_process_vm_readv, getppid(), 0, 0, 0, 0, 0);",
    "opens a file to read": 'if (open("/etc/passwd", O_RDONLY) >= 0) open("MARKER", O_CREAT | O_WRONLY, 0600);',
    "moves memory": "mremap(mmap(0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096, 8192, MREMAP_MAYMOVE);",
    "runs what it wrote": "mprotect(mmap(0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096, 5);",
    "speaks for the watching process": 'write(0, "L", 1); write(3, "L", 1);',
    "says that it is sealed": 'write(1, "R{\\"status\\": \\"ok\\"}\\n", 18); _exit(0);',
    "says that there is no memory": 'write(1, "{\\"kind\\": \\"out_of_memory\\"}\\n", 27); _exit(3);',
    "says more than there is to say": 'for (;;) write(1, "aaaaaaaaaaaaaaaa", 16);',
    "makes code": "void* p = mmap(0, 64, 7, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); *(char*)p = 0xc3;",
}
# how code comes to run; RUN: its body. The linker's options stand behind.
WAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "a constructor": ("__attribute__((constructor)) static void f() { RUN }", ()),
    "a constructor of low priority": ("__attribute__((constructor(65535))) static void f() { RUN }", ()),
    "a destructor": ("__attribute__((destructor)) static void f() { RUN }", ()),
    "_init": ('extern "C" void _init() { RUN }', ()),
    "_fini": ('extern "C" void _fini() { RUN }', ()),
    "another initialiser": ('extern "C" void begin() { RUN }', ("-Wl,-init=begin",)),
    "a function chosen at load": (
        'static void f() {} extern "C" void* choose() { RUN return (void*)f; }\n'
        'extern "C" void g() __attribute__((ifunc("choose")));\nvoid (*p)() = g;',
        (),
    ),
    "an object with a constructor": ("struct C { C() { RUN } } object;", ()),
    "a thread's object with a constructor": (
        "struct C { C() { RUN } }; thread_local C object;\n"
        'extern "C" void cudal1_touch_shared() { (void)&object; }',
        (),
    ),
    "a function of the runner's": ('extern "C" long syscall(long n, ...) { RUN return 0; }', ()),
    "a copy of its own": ('extern "C" void* memcpy(void* a, const void*, unsigned long) { RUN return a; }', ()),
    "code that is written as it is loaded": (
        'extern "C" void cudal1_touch_shared() { RUN }',
        ("-fno-pic", "-mcmodel=large", "-Wl,-z,notext"),
    ),
    "a symbol's version": (
        'extern "C" void* copy(void* a, const void*, unsigned long) { RUN return a; }\n'
        '__asm__(".symver copy, memcpy@@GLIBC_2.14");',
        ("-Wl,--version-script=VERSIONS",),
    ),
}
LINKER: dict[str, tuple[str, ...]] = {
    "a folder to look for libraries": ("-Wl,-rpath,/tmp",),
    "a library to ask first": ("-Wl,--auxiliary=libm.so.6",),
    "a library that audits": ("-Wl,--depaudit=libm.so.6",),
    "an executable stack": ("-Wl,-z,execstack",),
    "its symbols for all": ("-Wl,-z,global",),
    "another library": ("OTHER",),
}
ENTRY = 'extern "C" __attribute__((visibility("default"))) void cudal1_entry_k(void**) {}'
OURS = ("-O1", "-w", "-shared", "-fPIC", "-nostartfiles", "-Wl,--hash-style=sysv", "-Wl,--no-as-needed")


@dataclass(frozen=True, slots=True)
class LoadRow:
    name: str
    gate: str  # why it is refused; "" where the gate lets it pass
    child: str  # how it ended in the sealed child, without the gate; "" where that was not tried
    escaped: bool  # whether its code did there what it was made for

    @property
    def accepted(self) -> bool:
        return not self.gate


def load_time_rows(folder: Path) -> list[LoadRow]:
    """Every object of this module and of forge.py. folder: an empty one, for what is built.

    Raises BuildError without a C++ compiler or NVRTC.
    """
    rows = [_object_row(name, image, folder / "marker") for name, image in _objects(folder)]
    return rows + [LoadRow(n, _said(check_cubin, image), "", False) for n, image in forged_cubins(_cubin())]


def load_cubins() -> dict[str, str]:
    """What the driver says of each forged cubin that it is given without the gate, in a process of its own."""
    found = {}
    pool = ProcessPoolExecutor(1, get_context("spawn"))
    for name, image in forged_cubins(_cubin()):
        try:
            found[name] = pool.submit(_load, image).result(timeout=60)
        except BrokenProcessPool:
            found[name] = "the process died"
            pool = ProcessPoolExecutor(1, get_context("spawn"))
    pool.shutdown()
    return found


def _load(image: bytes) -> str:
    cuda, device, context, module = driver.libcuda(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    driver.check(cuda, cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    driver.check(cuda, cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    driver.check(cuda, cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    code = cuda.cuModuleLoadData(ctypes.byref(module), image)
    return driver.error_text(cuda, code) if code else "loads"


def _cubin() -> bytes:
    program = region("silu")
    target = Target("cuda", "any", GPU_ARCHES[3], 132, 227 * 1024, 50 << 20)
    return build(program, parse_candidate(SILU_SCALAR, program), target).image


def _objects(folder: Path) -> Iterator[tuple[str, bytes]]:
    program = region("silu")
    good = build(program, parse_candidate(SILU_SCALAR, program), HOST).image
    yield from forged_objects(good)
    other = folder / "libother.so"
    other.write_bytes(_compiled(folder, WAYS["a constructor"][0].replace("RUN", PAYLOADS["makes a file"]), ()))
    (folder / "versions").write_text("GLIBC_2.14 { global: memcpy; cudal1_entry_k; local: *; };\n")
    for way, (code, options) in WAYS.items():
        for does, payload in PAYLOADS.items():
            if way == "a constructor" or does == "makes a file":
                yield f"{way} that {does}", _compiled(folder, code.replace("RUN", payload), options)
    for name, options in LINKER.items():
        yield name, _compiled(folder, "", options)


def _compiled(folder: Path, code: str, options: tuple[str, ...]) -> bytes:
    source, image = folder / "hostile.cpp", folder / "hostile.so"
    text = "\n".join([*(f"#include <{name}.h>" for name in HEADERS), code, ENTRY, ""])
    source.write_text(text.replace("MARKER", str(folder / "marker")))
    files = {"VERSIONS": folder / "versions", "OTHER": folder / "libother.so"}
    last = [reduce(lambda text, name: text.replace(name, str(files[name])), files, o) for o in options]
    command = [compiler(), *OURS, str(source), "-o", str(image), "-nodefaultlibs", *last, "-lc"]
    subprocess.run(command, check=True, capture_output=True)
    return image.read_bytes()


def _object_row(name: str, image: bytes, marker: Path) -> LoadRow:
    gate = _said(_check_object, image)
    run = open_unseen(image)
    escaped = marker.exists()
    marker.unlink(missing_ok=True)
    return LoadRow(name, gate, f"{run.status} {run.message}".strip(), escaped)


def _check_object(image: bytes) -> None:
    hostbuild.check_facts(read_elf(image), check=False)


def _said(check: Callable[[bytes], None], image: bytes) -> str:
    try:
        check(image)
    except BuildError as error:
        return str(error)
    return ""
