"""A training step's backward between two norms, in two products and three split sums: ten buffers of scratch."""

from __future__ import annotations

import pytest
from codegen_checks import assert_no_rule_is_broken, run_on_host

from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.variants import write_variants

pytestmark = pytest.mark.usefixtures("built_quickly")

# ResNet-50's most valuable region of its step, of a smaller image; by eight buffers only sums in one pass had room
REGION = """region v1
dims d0=640 d1=64 d2=32
in0 f32[d0,d1]
in1 f32[d0,d1]
in2 f32[d2,d1]
in3 f32[d0,d2]
in4 f32[d0,d1]
in5 f32[d1]
in6 f32[d1]
in7 f32[d0,d1]
in8 f32[d1]
in9 f32[d1]
t0 bool[d0,d1] = le(in0, 0.0)
t1 f32[d0,d1] = dot_tf32(in2, in3) over d2
t2 f32[d0,d1] = add(in1, t1)
t3 f32[d0,d1] = where(t0, 0.0, t2)
t4 f32[d1] = sum(t3) over d0
t5 f32[d0,d1] = sub(in4, in5)
t6 f32[d0,d1] = mul(t3, t5)
t7 f32[d1] = sum(t6) over d0
t8 f32[d1] = mul(t7, 0.0015625)
t9 f32[d1] = mul(in6, in6)
t10 f32[d1] = mul(t8, t9)
t11 f32[d0,d1] = mul(t5, t10)
t12 f32[d0,d1] = sub(t3, t11)
t13 f32[d1] = mul(t4, 0.0015625)
t14 f32[d0,d1] = sub(t12, t13)
t15 f32[d0,d1] = sub(in7, in8)
t16 f32[d0,d1] = mul(t3, t15)
t17 f32[d1] = sum(t16) over d0
t18 f32[d1] = mul(t17, 0.0015625)
t19 f32[d1] = mul(in9, in9)
t20 f32[d1] = mul(t18, t19)
t21 f32[d0,d1] = mul(t15, t20)
t22 f32[d0,d1] = sub(t3, t21)
t23 f32[d0,d1] = sub(t22, t13)
t24 f32[d1,d2] = dot_tf32(in0, in3) over d0
out0 f32[d1] = t4
out1 f32[d0,d1] = t14
out2 f32[d0,d1] = t23
out3 f32[d2,d1] = t24
out4 f32[d1] = t17
out5 f32[d1] = t7
"""


def test_sums_are_split_beside_products_though_that_takes_ten_buffers() -> None:
    program = parse_program(REGION)
    wide = [v for v in write_variants(program, 200) if len(v.candidate.scratch) > 8]
    assert len(wide) > 8
    some = {str(n): v.candidate for n, v in enumerate(wide[:: len(wide) // 4])}
    assert run_on_host(program, some) == (set(some), {})
    assert_no_rule_is_broken(program, wide[:1])
