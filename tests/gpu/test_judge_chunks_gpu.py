"""Large regions chunk by chunk on the device: eager's results are right, and the memory is what the plan says."""

from __future__ import annotations

import pytest
import torch

from cudal1_compile.judge.inputs.make import make_inputs
from cudal1_compile.judge.oracle.chunk_plan import chunk_plan
from cudal1_compile.judge.oracle.chunks import chunked
from cudal1_compile.judge.oracle.compare import why_wrong
from cudal1_compile.judge.oracle.memory import oracle_bytes
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.text import parse_program

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
LIMIT_BYTES = 256 << 20
REGIONS = {
    "log-softmax over all": """dims d0=8192 d1=8192
in0 f32[d0,d1]
t0 f32[] = logsumexp(in0) over d0,d1
t1 f32[d0,d1] = sub(in0, t0)
out0 f32[d0,d1] = t1
""",
    "batch norm": """dims d0=64 d1=16 d2=256 d3=256
in0 f32[d0,d1,d2,d3]
t0 f32[d1] = mean(in0) over d0,d2,d3
t1 f32[d1] = var(in0, 0.0) over d0,d2,d3
t2 f32[d1] = rsqrt(t1)
t3 f32[d0,d1,d2,d3] = sub(in0, t0)
t4 f32[d0,d1,d2,d3] = mul(t3, t2)
t5 f32[d0,d1,d2,d3] = abs(t4)
t6 f32[] = mean(t5) over d0,d1,d2,d3
out0 f32[d0,d1,d2,d3] = t4
out1 f32[] = t6
""",
    "a scan": "dims d0=67108864\nin0 f32[d0]\nt0 f32[d0] = cumsum(in0) along d0\nout0 f32[d0] = t0\n",
    "a position": "dims d0=67108864\nin0 bf16[d0]\nt0 bf16[d0] = mul(in0, 3.1)\n"
    "t1 i64[] = argmax(t0) over d0\nout0 i64[] = t1\n",
    "a convolution of one sample": """dims d0=32 d1=32 d2=1048576 d3=1048576 k0=5
in0 f32[d0,d2]
in1 f32[d1,d0,k0]
t0 f32[d1,d3] = dot(in0[d2=d3+k0-2], in1) over d0,k0
t1 f32[d1] = mean(t0) over d3
t2 f32[d1,d3] = sub(t0, t1)
out0 f32[d1,d3] = t2
""",
}


@pytest.mark.parametrize("name", REGIONS)
def test_eager_is_right_by_chunks_within_the_limit(name: str) -> None:
    program = parse_program("region v1\n" + REGIONS[name])
    assert oracle_bytes(program, {}) > 8 * LIMIT_BYTES
    plan = chunk_plan(program, {}, LIMIT_BYTES)
    inputs = make_inputs(program, "normal", 7, DEVICE)
    got = evaluate(program, inputs)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    seen = [0 for _ in got]
    for part in chunked(program, inputs, {}, plan):
        assert why_wrong(part.of(got[part.output]), part.expected) is None
        seen[part.output] += part.expected.want.numel()
    assert seen == [x.numel() for x in got]
    assert torch.cuda.max_memory_allocated() - before <= LIMIT_BYTES
