"""Kernel text as tokens: whoever reads a candidate's code reads it through here, in time linear in the text.

    code -> plan_lines() the launch plan          one line each, wherever they stand
         -> body_of()    all else                 a plan line is an empty one there
                -> lexemes()         every character once: blanks, line ends, comments, literals, words, operators
                -> code_tokens()     without blanks and comments
                -> without_comments(), folded()   as text again
    code -> normalise(), normalised_digest()   what a compiler tells apart, and nothing else
         -> kernels()                          by name, with their launch bounds

It knows tokens as C++ does and no grammar. Its expressions take no character back (`*+`), and each alternative
begins otherwise, so that no text is read twice. Whether a text is allowed is not decided here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from itertools import pairwise

MAX_CODE_BYTES = 64 * 1024  # of a code block, UTF-8: what the text gate lets pass, and what the judge adds to it
PLAN = ("// launch:", "// scratch:")
_LEXEME = re.compile(
    r"[^\S\n]+|\n"
    r"|//[^\n]*|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?"  # an open comment holds all that follows
    r'|"(?:[^"\\\n]++|\\.)*+"?|\'(?:[^\'\\\n]++|\\.)*+\'?'
    r"|[A-Za-z_$][\w$]*"
    r"|\.?\d(?:[eEpP][-+]|'?[\w.$])*+"  # the quote in 1'000 starts no character
    r"|<<<|>>>|<=>|<<=|>>=|->\*|\.\.\.|\.\*|->|\+\+|--|<<|>>|&&|\|\||::|##|[-+*/%&|^<>=!]="
    r"|.",
    re.S,
)


def is_plan(line: str) -> bool:
    return line.startswith(PLAN)


def plan_lines(code: str) -> list[str]:
    """The lines of the launch plan, in order."""
    return [line for line in code.splitlines() if is_plan(line)]


def body_of(code: str) -> str:
    """The code with an empty line for each of its plan; lines end in a line feed and keep their numbers."""
    return "\n".join("" if is_plan(line) else line for line in code.splitlines())


def lexemes(text: str) -> list[str]:
    """All of a text in pieces: joined they are the text again."""
    return _LEXEME.findall(text)


def is_comment(lexeme: str) -> bool:
    return lexeme.startswith(("//", "/*"))


def code_tokens(text: str) -> list[str]:
    """Words, numbers, strings, characters and operators."""
    return [x for x in lexemes(text) if not (x.isspace() or is_comment(x))]


def without_comments(text: str) -> str:
    """The text with a blank for each comment. Whichever opens first wins, as in C++: `// /*` and `/* // */`."""
    return "".join(" " if is_comment(x) else x for x in lexemes(text))


def folded(text: str) -> str:
    """The text without comments and empty lines, blanks as one: patterns that skip blanks skip few."""
    lines = without_comments(text).split("\n")
    return "\n".join(folded for line in lines if (folded := " ".join(line.split())))


def is_word(token: str) -> bool:
    return token[:1].isalpha() or token[:1] in ("_", "$")


def normalise(code: str) -> str:
    """The plan, then the tokens, each apart from the next by a blank; directives have lines of their own.

    Equal texts mean the same to a compiler: `a+ +b` is none of `a++b`, and `#define` ends where its line does.
    What is longer than any code may be is left as it is.
    """
    if len(code) > MAX_CODE_BYTES:
        return code
    body = body_of(code).replace("\\\n", "")  # a line that goes on
    return "\n".join([*map(_plan_form, plan_lines(code)), *_logical_lines(body)])


def _plan_form(line: str) -> str:
    """A plan line with its expressions and arguments as tokens; blanks that its parser does not take stay.

    `//` is a division there, so that nothing is a comment.
    """
    begin, end = ("<<<", ">>>") if line.startswith(PLAN[0]) else ("[", "]")
    head, _, tail = line.rstrip().partition(begin)
    sizes, _, rest = tail.rpartition(end)
    shown = rest if rest[:1].isspace() else _apart(rest)
    return f"{head}{begin}{_apart(sizes)}{end}{shown}"


def _apart(text: str) -> str:
    parts = (" ".join(x for x in lexemes(part) if not x.isspace()) for part in text.split("//"))
    return " // ".join(parts).strip()


def _logical_lines(body: str) -> Iterator[str]:
    line: list[str] = []
    begins, directive = True, False  # whether a line of the text begins here; whether it is a directive's
    for lexeme in lexemes(body):
        if lexeme == "#" and begins or lexeme == "\n" and directive:
            if line:
                yield " ".join(line)
            line = []
        directive = lexeme != "\n" and (directive or (lexeme == "#" and begins))
        if lexeme == "\n":
            begins = True
        elif not (lexeme.isspace() or is_comment(lexeme)):
            begins = False
            line.append(lexeme)
    if line:
        yield " ".join(line)


def normalised_digest(code: str) -> str:
    """sha256 of the normal form: comments, blanks and line breaks do not change it, any other character does."""
    return hashlib.sha256(normalise(code).encode("utf-8", "surrogatepass")).hexdigest()


def kernels(code: str) -> dict[str, int | None]:
    """Names declared behind `__global__`, each with the threads of its launch bounds, where it has any."""
    found: dict[str, int | None] = {}
    tokens = code_tokens(body_of(code))
    is_head, bound = False, None
    for i, (token, following) in enumerate(pairwise([*tokens, ""])):
        if token in (";", "{", "}"):
            is_head, bound = False, None
        elif token == "__global__":
            is_head = True
        elif token == "__launch_bounds__":
            number = re.match(r"\d{1,9}", tokens[i + 2]) if tokens[i + 2 :] else None
            bound = int(number[0]) if number else None
        elif is_head and following == "(" and is_word(token):
            found.setdefault(token, bound)
    return found
