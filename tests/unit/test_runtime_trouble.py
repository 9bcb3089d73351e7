"""The closed list: what is told apart from a text's own fault, and what a text could have brought about itself."""

from __future__ import annotations

import signal

import pytest

from cudal1_compile.runtime.trouble import MachineTrouble, Reason, exit_trouble, report_trouble, tool_trouble


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("virtual memory exhausted: Cannot allocate memory", "memory"),
        ("cc1plus: out of memory allocating 65536 bytes after a total of 1179648 bytes", "memory"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "memory"),
        ("NVRTC_ERROR_OUT_OF_MEMORY", "memory"),
        ("g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.", "killed"),
        ("g++: internal compiler error: Segmentation fault signal terminated program cc1plus", "killed"),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]", "killed"),
        ("<command-line>: fatal error: cannot read PCH file: No such file or directory", "header"),
        ("cc1plus: error: while reading precompiled header: No such file or directory", "header"),
        ("<command-line>: fatal error: /c/native/header-1/host.h: No such file or directory", "header"),
        ("/tmp/k.s: fatal error: cannot write: No space left on device", "disk"),
    ],
)
def test_compilers(said: str, reason: Reason) -> None:
    found = tool_trouble(f"candidate.cu:1:1: error: some other line\n{said}", 1)
    assert found is not None and found.reason == reason and not found.is_certain and not found.is_of_run
    assert "some other line" not in str(found)


@pytest.mark.parametrize(
    "said",
    [
        "candidate.cu:3:5: error: 'nosuch' was not declared in this scope",
        "g++: internal compiler error: CPU time limit exceeded signal terminated program cc1plus",
        "",
    ],
)
def test_texts_faults(said: str) -> None:
    assert tool_trouble(said, 1) is None


def test_tools_that_are_killed_themselves() -> None:
    killed = tool_trouble("", -signal.SIGKILL)
    assert isinstance(killed, MachineTrouble) and str(killed) == "a compiler was killed: SIGKILL"
    assert tool_trouble("", -signal.SIGXCPU) is None  # our limit


def test_children_without_a_report() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        found = exit_trouble(-number)
        assert found is not None and found.is_certain and number.name in str(found)
    sealed = exit_trouble(-signal.SIGKILL)  # as by seccomp over a forbidden call
    assert sealed is not None and sealed.is_of_run and not sealed.is_certain
    loader = exit_trouble(127)
    assert loader is not None and loader.is_certain
    assert [exit_trouble(-n) for n in (signal.SIGSEGV, signal.SIGSYS, signal.SIGXCPU)] == [None] * 3
    assert exit_trouble(0) is None and exit_trouble(3) is None


def test_reports_of_the_runner() -> None:
    shadow = report_trouble("out_of_memory", "no room for the shadow memory")
    assert shadow is not None and shadow.is_certain and shadow.reason == "memory"
    library = report_trouble("load_error", "./kernel.so: failed to map segment from shared object")
    assert library is not None and library.reason == "memory" and not library.is_certain
    short = report_trouble("load_error", "./kernel.so: file too short")
    assert short is not None and short.reason == "load"
    assert report_trouble("load_error", "./kernel.so: undefined symbol: nosuch") is None
    assert report_trouble("memory_fault", "cannot allocate") is None
