"""Regions as models give them, which generated tasks have less of: all schedules of each are judged."""

from __future__ import annotations

REGIONS = {
    "columns_scaled_by_a_number_that_is_computed": """region v1
dims d0=4 d1=96 d2=40 d3=15
in0 f32[d0,d1,d2]
in1 f32[d0,d3,d1]
in2 f32[] >=0
in3 f32[d3]
t0 f32[d0,d2,d3] = dot(in0, in1) over d1
t1 f32[] = rsqrt(in2)
t2 f32[d3] = mul(in3, t1)
t3 f32[d3] = exp2(t2)
t4 f32[d0,d2,d3] = mul(t0, t3)
out0 f32[d0,d3,d2] = t4
out1 f32[] = t1
""",
    "scores_with_relative_positions": """region v1
dims d0=2 d1=3 d2=18 d3=27 d4=8 d5=16
in0 f32[d0,d1,d3,d4]
in1 f32[d0,d1,d2,d4]
in2 f32[d5,d1]
in3 i64[d2,d3] in [0,d5)
t0 f32[d0,d1,d2,d3] = dot(in0, in1) over d4
t1 f32[d0,d1,d2,d3] = add(t0, in2[d5=in3])
t2 f32[d0,d1,d2] = amax(t1) over d3
t3 f32[d0,d1,d2,d3] = sub(t1, t2)
out0 f32[d0,d1,d2,d3] = t3
""",
    "a_product_of_looked_up_weights": """region v1
dims d0=22 d1=4 d2=8 d3=13 d4=16
in0 f32[d3,d1,d2]
in1 f32[d0,d1]
in2 f32[d4]
in3 i64[d0,d1,d2] in [-16,15]
t0 bool[d0,d1,d2] = lt(in3, 0)
t1 i64[d0,d1,d2] = add(in3, 16)
t2 i64[d0,d1,d2] = where(t0, t1, in3)
t3 f32[d0,d1,d2] = mul(in1, in2[d4=t2])
t4 f32[d0,d3] = dot(in0, t3) over d1,d2
out0 f32[d3,d0] = t4
""",
    "a_product_of_a_toeplitz_matrix": """region v1
dims d0=44 d1=37 d2=37 d3=73
in0 f32[d3]
in1 f32[d0,d1]
t0 i64[d1] = iota() along d1
t1 i64[d2] = iota() along d2
t2 i64[d1,d2] = sub(t0, t1)
t3 i64[d1,d2] = add(t2, 36)
t4 f32[d1,d2] = cast(in0[d3=t3])
t5 f32[d0,d2] = dot(t4, in1) over d1
out0 f32[d0,d2] = t5
""",
    "means_over_a_clamped_border": """region v1
dims d0=4 d1=45 d2=11 d3=57 k0=13
in0 f32[d0,d1,d2]
t0 i64[d3] = iota() along d3
t1 i64[d3] = add(t0, -6)
t2 i64[d3] = maximum(t1, 0)
t3 i64[d3] = minimum(t2, 44)
t4 f32[d0,d2,d3] = cast(in0[d1=t3])
t5 f32[d0,d1,d2] = mean(t4[d3=d1+k0]) over k0
t6 f32[d0,d1,d2] = sub(in0, t5)
out0 f32[d0,d2,d1] = t5
out1 f32[d0,d1,d2] = t6
""",
    "margins_to_the_own_label": """region v1
dims d0=10 d1=12 d2=6
in0 f32[d0,d1]
in1 f32[d2,d1]
in2 i64[d2] in [0,d0)
t0 f32[d0,d2] = dot(in0, in1) over d1
t1 f32[d2] = sub(1.0, t0[d0=in2])
t2 f32[d0,d2] = add(t0, t1)
t3 f32[d0,d2] = maximum(t2, 0.0)
t4 f32[] = mean(t3) over d0,d2
out0 f32[] = t4
""",
    "pool_of_a_pool": """region v1
dims d0=12 d1=12 d2=12 d3=6 d4=6 d5=6 d6=6 k0=3 k1=2 k2=3 k3=2
in0 f32[d0,d1,d2]
t0 f32[d0,d5,d6] = amax(in0[d1=2*d5+k1, d2=2*d6+k3]) over k1,k3
t1 f32[d0,d3,d4] = sum(t0[d5=d3+k0-1, d6=d4+k2-1]) over k0,k2
t2 f32[d0,d3,d4] = div(t1, 9.0)
t3 i8[d0,d5,d6] = argmax(in0[d1=2*d5+k1, d2=2*d6+k3]) over k1,k3
out0 f32[d0,d3,d4] = t2
out1 f32[d0,d5,d6] = t0
out2 i8[d0,d5,d6] = t3
""",
    "gradient_of_a_maximum": """region v1
dims d0=32 d1=27 d2=28 d3=14 d4=14 k0=3 k1=3
in0 i8[d0,d3,d4] in [0,8]
in1 f32[d0,d3,d4]
in2 f32[d0,d1,d2]
t0 i64[k0] = iota() along k0
t1 i64[k0] = mul(t0, 3)
t2 i64[k1] = iota() along k1
t3 i64[k0,k1] = add(t1, t2)
t4 i64[d0,d3,d4] = cast(in0)
t5 bool[d0,d3,d4,k0,k1] = eq(t4, t3)
t6 f32[d0,d3,d4,k0,k1] = where(t5, in1, 0.0)
t7 f32[d0,d1,d2] = sum(t6[d3=(d1-k0+1)/2, d4=(d2-k1+1)/2]) over k0,k1
t8 f32[d0,d1,d2] = mul(t7, in2)
out0 f32[d0,d1,d2] = t8
""",
    "gradient_of_a_mean_and_its_counts": """region v1
dims d0=32 d1=17 d2=9 k0=4
in0 f32[d0,d2]
t0 i64[d2] = iota() along d2
t1 i64[d2] = mul(t0, 2)
t2 i64[d2] = add(t1, 4)
t3 i64[d2] = minimum(t2, 17)
t4 i64[d2] = sub(t3, t1)
t5 f32[d2] = cast(t4)
t6 f32[d0,d2] = div(in0, t5)
t7 f32[d0,d1] = sum(t6[d2=(d1-k0)/2]) over k0
out0 f32[d0,d1] = t7
""",
    "response_norm": """region v1
dims d0=2 d1=20 d2=30 d3=16 k0=5
in0 f32[d0,d3,d2]
t0 i64[d1] = iota() along d1
t1 bool[d1] = lt(t0, 18)
t2 bool[d1] = ge(t0, 2)
t3 bool[d1] = logical_and(t1, t2)
t4 f32[d0,d2,d3] = mul(in0, in0)
t5 f32[d0,d1,d2] = where(t3, t4[d3=d1-2], 0.0)
t6 f32[d0,d2,d3] = mean(t5[d1=d3+k0]) over k0
t7 f32[d0,d2,d3] = add(t6, 1.0)
t8 f32[d0,d2,d3] = div(in0, t7)
out0 f32[d0,d3,d2] = t8
""",
    "pool_beside_what_it_pools": """region v1
dims d0=3 d1=9 d2=10 k0=3 k1=3
in0 f32[d0,d1,d2]
t0 f32[d0,d1,d2] = relu(in0)
t1 f32[d0,d1,d2] = mean(t0[d1=d1+k0-1, d2=d2+k1-1]) over k0,k1
t2 f32[d0,d1,d2] = sub(t1, t0)
out0 f32[d0,d1,d2] = t2
""",
    "batch_norm_then_pool": """region v1
dims d0=2 d1=8 d2=16 d3=16 d4=8 d5=8 k0=3 k1=3
in0 f32[d0,d1,d2,d3]
in1 f32[d1]
t0 f32[d1] = mean(in0) over d0,d2,d3
t1 f32[d0,d1,d2,d3] = sub(in0, t0)
t2 f32[d1] = var(in0, 0.0) over d0,d2,d3
t3 f32[d1] = add(t2, 1e-05)
t4 f32[d1] = rsqrt(t3)
t5 f32[d0,d1,d2,d3] = mul(t1, t4)
t6 f32[d0,d1,d2,d3] = mul(t5, in1)
t7 f32[d0,d1,d2,d3] = relu(t6)
t8 f32[d0,d1,d4,d5] = amax(t7[d2=2*d4+k0-1, d3=2*d5+k1-1]) over k0,k1
out0 f32[d0,d1,d4,d5] = t8
out1 f32[d1] = t0
""",
    "column_mask_is_an_output": """region v1
dims d0=300 d1=40
in0 f32[d0,d1]
in1 f32[d1]
t0 f32[d1] = relu(in1)
t1 f32[d0,d1] = mul(in0, t0)
t2 f32[d0] = sum(t1) over d1
t3 f32[d0,d1] = sub(t1, t2)
t4 f32[d1] = sum(t3) over d0
out0 f32[d0,d1] = t3
out1 f32[d1] = t4
out2 f32[d1] = t0
""",
    "reversed_scan": """region v1
dims d0=6 d1=20 d2=20 d3=20
in0 f32[d0,d2]
in1 f32[d0,d1]
t0 f32[d0,d2] = mul(in0, in0)
t1 f32[d0,d3] = cumsum(t0[d2=-d3+19]) along d3
t2 f32[d0,d1] = add(t1[d3=-d1+19], in1)
out0 f32[d0,d1] = t2
""",
    "picked_logit": """region v1
dims d0=12 d1=50
in0 f32[d0,d1]
in1 i64[d0] in [0,d1)
t0 f32[d0] = amax(in0) over d1
t1 bool[d0] = ne(in1, 3)
t2 f32[d0,d1] = sub(in0, t0)
t3 f32[d0,d1] = exp(t2)
t4 f32[d0] = sum(t3) over d1
t5 f32[d0] = log(t4)
t6 f32[d0,d1] = sub(t2, t5)
t7 i64[d0] = where(t1, in1, 0)
t8 f32[d0] = neg(t6[d1=t7])
t9 f32[d0] = where(t1, t8, 0.0)
t10 f32[] = sum(t9) over d0
out0 f32[] = t10
""",
    "rotary_backward": """region v1
dims d0=2 d1=16 d2=4 d3=8 d4=4
in0 f32[d0,d1,d2,d3]
in1 f32[d1,d3]
t0 i64[d3] = iota() along d3
t1 bool[d3] = ge(t0, 4)
t2 f32[d0,d1,d2,d3] = mul(in0, in1)
t3 f32[d0,d1,d2,d4] = neg(t2[d3=d4])
t4 f32[d0,d1,d2,d3] = where(t1, t3[d4=d3-4], 0.0)
t5 bool[d3] = lt(t0, 4)
t6 f32[d0,d1,d2,d3] = where(t5, t2[d3=d3+4], 0.0)
t7 f32[d0,d1,d2,d3] = add(t4, t6)
out0 f32[d0,d1,d2,d3] = t7
""",
    "rotary_of_a_part": """region v1
dims d0=5 d1=6 d2=40 d3=24 d4=16 d5=8
in0 f16[d0,d1,d4] strides(240,40,1)
in1 f16[d1,d4]
in2 f16[d0,d1,d3] strides(240,40,1)
t0 i64[d2] = iota() along d2
t1 bool[d2] = lt(t0, 16)
t2 i64[d4] = iota() along d4
t3 bool[d4] = lt(t2, 8)
t4 f16[d0,d1,d5] = neg(in0[d4=d5+8])
t5 f16[d0,d1,d4] = where(t3, t4[d5=d4], in0[d4=d4-8])
t6 f16[d0,d1,d4] = mul(t5, in1)
t7 f16[d0,d1,d2] = where(t1, t6[d4=d2], in2[d3=d2-16])
out0 f16[d0,d1,d2] = t7
""",
    "padded_image": """region v1
dims d0=2 d1=10 d2=10 d3=6 d4=6
in0 f32[d0,d3,d4]
t0 i64[d1] = iota() along d1
t1 bool[d1] = ge(t0, 2)
t2 bool[d1] = lt(t0, 8)
t3 bool[d1] = logical_and(t1, t2)
t4 i64[d2] = iota() along d2
t5 bool[d2] = ge(t4, 2)
t6 bool[d2] = lt(t4, 8)
t7 bool[d2] = logical_and(t5, t6)
t8 bool[d1,d2] = logical_and(t3, t7)
t9 f32[d0,d1,d2] = where(t8, in0[d3=d1-2, d4=d2-2], 0.0)
out0 f32[d0,d1,d2] = t9
""",
    "positions_only": """region v1
dims d0=35
t0 i64[d0] = iota() along d0
t1 f32[d0] = cast(t0)
t2 f32[] = sum(t1) over d0
t3 f32[d0] = cumsum(t1) along d0
out0 f32[] = t2
out1 f32[d0] = t3
""",
    "statistics_of_an_upsampled_image": """region v1
dims d0=4 d1=3 d2=24 d3=24 d4=12 d5=12
in0 f32[d0,d1,d4,d5]
in1 i64[d0] in [0,d0)
t0 i64[d3] = iota() along d3
t1 f32[d3] = cast(t0)
t2 f32[d3] = mul(t1, 0.5)
t3 i64[d3] = cast(t2)
t4 i64[d2] = iota() along d2
t5 f32[d2] = cast(t4)
t6 f32[d2] = mul(t5, 0.5)
t7 i64[d2] = cast(t6)
t8 i64[d0] = add(in1, 2)
t9 i64[d0] = remainder(t8, 4)
t10 f32[d1] = mean(in0[d0=t9, d4=t7, d5=t3]) over d0,d2,d3
t11 f32[d0,d1,d2,d3] = sub(in0[d0=t9, d4=t7, d5=t3], t10)
t12 f32[d1] = var(in0[d0=in1, d4=t7, d5=t3], 0.0) over d0,d2,d3
t13 f32[d1] = rsqrt(t12)
t14 f32[d0,d1,d2,d3] = mul(t11, t13)
out0 f32[d0,d1,d2,d3] = t14
""",
    "softmax_with_alibi": """region v1
dims d0=2 d1=4 d2=12 d3=12 d4=64
in0 bf16[d0,d1,d2,d3]
t0 f32[d0,d1,d2,d3] = cast(in0)
t1 i64[d1] = iota() along d1
t2 i64[d1] = add(t1, 1)
t3 f32[d1] = cast(t2)
t4 f32[d1] = reciprocal(t3)
t5 i32[d4] = iota() along d4
t6 i32[d4] = add(t5, -63)
t7 f32[d4] = cast(t6)
t8 f32[d1,d4] = mul(t4, t7)
t9 f32[d0,d1,d2,d3] = add(t0, t8[d4=2*d3+d2+30])
t10 f32[d0,d1,d2] = sum(t9) over d3
t11 f32[d0,d1,d2,d3] = sub(t9, t10)
t12 f32[d0,d1,d2,d3] = add(t11, t8[d4=5])
out0 bf16[d0,d1,d2,d3] = t12
""",
    "windows_of_a_padded_row": """region v1
dims d0=2 d1=24 d2=16 d3=9 d4=24 d5=32
in0 f16[d0,d4,d2]
t0 i64[d5] = iota() along d5
t1 bool[d5] = lt(t0, 28)
t2 bool[d5] = ge(t0, 4)
t3 bool[d5] = logical_and(t1, t2)
t4 f16[d0,d2,d5] = where(t3, in0[d4=d5-4], 0.0)
t5 i64[d3] = iota() along d3
t6 i64[d1] = iota() along d1
t7 i64[d1,d3] = add(t5, t6)
t8 f16[d0,d1,d2,d3] = neg(t4[d5=t7])
out0 f16[d0,d1,d2,d3] = t8
""",
    "positions_counted_then_looked_up": """region v1
dims d0=17 d1=3 d2=16
in0 bool[d1,d2]
in1 f32[d0]
t0 i64[d1,d2] = cast(in0)
t1 i64[d1,d2] = cumsum(t0) along d2
t2 i64[d1,d2] = mul(t0, t1)
t3 f32[d1,d2] = neg(in1[d0=t2])
out0 i64[d1,d2] = t2
out1 f32[d1,d2] = t3
""",
    "norm_of_an_embedding": """region v1
dims d0=20 d1=70 d2=9
in0 f32[d2,d1]
in1 i64[d0] in [0,d2)
in2 f32[d1]
t0 f32[d0] = mean(in0[d2=in1]) over d1
t1 f32[d0,d1] = sub(in0[d2=in1], t0)
t2 f32[d0] = var(in0[d2=in1], 0.0) over d1
t3 f32[d0] = rsqrt(t2)
t4 f32[d0,d1] = mul(t1, t3)
t5 f32[d0,d1] = mul(t4, in2)
out0 f32[d0,d1] = t5
""",
    "rows_picked_beside_a_transpose": """region v1
dims d0=12 d1=40 d2=33
in0 f32[d0,d1]
in1 i64[d2] in [0,d0)
in2 f32[d1,d2]
t0 f32[d1,d2] = mul(in0[d0=in1], in2)
t1 i64[d2] = remainder(in1, 5)
t2 f32[d1,d2] = sub(t0, in0[d0=t1])
out0 f32[d2,d1] = t2
""",
    "causal_mask_of_documents": """region v1
dims d0=4 d1=24 d2=24
in0 i64[d0,d2]
in1 i64[d0,d1]
t0 bool[d0,d1,d2] = eq(in0, in1)
t1 i64[d2] = iota() along d2
t2 i64[d1] = iota() along d1
t3 bool[d1,d2] = le(t1, t2)
t4 bool[d0,d1,d2] = logical_and(t0, t3)
t5 bf16[d0,d1,d2] = where(t4, 0.0, -inf)
out0 bf16[d0,d1,d2] = t5
""",
    "normed_rows_read_at_rolled_places": """region v1
dims d0=3 d1=18 d2=12 d3=18
in0 bf16[d0,d1,d2]
t0 bf16[d0,d1] = mean(in0) over d2
t1 bf16[d0,d1,d2] = sub(in0, t0)
t2 i64[d3] = iota() along d3
t3 i64[d3] = add(t2, 6)
t4 i64[d3] = fmod(t3, 18)
t5 bf16[d0,d3] = amax(t1[d1=t4]) over d2
t6 bf16[d0,d2,d3] = sub(t1[d1=t4], t5)
out0 bf16[d0,d3,d2] = t6
""",
    "shifted_labels": """region v1
dims d0=4 d1=24 d2=50 d3=25 d4=24
in0 i64[d0,d4]
in1 bf16[d0,d1,d2]
t0 i64[d3] = iota() along d3
t1 bool[d3] = lt(t0, 24)
t2 i64[d0,d3] = where(t1, in0[d4=d3], -100)
t3 i64[d1] = iota() along d1
t4 i64[d1] = add(t3, 1)
t5 bool[d1] = lt(t4, 24)
t6 i64[d0,d1] = where(t5, in0[d4=d1+1], -100)
t7 bool[d0,d1] = ne(t6, -100)
t8 f32[d0,d1,d2] = cast(in1)
t9 f32[d0,d1] = amax(t8) over d2
t10 f32[d0,d1,d2] = sub(t8, t9)
t11 f32[d0,d1,d2] = exp(t10)
t12 f32[d0,d1] = sum(t11) over d2
t13 f32[d0,d1] = log(t12)
t14 f32[d0,d1,d2] = sub(t10, t13)
t15 i64[d0,d1] = where(t7, t6, 0)
t16 f32[d0,d1] = neg(t14[d2=t15])
t17 f32[d0,d1] = where(t7, t16, 0.0)
t18 f32[] = sum(t17) over d0,d1
t19 i64[d0,d1] = cast(t7)
t20 i64[] = sum(t19) over d0,d1
t21 f32[] = cast(t20)
t22 f32[] = div(t18, t21)
out0 i64[d0,d3] = t2
out1 f32[] = t22
out2 f32[d0,d1] = t13
out3 f32[] = t21
out4 f32[d0,d1] = t9
""",
}
