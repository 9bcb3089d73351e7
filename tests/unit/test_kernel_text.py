"""The tokeniser: no character is lost, and codes are equal where a compiler finds no difference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal1_compile.kernel.text import (
    MAX_CODE_BYTES,
    body_of,
    code_tokens,
    folded,
    is_comment,
    kernels,
    lexemes,
    normalise,
    normalised_digest,
    plan_lines,
    without_comments,
)

CODE = """// launch: k<<<cdiv(d0, 256), 256>>>(in0, out0)
#define TWICE(x) ((x) * 2)
__global__ void __launch_bounds__(256) k(const f32* in0, f32* out0 DIMS) {
    int i = blockIdx.x * 256 + threadIdx.x;
    #pragma unroll
    if (i < d0) st(out0 + i, ld(in0 + i) + 1.5e-3f);
}
"""
PIECES = [
    "//",
    "/*",
    "*/",
    '"',
    "'",
    "\\",
    "\n",
    " ",
    "#",
    "1",
    "'0",
    ".5",
    "e",
    "+",
    "-",
    "<",
    ">",
    "=",
    "k",
    "$",
    "(",
]
texts = st.lists(st.sampled_from(PIECES) | st.characters(), max_size=40).map("".join)


@given(texts)
def test_lexemes_are_the_whole_text(text: str) -> None:
    assert "".join(lexemes(text)) == text


@given(texts)
def test_tokens_apart_by_blanks_are_the_same_tokens(text: str) -> None:
    tokens = code_tokens(text)
    whole = [t for t in tokens if t[0] not in "\"'\\"]  # what is not closed ends where its line does
    assert code_tokens("\n".join(whole)) == whole


@given(texts)
def test_without_comments_there_are_none(text: str) -> None:
    found = without_comments(text)
    assert [x for x in lexemes(text) if not is_comment(x) and not x.isspace()] == code_tokens(text)
    assert len(found) <= len(text)


def test_tokens_are_those_of_the_language() -> None:
    assert code_tokens("a+++b>>=c") == ["a", "++", "+", "b", ">>=", "c"]
    assert code_tokens("1'000.5e-3f .5f 0x1p-3 1.") == ["1'000.5e-3f", ".5f", "0x1p-3", "1."]
    assert code_tokens("f(x)/* // */-y // z\n'\\''\"//\"") == ["f", "(", "x", ")", "-", "y", "'\\''", '"//"']
    assert code_tokens("a /* never closed; b") == ["a"]
    assert code_tokens("k<<<1>>>::x->y&&z") == ["k", "<<<", "1", ">>>", "::", "x", "->", "y", "&&", "z"]


def test_the_plan_is_found_wherever_it_stands() -> None:
    code = f"int x;\n{CODE}/*\n// scratch: s0 f32[1]\n*/ int y;"
    assert plan_lines(code) == [CODE.splitlines()[0], "// scratch: s0 f32[1]"]
    assert len(body_of(code).split("\n")) == len(code.splitlines())
    assert folded(body_of("a  \t b\n\n\n // c\n d /* e */ f")) == "a b\nd f"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("blockIdx.x * 256", "blockIdx.x*256"),
        ("\n    int i", "\n\n\tint\n i"),
        ("st(out0", "st( /* here */ out0"),
        ("int i =", "int i = // why\n"),
        ("+ threadIdx.x", "+ \\\n threadIdx.x"),
        ("}\n", "}\n\n\n// the end"),
        ("k<<<cdiv(d0, 256), 256>>>", "k<<<cdiv( d0,256 ) , 256>>>"),
        ("(in0, out0)\n", "(in0,out0)  \n"),
        ("#define TWICE(x) ((x) * 2)", "  # /* twice */ define TWICE(x) ( (x)*2 ) // so"),
    ],
)
def test_another_spelling_has_the_same_digest(old: str, new: str) -> None:
    assert old in CODE
    assert normalised_digest(CODE.replace(old, new)) == normalised_digest(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1.5e-3f", "1.5e-2f"),
        ("1.5e-3f", "1.5e -3f"),
        ("+ 1.5", "++ 1.5"),
        ("i < d0", "i <= d0"),
        ("i < d0", "i < d0$"),
        ("(in0, out0)\n", "(out0, in0)\n"),
        ("k<<<", "k <<<"),
        ("256), 256", "256), 128"),
        ("int i", "inti"),
        ("// launch", "// lunch"),
        ("* 2)\n", "* 2) "),
        ("#pragma unroll\n", "#pragma unroll "),
        ("\n#define", " #define"),
    ],
)
def test_another_kernel_has_another(old: str, new: str) -> None:
    assert old in CODE
    assert normalised_digest(CODE.replace(old, new)) != normalised_digest(CODE)


def test_a_division_in_the_plan_is_no_comment() -> None:
    halves, quarters = (f"// launch: k<<<d0 // {n}, 32>>>(in0, out0)\n" for n in (2, 4))
    assert normalised_digest(halves) != normalised_digest(quarters)


def test_operators_are_not_put_together() -> None:
    assert len({normalise(code) for code in ("a++ +b", "a+ ++b", "a+ + +b")}) == 3
    assert normalise('s = "a  b";') != normalise('s = "a b";')


def test_what_no_code_is_has_a_digest_too() -> None:
    long = "x " * MAX_CODE_BYTES
    assert len({normalised_digest(text) for text in ("\ud800", "\ud801", long, long + " ")}) == 4


def test_kernels_and_their_launch_bounds() -> None:
    code = """
    __global__ void a(f32* x);
    template <int N> __global__ void __launch_bounds__(128, 2) b (f32* x) { c(x); }
    __launch_bounds__(64) __global__ void d(f32* x) {}
    __device__ void e(f32* x) {}
    __global__ void __launch_bounds__(N) f(f32* x) {}  // __global__ void g(f32* x)
    """
    assert kernels(code) == {"a": None, "b": 128, "d": 64, "f": None}
