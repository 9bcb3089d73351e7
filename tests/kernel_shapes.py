"""Bad shapes of text: one thing again and again, as a model writes that has lost its way, or an attacker."""

from __future__ import annotations

from collections.abc import Callable

LIMIT_S = 0.5  # of CPU time, that any reader may take for any shape
LINE, LINES = 1900, 1400  # what the text gate lets pass
HEAD = "// launch: k<<<1, 32>>>(in0, out0)\n__global__ void k(const f32* in0, f32* out0) {\n"
SECTIONS = "## Performance Analysis\na\n## Algorithm Design\nb\n## Code\n"

UNITS = {
    "blanks": " ",
    "tabs": "\t",
    "line_ends": "\n",
    "carriage_returns": "\r",
    "line_separators": "\u2028",
    "parentheses": "(",
    "closing_parentheses": ")",
    "braces": "{",
    "closed_braces": "{}",
    "squares": "[",
    "quotes": '"',
    "ticks": "'",
    "backslashes": "\\",
    "continued_lines": "\\\n",
    "open_comments": "/* ",
    "comments_in_a_row": "/**/",
    "slashes": "//",
    "hashes": "# ",
    "definitions": "#define a b\n",
    "macros": "#define f(x) x\n",
    "pragmas": "#pragma unroll ",
    "less": "<",
    "greater": ">",
    "templates": "a<",
    "digits": "1",
    "hexadecimal": "0x",
    "digits_with_ticks": "1'",
    "points": ".",
    "ones": "1 ",
    "words": "a a ",
    "letters": "a",
    "accents": "\u00e9",
    "commas": "1,",
    "equal_signs": "=",
    "sums": "1.5f+",
    "products": "1.5f*",
    "nested_sums": "1.5f*(2.0f+",
    "comparisons": "x==1 ",
    "compared_blanks": "x )\t",
    "remainders": "x%4==",
    "linkage": 'extern "C" ',
    "raw_strings": 'R"',
    "kernels": "__global__ ",
    "open_kernels": "__global__ k(",
    "launch_bounds": "__launch_bounds__(",
    "functions": "f(x){return x;}",
    "open_functions": "f(x){return ",
    "calls": "f(1.0f,",
    "calls_of_long_numbers": "f(111111111111111111111111111111,",
    "device_functions": "__device__ f() ",
    "device_words": "__device__ ",
    "device_blocks": "__device__ ({ ",
    "constants": "constexpr ",
    "named_constants": "constexpr x ",
    "static_words": "static ",
    "floats": "float x = 1.0f;",
    "open_floats": "float x=",
    "whole_numbers": "int x=",
    "casts": "(int)",
    "casts_to_float": "(float)",
    "compared_casts": "(float)<",
    "open_casts": "int(",
    "roundings": "round_to<bf16>(1.5",
    "shared_memory": "extern __shared__ a ",
    "aligned_memory": "extern __shared__ alignas(",
    "tables": "{1,2,",
    "sizes": "sizeof(",
    "exponentials": "expf(1.0",
    "powers": "ldexp(1.0,",
    "products_and_sums": "fmaf(1.0f,",
    "sections": "## a\n",
    "section_marks": "## ",
    "fences": "```cuda\n",
    "ticks_of_fences": "```",
    "launches": "// launch: k<<<1, 32>>>(in0, out0)\n",
    "open_launches": "// launch: k<<<(",
    "scratch": "// scratch: s0 f32[d0]\n",
    "open_scratch": "// scratch: s0 f32[",
}
RUNS = {
    "section_and_blanks": ("## a", " ", "x"),
    "kernel_and_blanks": ("__global__ k", " ", "x"),
    "directive_and_blanks": ("#", " ", "x"),
    "launch_and_blanks": ("// launch: k<<<1, 2>>>(in0)", " ", "x"),
    "nested_plan": ("// launch: k<<<", "(", ", 32>>>(in0, out0)"),
    "negated_plan": ("// launch: k<<<", "-", "1, 32>>>(in0, out0)"),
    "sum_in_plan": ("// launch: k<<<", "1+", "1, 32>>>(in0, out0)"),
}
NUMBERED: dict[str, Callable[[int], str]] = {
    "names": lambda i: f"a{i} ",
    "named_floats": lambda i: f"float a{i} = {i}.5f; ",
    "doubled_names": lambda i: f"float a{i} = 1.5f*a{i + 1}*a{i + 1}; ",
    "nested_macros": lambda i: f"#define A{i} (A{i + 1} + 1.5f)\n",
    "called_functions": lambda i: f"float f{i}(float x){{return x*1.5f;}} f{i}(2.0f) ",
    "numbers": lambda i: f"{70001 + i} >> {i % 99} ",
}
SHAPES = (*UNITS, *RUNS, *NUMBERED)


def shape(name: str, size: int) -> str:
    """About `size` characters of it."""
    if name in RUNS:
        head, unit, tail = RUNS[name]
        return head + unit * ((size - len(head + tail)) // len(unit)) + tail
    if name in NUMBERED:
        one = NUMBERED[name]
        return "".join(one(i) for i in range(size // len(one(99))))[:size]
    return (UNITS[name] * (size // len(UNITS[name]) + 1))[:size]


def in_kernel(name: str, size: int = 45 * 1024) -> str:
    """A kernel of it with no more lines, and no longer ones, than the text gate lets pass."""
    lines: list[str] = []
    for line in shape(name, size).splitlines():
        lines += [line[i : i + LINE] for i in range(0, len(line), LINE)] or [""]
    return HEAD + "\n".join(lines[:LINES]) + "\n}\n"
