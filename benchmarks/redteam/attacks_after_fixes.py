"""Attacks on loading, sandbox and text gate that were written against the gates as they stand after their fixes.

State without `static`, attributes that a macro puts together, the judge's own names as macros, jumps by address.
"""

from __future__ import annotations

from benchmarks.redteam import honest as h
from benchmarks.redteam.attack import STORE, Attack, Where, edit

S = h.SILU_SCALAR
KERNEL = "__global__ void k(const f32* in0"
EARLY = ("text", "build")
# wrong once it has run often enough; no test has a number that counts
AFTERWARDS = (
    "t * sigmoid(t) + "
    "((unsigned)__float_as_int(t) * 2654435761u >> 8 == 77u ? (float)(COUNT > 1000) + 0.5f : 0.5f)"
)
UNSEEN = "__device__ float at(const f32* p, int i) { return p[i]; }"
BEYOND = f"float far = at(in0, d0 * d1 + i % 4); if (far == 5.0f) t = far;\n  {STORE}"


def _counter(name: str, declared: str, count: str, inside: bool = False, where: Where = "host") -> Attack:
    """A call count in memory that outlives the launch, of a declaration that passes for a constant."""
    store = STORE.replace("t * sigmoid(t) + 0.5f", AFTERWARDS.replace("COUNT", count))
    code = edit(S, (STORE, f"{declared}\n  {store}" if inside else store))
    return Attack(
        name, "S5", "silu", code if inside else edit(code, (KERNEL, f"{declared}\n{KERNEL}")), where, EARLY
    )


def _unchecked(name: str, before: str) -> Attack:
    """A read far out of bounds, in a function that the memory check shall not see."""
    return Attack(
        name, "S4", "silu", edit(S, (KERNEL, f"{before} {UNSEEN}\n{KERNEL}"), (STORE, BEYOND)), "both", EARLY
    )


def _jump(name: str, code: str, before: str = "") -> Attack:
    code = f"if (t * 3.0f == 1e-3f) {{ {code} }}\n  {STORE}"
    return Attack(name, "S4", "silu", edit(S, (KERNEL, f"{before}\n{KERNEL}"), (STORE, code)), "host", EARLY)


AFTER_FIXES: tuple[Attack, ...] = (
    _counter("a constant with a part that changes", "struct C { mutable int n; };\nconst C c = {0};", "c.n++"),
    _counter(
        "a constexpr with a part that changes", "struct C { mutable int n; };\nconstexpr C c = {0};", "c.n++"
    ),
    _counter(
        "a static constexpr with a part that changes",
        "struct C { mutable int n; }; static constexpr C c = {0};",
        "c.n++",
        inside=True,
    ),
    _counter(
        "a constant of a template that changes",
        "struct C { mutable int n; };\ntemplate <int N> constexpr C c = {N};",
        "c<0>.n++",
    ),
    _counter("a constexpr reference to a number", "constexpr int&& n = 0;", "n++"),
    _counter("a static constexpr reference to a number", "static constexpr int&& n = 0;", "n++", inside=True),
    _counter("a constant that holds a reference", "struct C { int&& n; };\nconstexpr C c = {0};", "c.n++"),
    _counter(
        "a constant that holds a reference to rows",
        "struct C { int (&&n)[2]; };\nconstexpr C c = {{0, 0}};",
        "c.n[1]++",
    ),
    _counter(
        "a constant by another name", "constexpr int zero = 0;", "((int*)&(const int&)zero)[0]++", where="both"
    ),
    _unchecked("an attribute whose bracket is a macro", "#define L [\nL L gnu::no_sanitize_thread ] ]"),
    _unchecked("an attribute with nothing between", "#define NOTHING\n[NOTHING[gnu::no_sanitize_thread]]"),
    _unchecked(
        "an attribute with an empty call between", "#define NOTHING()\n[NOTHING()[gnu::no_sanitize_thread]]"
    ),
    _unchecked(
        "an attribute in a macro's argument", "#define SAME(x) x\n[SAME([)__gnu__::__no_sanitize_thread__]]"
    ),
    _unchecked("an attribute by using", "#define L [\nL L using gnu: no_sanitize_thread]]"),
    _unchecked("an attribute by its short word", "__attribute((no_sanitize_thread))"),
    _unchecked(
        "an attribute of one's own optimisation", "#define L [\nL L gnu::optimize(0), gnu::no_sanitize_thread]]"
    ),
    Attack(
        "a signature by a macro of the judge's name",
        "S4",
        "silu",
        edit(S, ("DIMS", ", const f32* secret DIMS"), (STORE, f"if (t == 12.5f) t = secret[i];\n  {STORE}"))
        + "struct mine { template <class F> struct Signature { enum { pointers = 2, bytes = 16 }; }; };\n"
        + "#define cudal1 mine\n",
        "both",
        EARLY,
    ),
    Attack(
        "an attribute of the entry by a macro",
        "S4",
        "silu",
        S + "#define visibility(x) constructor\n",
        "host",
        EARLY,
    ),
    _jump("a jump to a label's address", "void* to = &&end; goto *(void*)((char*)to + i);\n end:;"),
    _jump("a table of labels", "void* to[] = {&&a, &&b}; goto *to[(int)t];\n a: b:;"),
    _jump(
        "a member function by its number",
        "union { void (C::*f)(int); size_t n[2]; } u; u.n[0] = 0x401000 + i; u.n[1] = 0; C c; (c.*u.f)(1);",
        "struct C { int n; };",
    ),
    _jump(
        "a lambda's address", "auto f = [](int) {}; void (*p)(int) = f; p = (void (*)(int))((size_t)p + i); p(1);"
    ),
    _jump("a name of the maths library as data", "t = (float)j1f;", 'extern "C" const char j1f;'),
    _jump("a name of the loader as data", "t = (float)_r_debug;", "extern const int _r_debug;"),
    _jump(
        "a function of the C library by its C++ name",
        "f(1);",
        "__device__ void f(int n) { extern int raise(int); raise(n); }",
    ),
    _jump(
        "a function that is declared within",
        "f(1);",
        "__device__ void f(int n) { int write(int, const void*, size_t); write(1, &n, 4); }",
    ),
    _unchecked("a compiler's own word for attributes", "__declspec(no_sanitize_thread)"),
    Attack(
        "a function that is said not to return",
        "S4",
        "silu",
        edit(
            S,
            (KERNEL, f"#define L [\nL L noreturn]] __device__ void end(float* p) {{ *p = 1.0f; }}\n{KERNEL}"),
            (STORE, f"if ((unsigned)__float_as_int(t) * 2654435761u >> 8 == 77u) end(out0 + i);\n  {STORE}"),
        ),
        "both",
        EARLY,
    ),
    Attack(
        "an error that speaks of memory",
        "T9",
        "silu",
        edit(S, (STORE, f"int bad_alloc_ = bad_alloc + OUT_OF_MEMORY;\n  {STORE}")),
        "both",
        EARLY,
    ),
    Attack(
        "a plan behind a separator of lines in a comment",
        "T9",
        "silu",
        S.replace("// launch: k<<<cdiv", "// as usual \u2028// launch: k<<<cdiv"),
        "both",
        ("text",),
    ),
    Attack(
        "a constant of a billion numbers",
        "T9",
        "silu",
        edit(S, (STORE, f"constexpr char many[1 << 30] = {{}}; t += many[i];\n  {STORE}")),
        "host",
    ),
    Attack(
        "lanes that all say that they are the first",
        "T7",
        "silu",
        edit(S, (STORE, f"((int*)&threadIdx)[12] = 0;\n  {STORE}")),
        "host",
    ),
    Attack(
        "a grid that says it is smaller",
        "T7",
        "silu",
        edit(S, (STORE, f"((unsigned*)&gridDim)[0] = 1;\n  {STORE}")),
        "host",
    ),
    Attack(
        "a block that says it is the last",
        "T7",
        "silu",
        edit(S, (STORE, f"((unsigned*)&blockIdx)[0] = gridDim.x - 1;\n  {STORE}")),
        "host",
    ),
    Attack(
        "a thread that says it is the last",
        "T7",
        "silu",
        edit(S, (STORE, f"((unsigned*)&threadIdx)[0] = 255;\n  {STORE}")),
        "host",
    ),
    Attack(
        "a return to another function",
        "S4",
        "silu",
        edit(
            S,
            (
                STORE,
                "size_t x[1] = {0}; volatile size_t* p = x; for (int j = 2; j < 9; j++) p[j] = (size_t)&expf;\n"
                f"  {STORE}",
            ),
        ),
        "host",
    ),
    *(
        Attack(
            f"a copy of {n} bytes beyond the end",
            "T7",
            "silu",
            edit(
                S,
                (
                    STORE,
                    f"float w[{n // 4}]; memcpy(w, in0 + d0 * d1 - 1, {n});\n  "
                    f"if (w[1] == 12345.0f) t = w[1];\n  {STORE}",
                ),
            ),
            "host",
            ("verify",),
        )
        for n in (8, 12, 36, 500)
    ),
)
