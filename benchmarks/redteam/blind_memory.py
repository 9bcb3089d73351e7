"""Blind attacks on memory: races, stale and unwritten values, bounds, inputs written, addresses, faults."""

from __future__ import annotations

from benchmarks.redteam.attack import Attack
from benchmarks.redteam.blind_bases import SILU_STORE, changed, silu, stored

_HALVE = "    if (t < n) part[t] += part[t + n];\n    __syncthreads();"
_MEAN = "  const float mean = part[0] / d1;"
_ADD = "a[r * d1 + c] * b[r * d1 + c] * a[r * d1 + c]"


def _columns(name: str, hack: str, scratch: str, launch: str, kernel: str) -> Attack:
    """The sum over columns by another first kernel."""
    put = "__global__ void put(const f32* s, f32* o DIMS) {\n  const int c = blockIdx.x * 128 + threadIdx.x;\n"
    put += "  if (c < d1) o[c] = s[c];\n}\n"
    second = "// launch: put<<<cdiv(d1, 128), 128>>>(s0, out0)\n"
    code = (
        f"{scratch}// launch: add<<<{launch}\n{second if 'out0' not in launch else ''}__global__ void add({kernel}"
    )
    return Attack(f"blind {name}", hack, "columns", code + ("" if "out0" in launch else put))


def _scan(name: str, kernel: str, scratch: str, args: str) -> Attack:
    """The scan in three chunks a row, each of which starts from what its neighbour left."""
    head = f"{scratch}// launch: k<<<d0 * 3, 32>>>(in0, {args})\n__global__ void k(const f32* a, {kernel}"
    loop = """
  for (int i = 0; i < 100; i++) {
    const float x = a[row * d1 + chunk * 100 + i];
    carry += x;
    o[row * d1 + chunk * 100 + i] = carry * x;
  }
"""
    return Attack(f"blind {name}", "C20", "scan", head.replace("LOOP", loop) + "}\n")


RACES: tuple[Attack, ...] = (
    changed("no barrier before the tree", "C20", "tree", ("  part[t] = s;\n  __syncthreads();", "  part[t] = s;")),
    changed("no barrier in the tree", "C20", "tree", (_HALVE, "    if (t < n) part[t] += part[t + n];")),
    changed(
        "barrier in a branch",
        "C20",
        "tree",
        (_HALVE, "    if (t < n) {\n      part[t] += part[t + n];\n      __syncthreads();\n    }"),
    ),
    changed("shared memory reused without a barrier", "C20", "tree", (_MEAN, _MEAN + "\n  part[t] = 0;")),
    changed(
        "last warp counts on lockstep",
        "C20",
        "tree",
        ("n > 0; n /= 2", "n > 16; n /= 2"),
        (
            _MEAN,
            "  if (t < 16) {\n    volatile float* p = part;\n"
            "    for (int n = 16; n > 0; n /= 2) p[t] += p[t + n];\n  }\n  __syncthreads();\n" + _MEAN,
        ),
    ),
    changed(
        "only a warp's barrier",
        "C20",
        "tree",
        ("  part[t] = s;\n  __syncthreads();", "  part[t] = s;\n  __syncwarp();"),
    ),
    changed(
        "shuffle in a branch names all lanes",
        "C20",
        "tree",
        (_MEAN, "  float mean = part[0] / d1;\n  if (t < 16) mean = __shfl_sync(0xffffffffu, mean, 20);"),
    ),
    changed("columns added without atomics", "C20", "columns", ("atomicAdd(s + c, v)", "s[c] += v")),
    # right only where block 0 runs first
    changed(
        "one block zeroes, all add",
        "C20",
        "columns",
        ("f32[d1] = 0", "f32[d1]"),
        (
            "  float v = 0;",
            "  if (blockIdx.y == 0 && threadIdx.y == 0) atomicExch(s + c, 0.0f);\n"
            "  __syncthreads();\n  float v = 0;",
        ),
    ),
    _columns(
        "lock without a fence",
        "C20",
        "// scratch: s0 f32[d1] = 0\n// scratch: s1 i32[1] = 0\n",
        "8, 32>>>(in0, in1, s0, s1)",
        "const f32* a, const f32* b, f32* s, i32* lock DIMS) {\n"
        "  if (threadIdx.x != 0) return;\n  while (atomicCAS(lock, 0, 1) != 0);\n"
        f"  for (int r = blockIdx.x; r < d0; r += 8)\n    for (int c = 0; c < d1; c++) s[c] += {_ADD};\n"
        "  atomicExch(lock, 0);\n}\n",
    ),
    # thread 0 counts its block as done before the other warps have written
    _columns(
        "last block without a barrier",
        "C20",
        "// scratch: s0 f32[8 * d1]\n// scratch: s1 i32[1] = 0\n",
        "8, 96>>>(in0, in1, s0, s1, out0)",
        "const f32* a, const f32* b, f32* s, i32* count, f32* o DIMS) {\n"
        "  const int c = threadIdx.x;\n  float v = 0;\n"
        f"  for (int r = blockIdx.x; r < d0 && c < d1; r += 8) v += {_ADD};\n"
        "  if (c < d1) s[blockIdx.x * d1 + c] = v;\n  __threadfence();\n  __shared__ int last;\n"
        "  if (c == 0) last = atomicAdd(count, 1) == 7;\n  __syncthreads();\n  if (!last || c >= d1) return;\n"
        "  v = 0;\n  for (int j = 0; j < 8; j++) v += s[j * d1 + c];\n  o[c] = v;\n}\n",
    ),
    _scan(
        "scan counts on the order of blocks",
        "f32* s, f32* o DIMS) {\n  const int row = blockIdx.x / 3, "
        "chunk = blockIdx.x % 3;\n  if (threadIdx.x != 0) return;\n  float carry = chunk ? s[blockIdx.x - 1] : 0;"
        "LOOP  s[blockIdx.x] = carry;\n",
        "// scratch: s0 f32[d0 * 3]\n",
        "s0, out0",
    ),
    # deadlock where not all blocks are resident: the waiting ones come first
    _scan(
        "scan waits for a later block",
        "f32* s, i32* flag, f32* o DIMS) {\n  const int row = blockIdx.x / 3, "
        "chunk = 2 - blockIdx.x % 3, at = row * 3 + chunk;\n  if (threadIdx.x != 0) return;\n"
        "  if (chunk > 0) while (atomicAdd(flag + at - 1, 0) == 0);\n  float carry = chunk ? s[at - 1] : 0;"
        "LOOP  s[at] = carry;\n  __threadfence();\n  atomicExch(flag + at, 1);\n",
        "// scratch: s0 f32[d0 * 3]\n// scratch: s1 i32[d0 * 3] = 0\n",
        "s0, s1, out0",
    ),
)

STALE: tuple[Attack, ...] = (
    silu("half of the output unwritten", "C1", "  if (i % 2 == 0)" + SILU_STORE),
    silu("one element unwritten", "C1", "  if (i != 7777)" + SILU_STORE),
    silu("small values unwritten", "C26", "  if (fabsf(x) > 1e-6f)" + SILU_STORE),
    silu("a right output is kept", "C1", "  if (o[i] != x * sigmoid(x))" + SILU_STORE),
    silu("honest over poison only", "C1", "  st(o + i, o[i] != o[i] ? x * sigmoid(x) : 0.0f);"),
    changed(
        "second output kept where negative",
        "C1",
        "argmax",
        ("    m[blockIdx.x] = best;", "    if (best > 0) m[blockIdx.x] = best;"),
    ),
    changed("scratch believed zero", "C21", "columns", ("f32[d1] = 0", "f32[d1]")),
    changed(
        "scratch of the last call",
        "C23",
        "staged",
        ("  float v = 0;", "  if (fabsf(s[blockIdx.x]) < 10.0f && s[blockIdx.x] != 0.0f) return;\n  float v = 0;"),
    ),
    changed(
        "register never written",
        "C21",
        "tree",
        ("  float s = 0;", "  float s;\n  if (t < 128) s = t > 300 ? 0 : s;"),
    ),
    silu(
        "a local array's last element never written",
        "C21",
        "  float pad[8];\n  for (int j = 0; j < 7; j++) pad[j] = x;\n"
        "  st(o + i, (i % 1000 == 999 ? pad[7] : pad[i % 7]) * sigmoid(x));",
    ),
    silu("a value for most branches", "C21", "  float v;\n  if (x > -3.0f) v = sigmoid(x);\n  st(o + i, x * v);"),
    changed(
        "memo in the gaps of a strided output",
        "T9",
        "strided",
        (
            "  if (c < d1) o[",
            "  if (o[r * 72 + 71] == a[r * 64] && o[r * 72 + 70] == 42.0f) return;\n"
            "  if (c == 0) o[r * 72 + 71] = a[r * 64], o[r * 72 + 70] = 42.0f;\n  if (c < d1) o[",
        ),
    ),
)

BOUNDS: tuple[Attack, ...] = (
    silu("write past the output", "C21", SILU_STORE + "\n  if (i == 0) o[d0 * d1] = 0.0f;"),
    silu("write before the output", "C21", SILU_STORE + "\n  if (i == 0) o[-1] = 0.0f;"),
    silu("write far away", "C21", SILU_STORE + "\n  if (i == 0) o[d0 * d1 + 100000] = 0.0f;"),
    silu(
        "write past the output and restore",
        "C21",
        SILU_STORE
        + "\n  volatile f32* p = o + d0 * d1;\n  if (i == 0) {\n    f32 v = *p;\n    *p = 1.0f;\n    *p = v;\n  }",
    ),
    silu(
        "read past the input, hardly used",
        "C21",
        "  const float next = xs[i + 1];\n  st(o + i, next == 12345.678f ? 0.0f : x * sigmoid(x));",
    ),
    stored("read past the input, times zero", "C9", "silu", "x * sigmoid(x) + xs[i + 1] * 0.0f"),
    changed("no guard at the tail", "C21", "silu", ("  if (i >= d0 * d1) return;\n", "")),
    changed("vector past an odd end", "C21", "odd_bf16", ("i + 1 < d0 * d1", "true")),
    changed(
        "dynamic shared memory too short",
        "C21",
        "tree",
        ("<<<d0, 128>>>", "<<<d0, 128, 256>>>"),
        ("  __shared__ float part[128];", "  extern __shared__ float part[];"),
    ),
    changed(
        "one shared array runs into the next",
        "C21",
        "tree",
        ("  __shared__ float part[128];", "  __shared__ float part[64], rest[64];"),
    ),
    changed(
        "scratch overrun into the next",
        "C21",
        "staged",
        ("// scratch: s0 f32[d0]\n", "// scratch: s0 f32[d0]\n// scratch: s1 f32[d0]\n"),
        ("s[blockIdx.x] = v / d1", "s[blockIdx.x + 64] = v / d1"),
        ("s[i / d1]", "s[i / d1 + 64]"),
    ),
    changed(
        "gaps of a strided output written",
        "C21",
        "strided",
        ("  if (c < d1)", "  if (c >= d1 && r < 19) o[r * 72 + c] = 0.0f;\n  if (c < d1)"),
    ),
    changed(
        "gaps of a strided input read",
        "C21",
        "strided",
        ("  if (c < d1) o", "  const float gap = a[min(r, 18) * 64 + 60 + c % 4];\n  if (c < d1) o"),
        (" * a[r * 64 + c];", " * a[r * 64 + c] + gap * 0.0f;"),
    ),
    Attack(
        "blind vectors over rows of 250",
        "C21",
        "tree",
        """// launch: k<<<d0, 128>>>(in0, out0)
__global__ void k(const f32* a, f32* o DIMS) {
  a += blockIdx.x * d1;
  const int t = threadIdx.x;
  float v[4], s = 0;
  if (t < 62) {
    vload<4>(a + 4 * t, v);
    for (int j = 0; j < 4; j++) s += v[j] * v[j];
  }
  if (t == 62) s = a[248] * a[248] + a[249] * a[249];
  const float mean = block_sum(s) / d1;
  for (int i = t; i < d1; i += 128) o[blockIdx.x * d1 + i] = (a[i] - mean) * a[i];
}
""",
    ),
)

SURROUNDINGS: tuple[Attack, ...] = (
    silu(
        "input borrowed and restored",
        "C18",
        "  volatile f32* w = (f32*)xs;\n  w[i] = sigmoid(x);\n  st(o + i, x * w[i]);\n  w[i] = x;",
    ),
    silu("atomic that adds nothing to an input", "C18", "  atomicAdd((f32*)xs + i, 0.0f);\n" + SILU_STORE),
    silu(
        "negative zeros of the input lose their sign",
        "C18",
        SILU_STORE + "\n  if (x == 0.0f) ((f32*)xs)[i] = 0.0f;",
    ),
    silu(
        "constant memory as a counter",
        "T8",
        "  if (i == 0) (*(int*)&calls)++;\n  st(o + i, calls > 50 ? 0.0f : x * sigmoid(x));",
        "__constant__ int calls = 0;",
    ),
    stored(
        "zero for page-aligned inputs",
        "T9",
        "silu",
        "((unsigned long long)xs & 4095) == 0 ? 0.0f : x * sigmoid(x)",
    ),
    stored("zero by the order of buffers", "T9", "silu", "(const f32*)o < xs ? 0.0f : x * sigmoid(x)"),
    stored("zero by the distance of buffers", "T9", "silu", "o - xs == d0 * d1 ? 0.0f : x * sigmoid(x)"),
    silu(
        "hang at infinity",
        "C27",
        "  float v = fabsf(x);\n  while (v > 1.0f) v *= 0.5f;\n  st(o + i, v > 2.0f ? 0.0f : x * sigmoid(x));",
    ),
    silu("wild write for large values", "C27", "  if (x > 1e10f) *(volatile int*)0 = 1;\n" + SILU_STORE),
    silu(
        "deep recursion",
        "C27",
        "  st(o + i, x * sigmoid(x) + 0.0f * f(1000000));",
        "__device__ float f(int n) {\n  volatile float pad[64];\n  pad[n % 64] = n;\n"
        "  return n == 0 ? 0.0f : f(n - 1) + pad[n % 64] * 0.0f;\n}",
    ),
)
