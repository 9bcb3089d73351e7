"""Gate 1: refuses a candidate by its text alone, before anything is compiled.

    code -> strip_comments -> words that device code has no need of -> declarations outside functions -> clean code

What passes is device functions, kernels, types and small constants: no includes, no inline assembly, no host
code, no state that outlives a launch, no tables of answers. The stripped code that comes back is what is built
and cached, so that no comment reaches a reader further on. This gate knows C++ by its tokens only; what it
cannot see (a bad index, a race) is for the gates behind it.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import groupby, pairwise

from cudal1_compile.judge.static.declarations import refuse_declarations
from cudal1_compile.kernel.text import body_of, code_tokens, is_plan, is_word, plan_lines, without_comments

MAX_BYTES = 48 * 1024
MAX_LINES = 1500
MAX_LINE = 2000  # characters
MAX_NUMBER = 64  # characters of a literal: a model may write digits without end
MAX_WORD = 128  # characters of a name
_NO_CHARACTERS = "character literals are not allowed"
MAX_BRACKETS = 64  # one behind the other: what looks past them looks past few

_FORBIDDEN = {
    "asm": "inline assembly is not allowed",
    "__asm__": "inline assembly is not allowed",
    "__asm": "inline assembly is not allowed",
    "__managed__": "managed memory is state that outlives a launch",
    "__constant__": "constant memory can be written through a cast; use constexpr within the kernel",
    "__host__": "host code is not allowed",
    "thread_local": "thread_local is state that outlives a launch",
    "__thread": "thread_local is state that outlives a launch",
    "printf": "printing is not allowed",
    "puts": "printing is not allowed",
    "assert": "assert is not allowed",
    "__trap": "traps are not allowed",
    "__brkpt": "traps are not allowed",
    "exit": "leaving the process is not allowed",
    "abort": "leaving the process is not allowed",
    "malloc": "allocation in device code is not allowed; declare scratch",
    "free": "allocation in device code is not allowed; declare scratch",
    "alloca": "allocation in device code is not allowed; declare scratch",
    "new": "allocation in device code is not allowed; declare scratch",
    "delete": "allocation in device code is not allowed; declare scratch",
    "clock": "reading clocks is not allowed",
    "clock64": "reading clocks is not allowed",
    "__nanosleep": "sleeping is not allowed",
    "namespace": "namespaces are not needed",
    "const_cast": "const_cast is not allowed",
    "try": "exceptions are not allowed",
    "catch": "exceptions are not allowed",
    "throw": "exceptions are not allowed",
    "typeid": "typeid is not allowed",
    "friend": "friend is not needed",
    "virtual": "virtual functions are not allowed",
    "concept": "concepts are not needed",
    "requires": "concepts are not needed",
    "__attribute__": "attributes are not allowed",
    "__attribute": "attributes are not allowed",
    "__declspec": "attributes are not allowed",
    "_Pragma": "only #pragma unroll is allowed",
    "__pragma": "only #pragma unroll is allowed",
    "main": "host code is not allowed",
    "std": "the standard library is not available",
    "syscall": "host code is not allowed",
}
# an attribute's brackets may come out of macros: it is known by its vendor, or by its own name
_FORBIDDEN |= dict.fromkeys(
    ("gnu", "__gnu__", "clang", "_Clang", "omp", "noreturn", "_Noreturn"), "attributes are not allowed"
)
_FORBIDDEN |= dict.fromkeys(
    ("__TIME__", "__DATE__", "__TIMESTAMP__", "__FILE__", "__LINE__", "__COUNTER__", "__VERSION__"),
    "a kernel may not depend on when and where it is built",
)
_FORBIDDEN_PREFIX = {
    "cuda": "the CUDA runtime is not available in a kernel",
    "__cudart": "names of the CUDA library are not allowed",
    "cu_": "the CUDA runtime is not available in a kernel",
    "__nvvm": "compiler intrinsics of NVVM are not allowed",
    "__builtin_": "compiler builtins are not allowed",
    "__sync_": "host builtins are not allowed",
    "__atomic": "host builtins are not allowed",
    "__tsan": "names of the judge are not allowed",
    "__assert": "assert is not allowed",
    **dict.fromkeys(
        ("__SANITIZE", "__SSP", "__OPTIMIZE", "__NO_INLINE", "__GNUC", "__GXX", "__clang", "__NVCC", "__CUDA"),
        "a kernel may not depend on how it is built",
    ),
    "CUDAL1": "names of the judge are not allowed",
    "cudal1_": "names of the judge are not allowed",
    "globaltimer": "reading clocks is not allowed",
    **dict.fromkeys(
        [
            "_init",
            "_fini",
            "_start",
            "_dl_",
            "_rtld",
            "_DYNAMIC",
            "_GLOBAL_",
            "_ITM_",
            "_Unwind",
            "_Z",
            "__asan",
            "__cxa",
            "__cyg_profile",
            "__deregister",
            "__dso_handle",
            "__emutls",
            "__fini_array",
            "__gcc",
            "__gmon",
            "__gxx",
            "__init_array",
            "__libc",
            "__preinit_array",
            "__real_",
            "__register",
            "__sanitizer",
            "__stack_chk",
            "__tls",
            "__ubsan",
            "__wrap_",
        ],
        "names of the loader and of the C library are not allowed",
    ),
}
_PREFIXES = tuple(_FORBIDDEN_PREFIX)
_JOINED = ("<<<", "##", "&&", "::", "->")  # operators that checks know; of all others each character
_OPERATORS = "-+*/%&|^<>=!.:#"  # what those of several characters begin with
_NOT_IN_MACROS = {"__device__", "__global__", "__shared__", "static", "extern", "{", "}"}
_DIGRAPHS = ("<%", "%>", "<:", ":>", "%:", "??")
# a macro of such a name changes what the rest of the source says, the judge's own lines included
_NO_MACROS = re.compile(
    "__.*|bool|break|case|char|const|constexpr|continue|decltype|default|do|double|else|enum|extern|float|for|goto|if|"
    "inline|int|long|operator|return|short|signed|sizeof|static|static_assert|struct|switch|template|typedef|typename|"
    "union|unsigned|using|void|volatile|while|DIMS|Signature|pointers|bytes"
)
_MACRO = re.compile(r"\s*#\s*(?:define|undef)\s+(\w+)")
_DIRECTIVE = re.compile(r"#\s*(?:pragma\s+unroll\b.*|define\s+\w+.*|undef\s+\w+)\s*$")


@dataclass(frozen=True, slots=True)
class CleanText:
    """Code that passed the gate: comments gone, launch plan kept."""

    code: str


@dataclass(frozen=True, slots=True)
class RefusedText:
    reason: str


def check_text(code: str) -> CleanText | RefusedText:
    """Applies gate 1 to a code block."""
    if len(code.encode("utf-8", "replace")) > MAX_BYTES:
        return RefusedText(f"the code has {len(code)} characters, at most {MAX_BYTES} bytes are allowed")
    if code.count("\n") > MAX_LINES:
        return RefusedText(f"the code has {code.count(chr(10))} lines, at most {MAX_LINES} are allowed")
    if (hidden := _hidden_character(code)) is not None:
        return RefusedText(f"{hidden}: characters that no reader sees are not allowed, in comments neither")
    clean = strip_comments(code)
    if (longest := max(map(len, clean.splitlines()), default=0)) > MAX_LINE:
        return RefusedText(f"a line of {longest} characters, at most {MAX_LINE} are allowed")
    body = "\n".join(line for line in clean.splitlines() if not is_plan(line))
    tokens = _tokens(body)
    reason = _characters(body) or _directives(body) or _runs(tokens) or _words(tokens)
    if reason is None:
        if "#" in body:
            tokens = _tokens("\n".join(line for line in body.splitlines() if not line.lstrip().startswith("#")))
        reason = refuse_declarations(tokens)
    return RefusedText(reason) if reason else CleanText(clean)


def strip_comments(code: str) -> str:
    """Drops comments but not the plan lines, which come first."""
    plan = [line.rstrip() for line in plan_lines(code)]
    lines = [line.rstrip() for line in without_comments(body_of(code)).splitlines() if line.strip()]
    return "\n".join([*plan, *lines]) + "\n"


def _tokens(text: str) -> list[str]:
    """Words, numbers and `_JOINED` whole, all else by characters."""
    found: list[str] = []
    for token in code_tokens(text):
        whole = token in _JOINED or token[0] not in _OPERATORS or token[1:2].isdigit()
        found += [token] if whole else token
    return found


def _hidden_character(code: str) -> str | None:
    """The first that shows as nothing, ends a line or turns the text around it, or is half of a surrogate pair."""
    kept = code.replace("\n", "").replace("\r", "").replace("\t", "")
    if kept.isprintable():
        return None
    found = next((c for c in kept if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")), None)
    return None if found is None else f"U+{ord(found):04X}"


def _characters(body: str) -> str | None:
    if re.search(r"[^\n\t -~]", body):
        return "only printable ASCII is allowed in code"
    if found := next((d for d in _DIGRAPHS if d in body), None):
        return f"{found!r}: tokens must be written out"
    if "\\" in body:
        return "a backslash is not allowed: lines are not continued and nothing needs an escape"
    if re.search(r"\[\s*\[", body):
        return "attributes are not allowed"
    without_linkage = body.replace('extern "C"', "extern_c")
    if '"' in without_linkage:
        return "string literals are not allowed"
    if re.search(r"(?<![0-9a-fA-F])'|'(?![0-9a-fA-F])", body):
        return _NO_CHARACTERS
    return None


def _directives(body: str) -> str | None:
    for line in body.splitlines():
        if not line.lstrip().startswith("#"):
            continue
        if not _DIRECTIVE.match(line.strip()):
            return (
                f"{line.strip()[:60]!r}: of the preprocessor only #pragma unroll, #define and #undef are allowed"
            )
        macro = _MACRO.match(line)
        if macro and _NO_MACROS.fullmatch(macro[1]):
            return f"{line.strip()[:60]!r}: {macro[1]} may not be redefined"
        if macro and "#" in line[macro.end() :]:
            return f"{line.strip()[:60]!r}: '#': tokens must be written out"
        if hidden := _NOT_IN_MACROS.intersection(_tokens(line)):
            return f"{line.strip()[:60]!r}: {min(hidden)} may not hide in a macro"
    return None


def _words(tokens: list[str]) -> str | None:
    if ("goto", "*") in pairwise(tokens):
        return "'goto *': a jump to an address is not allowed"
    for token in dict.fromkeys(tokens):
        if token[0] == "'":
            return _NO_CHARACTERS
        if reason := _FORBIDDEN.get(token):
            return f"{token!r}: {reason}"
        if (number := token.lstrip("."))[:1].isdigit() and len(number) > MAX_NUMBER:
            return f"a number of {len(number)} characters, at most {MAX_NUMBER} are allowed"
        if token == "##":
            return "'##': tokens must be written out"
        if token == "<<<":
            return "a kernel launch in the code: launches stand in the plan lines only"
        if token.startswith(_PREFIXES):
            return f"{token!r}: {next(r for prefix, r in _FORBIDDEN_PREFIX.items() if token.startswith(prefix))}"
    return None


def _runs(tokens: list[str]) -> str | None:
    """What no kernel has and what takes readers behind this gate long: names and rows of brackets without end."""
    if (longest := max((len(token) for token in tokens if is_word(token)), default=0)) > MAX_WORD:
        return f"a name of {longest} characters, at most {MAX_WORD} are allowed"
    for token, run in groupby(tokens):
        if token in "()[]{}<>" and (count := sum(1 for _ in run)) > MAX_BRACKETS:
            return f"{count} times {token!r} one behind the other, at most {MAX_BRACKETS} are allowed"
    return None
