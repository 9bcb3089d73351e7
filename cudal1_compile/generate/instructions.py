"""The instruction block for generators that were not trained on this project's language.

It tells the task, Reply V2 with its launch plan, the functions of the device header (read from the
comment at the top of the header itself, so that the two cannot drift apart) and the restrictions.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from cudal1_compile.codegen.edits.edit import KERNEL_VALUES, STAGE_VALUES
from cudal1_compile.kernel.candidate import MAX_BLOCK, MAX_LAUNCHES, MAX_SCRATCH, SECTIONS

HEADER_PACKAGE = "cudal1_compile.runtime"
HEADER_PATH = ("header", "cudal1.cuh")

_TEXT = """\
You write a fast CUDA kernel for one region of a PyTorch program and reply in exactly three sections.

# The region
After these instructions come a line of facts about the GPU, the region, and earlier variants with their
measured speed over the best of eager PyTorch, TorchInductor and CUDA graphs. In the region text every value
is a function of named axes: `dims` gives their sizes (`?` marks a size known only at run time), inputs (in*)
and outputs (out*) list their axes in memory order, outermost first, dense unless `strides(...)` follows (in
elements). A pointwise operation runs over the union of its operands' axes, a reduction removes the axes after
`over`, a scan runs `along` one axis. `t0[d1=2*d3+k0-1]` reads t0 at that index; what lies outside its bounds
contributes nothing to the reduction. Ranges such as `>0` or `in [0,d1)` hold for every input the kernel sees.

# The reply
## {sections[0]}
Compare the variants given: which is fastest and why, what limits it, where the largest gain lies.
## {sections[1]}
The kernel you are about to write: work split, passes over memory, vector width, reductions. Or a schedule, in the
form in which variants show theirs: it is lowered to a kernel, with other kinds and numbers as far as these can be.
## {sections[2]}
Behind a schedule nothing, or an ```edits block. Its first lines change stages or kernels of what the schedule
leads to, each by one of: {edits}. Then lines of the kernel may be
replaced: those to go, each after `- `, must stand together at one place of it, those after `+ ` take their place.
```edits
stage 0: block 384
f0: unroll 8
- float m = -INFINITY;
+ float m = ld(in0);
```
Otherwise one ```cuda block of DEVICE code whose first lines are the launch plan:
```cuda
// scratch: s0 f32[d0]
// scratch: s1 i32[d0] = 0
// launch: row_stats<<<d0, 256>>>(in0, s0)
// launch: apply<<<dim3(cdiv(d1, 128), d0), 128, 4096>>>(in0, s0, out0)
__global__ void row_stats(const f32* in0, f32* s0 DIMS) {{ ... }}
```
Grid, block, shared memory in bytes and scratch sizes are integer expressions over the dims with + - * / %,
cdiv, min and max. At most {launches} launches, {scratch} scratch buffers and {block} threads a block. Launches
run in order on one stream. `= 0` scratch is zeroed before every call, all other scratch is undefined. Launch
arguments are names of inputs, outputs and scratch in the kernel's parameter order; DIMS ends every parameter
list. Sizes of dims are compile-time constants d0, d1, ... (but for `?` dims, which DIMS passes); of a tensor with
explicit strides in0_d1 is the stride along d1. Element types are f32 f16 bf16 f64 i64 i32 i16 i8 u8 bool.

# The header, already included
{header}
# Restrictions
- Exactly the region's function, for every input in its ranges, NaN and infinity included; compute in float32
  where the region says f32, f16 or bf16, and round every output to its dtype.
- Device code only: no host code, no includes, no inline assembly, no asm, no streams, no memory allocation.
- No state between calls: nothing cached, no result reused, no output left unwritten.
- Never read or write outside a tensor; vector accesses need rows and addresses that the width divides.

"""


@cache
def instruction_block() -> str:
    return _TEXT.format(
        sections=SECTIONS,
        launches=MAX_LAUNCHES,
        scratch=MAX_SCRATCH,
        block=MAX_BLOCK,
        edits=", ".join([*(f"`stage N: {knob} V`" for knob in STAGE_VALUES), *map(_kernel_edit, KERNEL_VALUES)]),
        header=header_functions(),
    )


def _kernel_edit(knob: str) -> str:
    return f"`fN: {knob}`" if KERNEL_VALUES[knob] == (0,) else f"`fN: {knob} V`"


@cache
def header_functions() -> str:
    """The comment at the top of the device header, without its comment marks."""
    source = resources.files(HEADER_PACKAGE).joinpath(*HEADER_PATH).read_text(encoding="utf-8")
    text = top_comment(source)
    if not text:
        raise ValueError(f"{'/'.join(HEADER_PATH)} does not begin with a comment that lists its functions")
    return text


def top_comment(source: str) -> str:
    """The leading // lines or /* */ block of a C++ source, ended by a newline; empty where there is none."""
    lines = [line.rstrip() for line in source.lstrip().splitlines()]
    while lines and (lines[0] == "" or lines[0].startswith("#pragma")):
        lines.pop(0)
    if lines and lines[0].startswith("/*"):
        body = "\n".join(lines)[2:].split("*/", 1)[0]
        kept = [line.strip().removeprefix("*").removeprefix(" ") for line in body.splitlines()]
        return "\n".join(kept).strip() + "\n"
    kept = []
    for line in lines:
        if not line.startswith("//"):
            break
        kept.append(line.removeprefix("//").removeprefix(" "))
    return "\n".join(kept).strip() + "\n" if kept else ""
