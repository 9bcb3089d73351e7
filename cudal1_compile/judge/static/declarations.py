"""The part of the text gate that reads declarations: no state that outlives a launch, no tables of answers.

tokens of a candidate, comments and preprocessor lines gone -> why they are refused, or None
"""

from __future__ import annotations

import re
from itertools import pairwise, takewhile

MAX_INITIALISERS = 64  # elements in one pair of braces: more is a table of answers

_QUALIFIERS = ("__device__", "inline", "__forceinline__", "__inline__", "__noinline__")
_STORAGE = ("__device__", "__shared__", "__constant__", "__managed__", "static", "extern", "thread_local")
_ARRAY = "a constant array outside a function outlives a launch: put it into the kernel, without static"
_ENDS = ("=", "{", "(", ";")  # of a declaration before its value
_SIZE = re.compile(r"[dk]\d+|(?:in|out)\d+_[dk]\d+")  # constants of the preamble


def refuse_declarations(tokens: list[str]) -> str | None:
    """Constants within functions, functions and types pass; variables that live longer do not."""
    return (
        _macro_arguments(tokens)
        or _initialisers(tokens)
        or _static(tokens)
        or _declarations(tokens)
        or _addresses(tokens)
    )


def _macro_arguments(tokens: list[str]) -> str | None:
    """A word that declares may not stand in parentheses: a macro could put it before any declaration."""
    open_brackets: list[str] = []
    for token in tokens:
        if token in ("(", "{"):
            open_brackets.append(token)
        elif token in (")", "}") and open_brackets:
            open_brackets.pop()
        elif token in _STORAGE and open_brackets[-1:] == ["("]:
            return f"{token!r} in parentheses: a macro may not place it"
    return None


def _static(tokens: list[str]) -> str | None:
    """`static` may precede a constexpr scalar, and the qualifiers of a function outside one; the rest is state."""
    depth = 0
    functions = _functions(tokens)
    declarators = _declarators(tokens)
    for i, (token, following) in enumerate(pairwise([*tokens, ""])):
        depth += (token == "{") - (token == "}")
        if depth and token == "__device__" and i not in functions:
            return f"{token!r} within a function: such a variable is state that outlives a launch"
        if token == "static" and following != "constexpr" and (depth or following not in _QUALIFIERS):
            return f"'static {following}': a static variable is state that outlives a launch"
        if token == "static" and following == "constexpr" and declarators[i][1]:
            return _ARRAY
    return None


def _declarators(tokens: list[str]) -> dict[int, tuple[str, bool]]:
    """Of each `static` and `constexpr`: the last token before a value, and whether a bracket comes before it."""
    found: dict[int, tuple[str, bool]] = {}
    last, is_array = "", False
    for i in reversed(range(len(tokens))):  # from the end, so that each token is read once
        token = tokens[i]
        last, is_array = ("", False) if token in _ENDS else (last or token, is_array or token == "[")
        if token in ("static", "constexpr"):
            found[i] = last, is_array
    return found


def _addresses(tokens: list[str]) -> str | None:
    """Constants of a scope wider than a function lie in device memory, where a cast could make them counters."""
    constants = {last for i, (last, _) in _declarators(tokens).items() if tokens[i] == "constexpr"}
    constants |= {token for token in set(tokens) if _SIZE.fullmatch(token)}
    for i, token in enumerate(tokens):
        if token not in constants:
            continue
        while i and tokens[i - 1] == "(":
            i -= 1
        before = tokens[max(0, i - 4) : i]
        unary = before[-1:] == ["&"] and not _ends_operand(before[:-1])
        if unary or (before[-2:-1] in (["&"], ["&&"]) and before[-1] in ")>"):
            return f"the address of {token!r}: a constant has none"
    return None


def _ends_operand(tokens: list[str]) -> bool:
    """Whether an `&` after these tokens is the operation and not the address, as after (int*) or (P)."""
    last = tokens[-1] if tokens else ""
    cast = last == ")" and (tokens[-2:-1] in (["*"], ["&"]) or tokens[-3:-2] == ["("])
    return re.fullmatch(r"\w+|[)\]]", last) is not None and last != "return" and not cast


def _functions(tokens: list[str]) -> set[int]:
    """Where `__device__` opens the declaration of a function with a body: name ( ... ) [const] {."""
    closing = _closing_brackets(tokens)
    opens: dict[int, bool] = {}
    for i, token in enumerate(tokens):
        if token == "__device__" and i not in opens:
            opens |= _opening(tokens, i, closing)
    return {i for i, is_function in opens.items() if is_function}


def _opening(tokens: list[str], start: int, closing: dict[int, int]) -> dict[int, bool]:
    """Whether the words `__device__` from `start` on, up to the end of a declaration, open that of a function."""
    words: list[int] = []
    closed = False
    i = start
    while i < len(tokens) and tokens[i] not in (";", "=", "[", ")", "{"):
        token = tokens[i]
        if token == "__device__":
            words.append(i)
        i = closing.get(i, len(tokens)) + 1 if token == "(" else i + 1
        closed = token == "(" or (closed and token == "const")
    return dict.fromkeys(words, closed and tokens[i : i + 1] == ["{"])


def _closing_brackets(tokens: list[str]) -> dict[int, int]:
    """Where each `(` that is closed is closed."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for i, token in enumerate(tokens):
        if token == "(":
            opened.append(i)
        elif token == ")" and opened:
            found[opened.pop()] = i
    return found


def _initialisers(tokens: list[str]) -> str | None:
    """Counts commas directly within each pair of braces; statements, whose commas are other things, end in `;`."""
    open_braces: list[int] = []
    for token in tokens:
        if token == "{":
            open_braces.append(0)
        elif token == "}" and open_braces:
            if open_braces.pop() >= MAX_INITIALISERS:
                return f"a constant table of over {MAX_INITIALISERS} elements is not allowed"
        elif token == "," and open_braces:
            open_braces[-1] += 1
        elif token == ";" and open_braces:
            open_braces[-1] = 0
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
    if "[" in takewhile(lambda token: token not in _ENDS, head):
        return _ARRAY
    if "constexpr" in head:
        return None
    if "const" in head and not {"*", "&", "&&"}.intersection(head):
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
