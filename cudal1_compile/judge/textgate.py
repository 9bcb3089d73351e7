"""Gate 1: refuses a candidate by its text alone, before anything is compiled.

    code -> strip_comments -> words that device code has no need of -> declarations outside functions -> clean code

What passes is device functions, kernels, types and small constants: no includes, no inline assembly, no host
code, no state that outlives a launch, no tables of answers. The stripped code that comes back is what is built
and cached, so that no comment reaches a reader further on. This gate knows C++ by its tokens only; what it
cannot see (a bad index, a race) is for the gates behind it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

MAX_BYTES = 48 * 1024
MAX_LINES = 1500
MAX_INITIALISERS = 64  # elements in one pair of braces: more is a table of answers

_FORBIDDEN = {
    "asm": "inline assembly is not allowed",
    "__asm__": "inline assembly is not allowed",
    "__asm": "inline assembly is not allowed",
    "__managed__": "managed memory is state that outlives a launch",
    "__constant__": "constant memory can be written through a cast; use constexpr within the kernel",
    "__host__": "host code is not allowed",
    "thread_local": "thread_local is state that outlives a launch",
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
    "_Pragma": "only #pragma unroll is allowed",
    "__pragma": "only #pragma unroll is allowed",
    "main": "host code is not allowed",
    "std": "the standard library is not available",
    "syscall": "host code is not allowed",
}
_FORBIDDEN_PREFIX = {
    "cuda": "the CUDA runtime is not available in a kernel",
    "cu_": "the CUDA runtime is not available in a kernel",
    "__nvvm": "compiler intrinsics of NVVM are not allowed",
    "__builtin_": "compiler builtins are not allowed",
    "__sync_": "host builtins are not allowed",
    "__atomic": "host builtins are not allowed",
    "__tsan": "names of the judge are not allowed",
    "__assert": "assert is not allowed",
    "CUDAL1": "names of the judge are not allowed",
    "cudal1_": "names of the judge are not allowed",
    "globaltimer": "reading clocks is not allowed",
}
_TOKEN = re.compile(r"[A-Za-z_]\w*|<<<|##|&&|0[xX][0-9a-fA-F']+|[0-9][\w.']*|::|->|\S")
_NOT_IN_MACROS = {"__device__", "__global__", "__shared__", "static", "extern", "{", "}"}
_QUALIFIERS = ("__device__", "inline", "__forceinline__", "__inline__", "__noinline__")
_DIGRAPHS = ("<%", "%>", "<:", ":>", "%:", "??")
# a macro of such a name changes what the rest of the source says, the judge's own lines included
_NO_MACROS = re.compile(
    "__.*|bool|break|case|char|const|constexpr|continue|decltype|default|do|double|else|enum|extern|float|for|goto|if|"
    "inline|int|long|operator|return|short|signed|sizeof|static|static_assert|struct|switch|template|typedef|typename|"
    "union|unsigned|using|void|volatile|while|DIMS|Signature|pointers|bytes"
)
_ARRAY = "a constant array outside a function outlives a launch: put it into the kernel, without static"
_SIZE = re.compile(r"[dk]\d+|(?:in|out)\d+_[dk]\d+")  # constants of the preamble
_MACRO = re.compile(r"\s*#\s*(?:define|undef)\s+(\w+)")
_PLAN = ("// launch:", "// scratch:")
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
    clean = strip_comments(code)
    body = "\n".join(line for line in clean.splitlines() if not line.startswith(_PLAN))
    reason = _characters(body) or _directives(body) or _words(body)
    if reason is None:
        tokens = _TOKEN.findall(re.sub(r"^\s*#.*$", "", body, flags=re.M))
        reason = _initialisers(tokens) or _static(tokens) or _declarations(tokens) or _addresses(tokens)
    return RefusedText(reason) if reason else CleanText(clean)


def strip_comments(code: str) -> str:
    """Drops comments but not the plan lines; strings are refused later, so they need no care here."""
    plan = [line.rstrip() for line in code.splitlines() if line.startswith(_PLAN)]
    rest = "\n".join("" if line.startswith(_PLAN) else line for line in code.splitlines())
    # whichever comment opens first wins, as in C++: `// /*` and `/* // */`
    rest = re.sub(r"//[^\n]*|/\*.*?(?:\*/|\Z)", " ", rest, flags=re.S)
    lines = [line.rstrip() for line in rest.splitlines() if line.strip()]
    return "\n".join([*plan, *lines]) + "\n"


def _characters(body: str) -> str | None:
    if any(ord(c) > 126 or (ord(c) < 32 and c not in "\n\t") for c in body):
        return "only printable ASCII is allowed in code"
    if found := next((d for d in _DIGRAPHS if d in body), None):
        return f"{found!r}: tokens must be written out"
    if "\\" in body:
        return "a backslash is not allowed: lines are not continued and nothing needs an escape"
    without_linkage = body.replace('extern "C"', "extern_c")
    if '"' in without_linkage:
        return "string literals are not allowed"
    if re.search(r"(?<![0-9a-fA-F])'|'(?![0-9a-fA-F])", body):
        return "character literals are not allowed"
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
        if hidden := _NOT_IN_MACROS.intersection(_TOKEN.findall(line)):
            return f"{line.strip()[:60]!r}: {min(hidden)} may not hide in a macro"
    return None


def _words(body: str) -> str | None:
    for token in _TOKEN.findall(body):
        if reason := _FORBIDDEN.get(token):
            return f"{token!r}: {reason}"
        if token == "##":
            return "'##': tokens must be written out"
        if token == "<<<":
            return "a kernel launch in the code: launches stand in the plan lines only"
        for prefix, reason in _FORBIDDEN_PREFIX.items():
            if token.startswith(prefix):
                return f"{token!r}: {reason}"
    return None


def _static(tokens: list[str]) -> str | None:
    """`static` may precede a constexpr scalar, and the qualifiers of a function outside one; the rest is state."""
    depth = 0
    for i, (token, following) in enumerate(pairwise([*tokens, ""])):
        depth += (token == "{") - (token == "}")
        if depth and token == "__device__" and not _opens_function(tokens[i:]):
            return f"{token!r} within a function: such a variable is state that outlives a launch"
        if token == "static" and following != "constexpr" and (depth or following not in _QUALIFIERS):
            return f"'static {following}': a static variable is state that outlives a launch"
        if token == "static" and following == "constexpr" and "[" in _declarator(tokens[i:]):
            return _ARRAY
    return None


def _declarator(tokens: list[str]) -> list[str]:
    """A declaration up to its value."""
    ends = (i for i, token in enumerate(tokens) if token in ("=", "{", "(", ";"))
    return tokens[: next(ends, len(tokens))]


def _addresses(tokens: list[str]) -> str | None:
    """Constants of a scope wider than a function lie in device memory, where a cast could make them counters."""
    constants = {d[-1] for i, t in enumerate(tokens) if t == "constexpr" for d in [_declarator(tokens[i:])]}
    for i, token in enumerate(tokens):
        if token not in constants and not _SIZE.fullmatch(token):
            continue
        before = tokens[:i]
        while before[-1:] == ["("]:
            before.pop()
        unary = before[-1:] == ["&"] and not _ends_operand(before[:-1])
        if unary or (before[-2:-1] in (["&"], ["&&"]) and before[-1] in ")>"):
            return f"the address of {token!r}: a constant has none"
    return None


def _ends_operand(tokens: list[str]) -> bool:
    """Whether an `&` after these tokens is the operation and not the address, as after (int*) or (P)."""
    last = tokens[-1] if tokens else ""
    cast = last == ")" and (tokens[-2:-1] in (["*"], ["&"]) or tokens[-3:-2] == ["("])
    return re.fullmatch(r"\w+|[)\]]", last) is not None and last != "return" and not cast


def _opens_function(tokens: list[str]) -> bool:
    """Whether a declaration is that of a function with a body: name ( ... ) [const] {."""
    depth = 0
    closed = False
    for token in tokens:
        if depth == 0 and token in (";", "=", "["):
            return False
        if depth == 0 and token == "{":
            return closed
        depth += (token == "(") - (token == ")")
        if depth == 0:
            closed = token == ")" or (closed and token == "const")
    return False


def _initialisers(tokens: list[str]) -> str | None:
    """Counts commas directly within each pair of braces that initialises a variable."""
    open_braces: list[int] = []
    for token in tokens:
        if token == "{":
            open_braces.append(0)
        elif token == "}" and open_braces:
            if open_braces.pop() >= MAX_INITIALISERS:
                return f"a constant table of over {MAX_INITIALISERS} elements is not allowed"
        elif token == "," and open_braces:
            open_braces[-1] += 1
    return None


def _declarations(tokens: list[str]) -> str | None:
    """Walks the declarations outside functions: each is a function with a body, a type or a small constant."""
    head: list[str] = []
    i = 0
    while i < len(tokens):
        token = tokens[i]
        if token == "{":
            end = _closing(tokens, i)
            if end is None:
                return "braces do not match"
            reason, after = _braced(head, tokens, end)
            if reason:
                return reason
            head, i = [], after
            continue
        if token == ";":
            if reason := _plain(head):
                return reason
            head = []
        elif token == "}":
            return "braces do not match"
        else:
            head.append(token)
        i += 1
    return f"{_show(head)} is not a whole declaration" if head else None


def _closing(tokens: list[str], start: int) -> int | None:
    depth = 0
    for i in range(start, len(tokens)):
        depth += (tokens[i] == "{") - (tokens[i] == "}")
        if depth == 0:
            return i
    return None


def _braced(head: list[str], tokens: list[str], end: int) -> tuple[str | None, int]:
    """A declaration up to its brace: the refusal, if any, and where the next declaration starts."""
    if not head:
        return "a block outside a function", end + 1
    kind = _without_template(head)
    if kind and kind[0] in ("struct", "enum", "union", "class"):
        if end + 1 < len(tokens) and tokens[end + 1] == ";":
            return None, end + 2
        return f"{_show(head)}: a type may not declare a variable with it", end + 1
    if head[-1] == ")" and "=" not in _outside_brackets(head):
        if "__global__" in head or "__device__" in head or "constexpr" in head:
            return None, end + 1
        return f"{_show(head)}: host code is not allowed; mark the function __device__", end + 1
    if end + 1 >= len(tokens) or tokens[end + 1] != ";":
        return f"{_show(head)} is not a function, type or constant", end + 1
    return _variable(head), end + 2


def _plain(head: list[str]) -> str | None:
    """A declaration that ends in a semicolon."""
    if not head or head[0] in ("using", "typedef", "static_assert"):
        return None
    kind = _without_template(head)
    if kind and kind[0] == "using":
        return None
    if "__shared__" in head:
        return None if head[0] == "extern" else f"{_show(head)}: only extern __shared__ may stand outside a kernel"
    if "(" in _outside_brackets(head) and "=" not in _outside_brackets(head):
        return f"{_show(head)}: a declaration without a body is not allowed"
    return _variable(head)


def _variable(head: list[str]) -> str | None:
    if "__device__" in head:
        return f"{_show(head)}: a __device__ variable is state that outlives a launch; declare scratch"
    if "[" in _declarator(head):
        return _ARRAY
    if "constexpr" in head:
        return None
    if "const" in head and "*" not in head and "&" not in head:
        return None
    return f"{_show(head)}: a variable outside a function must be constexpr"


def _without_template(head: list[str]) -> list[str]:
    if not head or head[0] != "template":
        return head
    depth = 0
    for i, token in enumerate(head[1:], 1):
        depth += (token == "<") - (token == ">")
        if depth == 0:
            return head[i + 1 :]
    return []


def _outside_brackets(head: list[str]) -> list[str]:
    """Tokens outside template brackets and parentheses, with the parentheses themselves."""
    kept: list[str] = []
    depth = 0
    for token in _without_template(head):
        if token == ")":
            depth -= 1
        if depth == 0:
            kept.append(token)
        if token == "(":
            depth += 1
    return kept


def _show(head: list[str]) -> str:
    text = " ".join(head)
    return repr(text if len(text) <= 60 else text[:57] + "...")
