"""The regions of the audit, by name. Small and odd-sized, but for a huge one: they also run on the host target."""

from __future__ import annotations

from functools import lru_cache

from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program

_TEXTS = {
    "silu": """region v1
dims d0=24 d1=504
in0 f32[d0,d1]
in1 f32[d1]
t0 f32[d0,d1] = mul(in0, in1)
t1 f32[d0,d1] = sigmoid(t0)
t2 f32[d0,d1] = mul(t0, t1)
t3 f32[d0,d1] = add(t2, 0.5)
out0 f32[d0,d1] = t3
""",
    "silu_bf16": """region v1
dims d0=24 d1=504
in0 bf16[d0,d1]
in1 bf16[d1]
t0 bf16[d0,d1] = mul(in0, in1)
t1 bf16[d0,d1] = sigmoid(t0)
t2 bf16[d0,d1] = mul(t0, t1)
out0 bf16[d0,d1] = t2
""",
    "softmax": """region v1
dims d0=33 d1=250
in0 f32[d0,d1]
t0 f32[d0] = amax(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
t2 f32[d0,d1] = exp(t1)
t3 f32[d0] = sum(t2) over d1
t4 f32[d0,d1] = div(t2, t3)
out0 f32[d0,d1] = t4
""",
    "layernorm": """region v1
dims d0=33 d1=250
in0 f32[d0,d1]
in1 f32[d1]
in2 f32[d1]
t0 f32[d0] = mean(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
t2 f32[d0,d1] = mul(t1, t1)
t3 f32[d0] = mean(t2) over d1
t4 f32[d0] = add(t3, 1e-05)
t5 f32[d0] = rsqrt(t4)
t6 f32[d0,d1] = mul(t1, t5)
t7 f32[d0,d1] = mul(t6, in1)
t8 f32[d0,d1] = add(t7, in2)
out0 f32[d0,d1] = t8
""",
    "column_sum": """region v1
dims d0=300 d1=70
in0 f32[d0,d1]
in1 f32[d0,d1]
t0 f32[d0,d1] = mul(in0, in1)
t1 f32[d1] = sum(t0) over d0
out0 f32[d1] = t1
""",
    "batch_stats": """region v1
dims d0=4 d1=12 d2=9 d3=9
in0 f32[d0,d1,d2,d3]
t0 f32[d1] = mean(in0) over d0,d2,d3
t1 f32[d1] = var(in0, 0) over d0,d2,d3
t2 f32[d1] = add(t1, 1e-05)
t3 f32[d1] = rsqrt(t2)
t4 f32[d0,d1,d2,d3] = sub(in0, t0)
t5 f32[d0,d1,d2,d3] = mul(t4, t3)
out0 f32[d0,d1,d2,d3] = t5
out1 f32[d1] = t0
out2 f32[d1] = t1
""",
    "max_pool": """region v1
dims d0=3 d1=5 d2=14 d3=14 d4=7 d5=7 k0=3 k1=3
in0 f32[d0,d1,d2,d3]
t0 f32[d0,d1,d4,d5] = amax(in0[d2=2*d4+k0-1, d3=2*d5+k1-1]) over k0,k1
out0 f32[d0,d1,d4,d5] = t0
""",
    "threshold": """region v1
dims d0=24 d1=504
in0 f32[d0,d1]
in1 f32[d0,d1]
t0 bool[d0,d1] = gt(in0, 0.25)
t1 f32[d0,d1] = where(t0, in1, 0.0)
t2 f32[d0,d1] = mul(t1, in0)
out0 bool[d0,d1] = t0
out1 f32[d0,d1] = t2
""",
    "argmax": """region v1
dims d0=40 d1=130
in0 f32[d0,d1]
in1 f32[d1]
t0 f32[d0,d1] = add(in0, in1)
t1 i64[d0] = argmax(t0) over d1
out0 i64[d0] = t1
""",
    "embedding": """region v1
dims d0=60 d1=48 d2=37
in0 f32[d2,d1]
in1 i64[d0] in [0,d2)
in2 f32[d0,d1]
t0 f32[d0,d1] = add(in0[d2=in1], in2)
t1 f32[d0,d1] = mul(t0, 0.5)
out0 f32[d0,d1] = t1
""",
    "long_sum": """region v1
dims d0=3 d1=40000
in0 f32[d0,d1]
t0 f32[d0,d1] = mul(in0, 1.25)
t1 f32[d0] = sum(t0) over d1
out0 f32[d0] = t1
""",
    "total": """region v1
dims d0=300000
in0 f32[d0]
t0 f32[] = sum(in0) over d0
out0 f32[] = t0
""",
    "expanded": """region v1
dims d0=24 d1=100
in0 f32[d0,d1] strides(0,1)
in1 f32[d0,d1]
t0 f32[d0,d1] = mul(in0, in1)
t1 f32[d0,d1] = tanh(t0)
out0 f32[d0,d1] = t1
""",
    "strided": """region v1
dims d0=20 d1=60
in0 f32[d0,d1] strides(64,1)
in1 f32[d1,d0]
t0 f32[d0,d1] = mul(in0, in1)
t1 f32[d0,d1] = tanh(t0)
out0 f32[d0,d1] strides(72,1) = t1
""",
    "matmul": """region v1
dims d0=19 d1=45 d2=37
in0 f32[d0,d1]
in1 f32[d1,d2]
in2 f32[d2]
t0 f32[d0,d2] = dot(in0, in1) over d1
t1 f32[d0,d2] = add(t0, in2)
t2 f32[d0,d2] = relu(t1)
out0 f32[d0,d2] = t2
""",
    "matmul_bf16": """region v1
dims d0=19 d1=45 d2=37
in0 bf16[d0,d1]
in1 bf16[d2,d1]
t0 bf16[d0,d2] = dot(in0, in1) over d1
out0 bf16[d0,d2] = t0
""",
    "convolution": """region v1
dims d0=2 d1=3 d2=9 d3=9 d4=4 d5=9 d6=9 k0=3 k1=3
in0 f32[d0,d1,d2,d3]
in1 f32[d4,d1,k0,k1]
t0 f32[d0,d4,d5,d6] = dot(in0[d2=d5+k0-1, d3=d6+k1-1], in1) over d1,k0,k1
out0 f32[d0,d4,d5,d6] = t0
""",
    "masked_softmax": """region v1
dims d0=33 d1=64
in0 f32[d0,d1]
in1 bool[d0,d1]
t0 f32[d0,d1] = where(in1, in0, -inf)
t1 f32[d0] = amax(t0) over d1
t2 f32[d0,d1] = sub(t0, t1)
t3 f32[d0,d1] = exp(t2)
t4 f32[d0] = sum(t3) over d1
t5 f32[d0,d1] = div(t3, t4)
out0 f32[d0,d1] = t5
""",
    "integers": """region v1
dims d0=24 d1=50
in0 i64[d0,d1]
in1 i32[d0,d1]
t0 i64[d0,d1] = cast(in1)
t1 i64[d0,d1] = mul(in0, t0)
t2 i64[d0,d1] = add(t1, 3)
out0 i64[d0,d1] = t2
""",
    "any_rows": """region v1
dims d0=?40 d1=64
in0 f32[d0,d1]
t0 f32[d0,d1] = exp(in0)
t1 f32[d0,d1] = mul(t0, in0)
t2 f32[d0,d1] = add(t1, 1.0)
out0 f32[d0,d1] = t2
""",
    "any_table": """region v1
dims d0=?40 d1=?60
in0 f32[d0,d1]
t0 f32[d0,d1] = exp(in0)
t1 f32[d0,d1] = mul(t0, in0)
t2 f32[d0,d1] = add(t1, 1.0)
out0 f32[d0,d1] = t2
""",
    "any_indices": """region v1
dims d0=?60 d1=48 d2=37
in0 f32[d2,d1]
in1 i64[d0] in [0,d2)
in2 f32[d0,d1]
t0 f32[d0,d1] = add(in0[d2=in1], in2)
t1 f32[d0,d1] = mul(t0, 0.5)
out0 f32[d0,d1] = t1
""",
    "computed_mask": """region v1
dims d0=24 d1=504
in0 f32[d0,d1]
in1 f32[d0,d1]
t0 f32[d0,d1] = mul(in0, in1)
t1 bool[d0,d1] = gt(t0, 0.25)
out0 bool[d0,d1] = t1
""",
    "rms_bf16": """region v1
dims d0=33 d1=256
in0 bf16[d0,d1]
in1 bf16[d1]
t0 f32[d0,d1] = cast(in0)
t1 f32[d0,d1] = mul(t0, t0)
t2 f32[d0] = mean(t1) over d1
t3 f32[d0] = add(t2, 1e-06)
t4 f32[d0] = rsqrt(t3)
t5 f32[d0,d1] = mul(t0, t4)
t6 bf16[d0,d1] = cast(t5)
t7 bf16[d0,d1] = mul(t6, in1)
out0 bf16[d0,d1] = t7
""",
    "quantise": """region v1
dims d0=24 d1=100
in0 f32[d0,d1]
t0 f32[d0,d1] = mul(in0, 8.0)
t1 f32[d0,d1] = round(t0)
t2 f32[d0,d1] = maximum(t1, -128.0)
t3 f32[d0,d1] = minimum(t2, 127.0)
t4 i8[d0,d1] = cast(t3)
out0 i8[d0,d1] = t4
""",
    "both_sums": """region v1
dims d0=32 d1=96
in0 f32[d0,d1]
in1 f32[d0,d1]
t0 f32[d0,d1] = mul(in0, in1)
t1 f32[d0] = sum(t0) over d1
t2 f32[d1] = sum(t0) over d0
out0 f32[d0,d1] = t0
out1 f32[d0] = t1
out2 f32[d1] = t2
""",
    "running_sum": """region v1
dims d0=20 d1=96
in0 f32[d0,d1]
t0 f32[d0,d1] = cumsum(in0) along d1
t1 f32[d0,d1] = mul(t0, 0.5)
out0 f32[d0,d1] = t1
""",
    "silu_f64": """region v1
dims d0=24 d1=100
in0 f64[d0,d1]
t0 f64[d0,d1] = sigmoid(in0)
t1 f64[d0,d1] = mul(in0, t0)
out0 f64[d0,d1] = t1
""",
    "any_large": """region v1
dims d0=40 d1=100
in0 f16[d0,d1]
t0 f16[d0,d1] = abs(in0)
t1 bool[d0,d1] = gt(t0, 3.0)
t2 bool[d0] = any(t1) over d1
t3 f16[d0] = amax(t0) over d1
out0 bool[d0] = t2
out1 f16[d0] = t3
""",
    "window_argmax": """region v1
dims d0=2 d1=8 d2=8 d3=8 d4=4 d5=4 k0=3 k1=3
in0 f16[d0,d1,d2,d3]
in1 f16[d0,d1]
t0 f16[d0,d1] = sigmoid(in1)
t1 f16[d0,d1,d2,d3] = mul(in0, t0)
t2 i8[d0,d1,d4,d5] = argmax(t1[d2=2*d4+k0-1, d3=2*d5+k1-1]) over k0,k1
out0 i8[d0,d1,d4,d5] = t2
""",
    "scaled_tanh": """region v1
dims d0=24 d1=100
in0 f32[d0,d1]
in1 f32[]
t0 f32[d0,d1] = mul(in0, in1)
t1 f32[d0,d1] = tanh(t0)
t2 f32[d0] = sum(t1) over d1
out0 f32[d0,d1] = t1
out1 f32[d0] = t2
""",
    "three_losses": """region v1
dims d0=3 d1=66
in0 bf16[d0,d1]
t0 bf16[d0] = logsumexp(in0) over d1
t1 bf16[d0] = mul(t0, 0.5)
out0 bf16[d0] = t1
""",
    "cosine_bf16": """region v1
dims d0=24 d1=100
in0 bf16[d0,d1]
t0 bf16[d0,d1] = cos(in0)
t1 bf16[d0,d1] = maximum(t0, 0.1)
out0 bf16[d0,d1] = t1
""",
    "uneven_mask": """region v1
dims d0=24 d1=504
in0 f32[d0,d1]
in1 f32[d0,d1]
t0 bool[d0,d1] = gt(in0, 0.79)
t1 f32[d0,d1] = where(t0, in1, 0.0)
out0 bool[d0,d1] = t0
out1 f32[d0,d1] = t1
""",
    "cast_and_relu": """region v1
dims d0=24 d1=100
in0 f32[d0,d1]
t0 f32[d0,d1] = mul(in0, 8.0)
t1 i32[d0,d1] = cast(t0)
t2 f32[d0,d1] = relu(in0)
t3 f32[d0,d1] = mul(t2, t2)
out0 i32[d0,d1] = t1
out1 f32[d0,d1] = t3
""",
    "eight_masks": """region v1
dims d0=855 d1=8
in0 bf16[d1]
in1 bf16[d0,d1]
t0 f32[d1] = cast(in0)
t1 bool[d1] = gt(t0, 20.0)
t2 f32[d0,d1] = cast(in1)
t3 f32[d0,d1] = mul(t0, t2)
t4 f32[d0,d1] = tanh(t3)
out0 bool[d1] = t1
out1 f32[d0,d1] = t4
""",
    "half_product": """region v1
dims d0=24 d1=504
in0 bf16[d0,d1]
in1 bf16[d0,d1]
t0 bf16[d0,d1] = mul(in0, in1)
t1 bf16[d0,d1] = relu(t0)
out0 bf16[d0,d1] = t1
""",
    "half_sum": """region v1
dims d0=24 d1=504
in0 f16[d0,d1]
in1 f16[d0,d1]
t0 f16[d0,d1] = add(in0, in1)
t1 f16[d0,d1] = relu(t0)
out0 f16[d0,d1] = t1
""",
    "half_cast": """region v1
dims d0=24 d1=504
in0 f32[d0,d1]
in1 bf16[d0,d1]
t0 f32[d0,d1] = neg(in0)
t1 bf16[d0,d1] = cast(t0)
t2 bf16[d0,d1] = maximum(t1, in1)
out0 bf16[d0,d1] = t2
""",
    "half_factors": """region v1
dims d0=24 d1=64 d2=40
in0 f32[d0,d1]
in1 bf16[d1,d2]
t0 bf16[d0,d1] = cast(in0)
t1 bf16[d0,d1] = relu(t0)
t2 bf16[d0,d2] = dot(t1, in1) over d1
out0 bf16[d0,d2] = t2
""",
    "quotient": """region v1
dims d0=24 d1=300
in0 f32[d0,d1]
in1 f32[d0,d1]
t0 f32[d0,d1] = div(in0, in1)
t1 f32[d0,d1] = sub(in0, in1)
t2 f32[d0,d1] = mul(t0, t1)
out0 f32[d0,d1] = t2
""",
    "log_softmax": """region v1
dims d0=200 d1=10
in0 f32[d0,d1]
t0 f32[d0] = amax(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
t2 f32[d0,d1] = exp(t1)
t3 f32[d0] = sum(t2) over d1
t4 f32[d0] = log(t3)
t5 f32[d0,d1] = sub(t1, t4)
out0 f32[d0,d1] = t5
""",
    "affine_relu": """region v1
dims d0=64 d1=300
in0 f32[d0,d1]
in1 f32[d1]
in2 f32[d1]
t0 f32[d0,d1] = mul(in0, in1)
t1 f32[d0,d1] = add(t0, in2)
t2 f32[d0,d1] = relu(t1)
out0 f32[d0,d1] = t2
""",
    "any_products": """region v1
dims d0=?104 d1=?64
in0 f32[d0,d1]
in1 f32[d0,d1]
t0 f32[d0,d1] = mul(in0, in1)
t1 f32[d0,d1] = add(t0, 2.0)
t2 f32[d0,d1] = relu(t1)
out0 f32[d0,d1] = t2
""",
    "any_norm": """region v1
dims d0=?30 d1=?104
in0 f32[d0,d1]
t0 f32[d0] = mean(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
t2 f32[d0,d1] = mul(t1, t1)
t3 f32[d0] = mean(t2) over d1
t4 f32[d0] = add(t3, 1e-05)
t5 f32[d0] = rsqrt(t4)
t6 f32[d0,d1] = mul(t1, t5)
out0 f32[d0,d1] = t6
""",
    "any_wide_rows": """region v1
dims d0=?30 d1=?500
in0 f32[d0,d1]
t0 f32[d0] = sum(in0) over d1
out0 f32[d0] = t0
""",
    "any_embedding": """region v1
dims d0=?60 d1=?200 d2=48
in0 i64[d0] in [0,d1)
in1 f32[d1,d2]
t0 f32[d0,d2] = mul(in1[d1=in0], 1.5)
t1 f32[d0,d2] = exp(t0)
out0 f32[d0,d2] = t1
""",
    "convolution_relu6": """region v1
dims d0=2 d1=8 d2=5 d3=12 d4=13 d5=12 d6=13 k0=3 k1=3
in0 f32[d0,d2,d3,d4]
in1 f32[d1,d2,k0,k1]
in2 f32[d1]
t0 f32[d0,d1,d5,d6] = dot(in0[d3=d5+k0-1, d4=d6+k1-1], in1) over d2,k0,k1
t1 f32[d0,d1,d5,d6] = add(t0, in2)
t2 f32[d0,d1,d5,d6] = relu(t1)
t3 f32[d0,d1,d5,d6] = minimum(t2, 6.0)
out0 f32[d0,d1,d5,d6] = t3
""",
    "convolution_maximum": """region v1
dims d0=3 d1=6 d2=5 d3=60 d4=56 k0=3
in0 f32[d0,d2,d3]
in1 f32[d1,d2,k0]
t0 f32[d0,d1,d4] = dot(in0[d3=d4+2*k0], in1) over d2,k0
t1 f32[d0,d1,d4] = mul(t0, 0.5)
t2 f32[d0,d1] = amax(t1) over d4
out0 f32[d0,d1] = t2
""",
    "both_ends": """region v1
dims d0=40 d1=130
in0 f32[d0,d1]
t0 i64[d0] = argmax(in0) over d1
t1 i64[d0] = argmin(in0) over d1
out0 i64[d0] = t0
out1 i64[d0] = t1
""",
    "squared_error": """region v1
dims d0=100 d1=130
in0 f32[d0,d1]
in1 f32[d0,d1]
t0 f32[d0,d1] = sub(in0, in1)
t1 f32[d0,d1] = mul(t0, t0)
t2 f32[d0] = mean(t1) over d1
out0 f32[d0] = t2
""",
    "norm_gradient": """region v1
dims d0=8 d1=12 d2=100
in0 f32[d0,d1,d2]
in1 f32[d0,d1,d2]
in2 f32[d1]
t0 f32[d0,d1,d2] = sub(in1, in2)
t1 f32[d0,d1,d2] = mul(in0, t0)
t2 f32[d1] = sum(t1) over d0,d2
t3 f32[d1] = sum(in0) over d0,d2
out0 f32[d1] = t2
out1 f32[d1] = t3
""",
    "missing_values": """region v1
dims d0=5000
in0 f32[d0]
in1 f32[d0]
t0 bool[d0] = isnan(in1)
t1 f32[d0] = where(t0, 0.0, in1)
t2 f32[d0] = mul(in0, t1)
out0 f32[d0] = t2
out1 bool[d0] = t0
""",
    "wrapped_products": """region v1
dims d0=3000
in0 i32[d0]
in1 i32[d0] >0
t0 i32[d0] = remainder(in0, in1)
t1 i32[d0] = mul(t0, in0)
t2 bool[d0] = lt(t1, in1)
t3 i32[d0] = where(t2, t1, in1)
out0 i32[d0] = t3
out1 bool[d0] = t2
""",
    "half_row_sums": """region v1
dims d0=24 d1=4096
in0 f16[d0,d1]
t0 f32[d0,d1] = cast(in0)
t1 f32[d0] = sum(t0) over d1
t2 f16[d0] = cast(t1)
out0 f16[d0] = t2
""",
    "half_long_dot": """region v1
dims d0=16 d1=1000 d2=20
in0 f16[d0,d1]
in1 f16[d1,d2]
t0 f16[d0,d2] = dot(in0, in1) over d1
out0 f16[d0,d2] = t0
""",
    "logarithms": """region v1
dims d0=32 d1=100
in0 f32[d0,d1] >0
in1 f32[d0,d1]
t0 f32[d0,d1] = log2(in0)
t1 f32[d0,d1] = log2(in1)
t2 f32[d0,d1] = add(t0, t1)
t3 f32[d0] = sum(t2) over d1
out0 f32[d0,d1] = t0
out1 f32[d0,d1] = t1
out2 f32[d0] = t3
""",
    "lengths": """region v1
dims d0=32 d1=96
in0 f32[d0,d1]
in1 i64[d0]
t0 i64[d1] = iota() along d1
t1 bool[d0,d1] = lt(t0, in1)
t2 f32[d0,d1] = where(t1, in0, 0.0)
t3 f32[d0] = sum(t2) over d1
out0 f32[d0] = t3
""",
    "one_hot": """region v1
dims d0=64 d1=200
in0 f32[d0,d1]
in1 i64[d0]
t0 i64[d1] = iota() along d1
t1 bool[d0,d1] = eq(in1, t0)
t2 f32[d0,d1] = where(t1, in0, 0.25)
out0 f32[d0,d1] = t2
""",
    "until_500": """region v1
dims d0=4096
in0 f32[d0]
in1 i64[d0]
t0 bool[d0] = lt(in1, 500)
t1 f32[d0] = where(t0, in0, 0.5)
out0 f32[d0] = t1
""",
    "root": """region v1
dims d0=4096
in0 f32[d0] >=0
in1 f32[d0]
t0 f32[d0] = sqrt(in0)
t1 f32[d0] = add(t0, in1)
out0 f32[d0] = t1
""",
    "log_mask": """region v1
dims d0=4096
in0 f32[d0] >0
in1 f32[d0]
t0 f32[d0] = log(in0)
t1 f32[d0] = add(t0, in1)
out0 f32[d0] = t1
""",
    "narrow_abs": """region v1
dims d0=4096
in0 i8[d0]
in1 f32[d0]
t0 i8[d0] = abs(in0)
t1 f32[d0] = cast(t0)
t2 f32[d0] = mul(t1, in1)
out0 f32[d0] = t2
""",
    "total_norm": """region v1
dims d0=5000
in0 f32[d0]
t0 f32[d0] = mul(in0, in0)
t1 f32[] = sum(t0) over d0
t2 f32[] = sqrt(t1)
out0 f32[] = t2
""",
    "column_mean": """region v1
dims d0=256 d1=48
in0 f32[d0,d1]
in1 bool[d0,d1]
t0 f32[d0,d1] = where(in1, in0, 0.0)
t1 f32[d1] = sum(t0) over d0
t2 f32[d0,d1] = cast(in1)
t3 f32[d1] = sum(t2) over d0
t4 f32[d1] = div(t1, t3)
out0 f32[d1] = t4
""",
    "chosen_rows": """region v1
dims d0=300 d1=40
in0 f32[d0,d1]
in1 bool[d0]
t0 f32[d0,d1] = where(in1, in0, 0.0)
t1 f32[d1] = sum(t0) over d0
t2 f32[d0] = cast(in1)
t3 f32[] = sum(t2) over d0
t4 f32[d1] = div(t1, t3)
out0 f32[d1] = t4
""",
    "any_image": """region v1
dims d0=40 d1=12 d2=16
in0 bool[d0,d1,d2]
in1 f32[d0,d1,d2]
t0 bool[d0] = any(in0) over d1,d2
t1 f32[d0,d1,d2] = where(t0, in1, 0.0)
out0 f32[d0,d1,d2] = t1
""",
    "previous": """region v1
dims d0=128 d1=40 d2=66
in0 f32[d2,d1]
in1 i64[d0] in [0,d2)
t0 i64[d0] = sub(in1, 1)
t1 i64[d0] = maximum(t0, 0)
t2 f32[d0,d1] = sin(in0[d2=t1])
out0 f32[d0,d1] = t2
""",
    "held_inside": """region v1
dims d0=128 d1=40 d2=66
in0 f32[d2,d1]
in1 i64[d0]
t0 i64[d0] = maximum(in1, 0)
t1 i64[d0] = minimum(t0, 65)
t2 f32[d0,d1] = sin(in0[d2=t1])
out0 f32[d0,d1] = t2
""",
    "wide_counts": """region v1
dims d0=64 d1=700
in0 i32[d0,d1]
in1 f32[d0]
t0 i64[d0,d1] = cast(in0)
t1 i64[d0] = sum(t0) over d1
t2 f32[d0] = cast(t1)
t3 f32[d0] = mul(t2, in1)
out0 f32[d0] = t3
""",
    "least_integer": """region v1
dims d0=64 d1=300
in0 i32[d0,d1]
t0 i32[d0] = amin(in0) over d1
out0 i32[d0] = t0
""",
    "over_a_scalar": """region v1
dims d0=4000
in0 f32[d0]
in1 f32[]
t0 f32[d0] = div(in0, in1)
t1 f32[d0] = tanh(t0)
out0 f32[d0] = t1
""",
    "row_product": """region v1
dims d0=64 d1=96
in0 f32[d0,d1]
t0 f32[d0] = prod(in0) over d1
out0 f32[d0] = t0
""",
    "shared_total": """region v1
dims d0=?5000
in0 f32[d0]
t0 f32[d0] = mul(in0, in0)
t1 f32[] = sum(t0) over d0
t2 f32[] = sqrt(t1)
out0 f32[] = t2
""",
    "chunked_scan": """region v1
dims d0=?6 d1=?700
in0 f32[d0,d1]
t0 f32[d0,d1] = cumsum(in0) along d1
t1 f32[d0,d1] = mul(t0, 0.5)
out0 f32[d0,d1] = t1
""",
    "strided_rows": """region v1
dims d0=?40 d1=64
in0 f32[d0,d1]
t0 f32[d0,d1] = exp(in0)
t1 f32[d0,d1] = mul(t0, in0)
t2 f32[d0,d1] = add(t1, 1.0)
out0 f32[d0,d1] = t2
""",
    "two_rows": """region v1
dims d0=2 d1=250
in0 f32[d0,d1]
t0 f32[d0] = amax(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
t2 f32[d0,d1] = exp(t1)
t3 f32[d0] = sum(t2) over d1
t4 f32[d0,d1] = div(t2, t3)
out0 f32[d0,d1] = t4
""",
    "masked_rows": """region v1
dims d0=24 d1=100
in0 f32[d0,d1]
in1 f32[d1]
t0 f32[d0,d1] = add(in0, in1)
t1 f32[d0] = amax(t0) over d1
t2 f32[d0,d1] = sub(t0, t1)
t3 f32[d0,d1] = exp(t2)
t4 f32[d0] = sum(t3) over d1
t5 f32[d0,d1] = div(t3, t4)
out0 f32[d0,d1] = t5
""",
    "bf16_rows": """region v1
dims d0=33 d1=250
in0 bf16[d0,d1]
t0 bf16[d0] = amax(in0) over d1
t1 bf16[d0,d1] = sub(in0, t0)
t2 bf16[d0,d1] = exp(t1)
t3 bf16[d0] = sum(t2) over d1
t4 bf16[d0,d1] = div(t2, t3)
out0 bf16[d0,d1] = t4
""",
    "larger_of_two": """region v1
dims d0=24 d1=504
in0 i32[d0,d1]
in1 i32[d0,d1]
t0 bool[d0,d1] = lt(in0, in1)
t1 i32[d0,d1] = where(t0, in1, in0)
t2 i32[d0,d1] = add(t1, 5)
t3 i32[d0,d1] = neg(t2)
out0 i32[d0,d1] = t3
out1 bool[d0,d1] = t0
""",
    "mean_of_labelled": """region v1
dims d0=60 d1=40
in0 f32[d0,d1]
in1 i64[d0]
t0 bool[d0] = ne(in1, -100)
t1 i64[d0] = where(t0, in1, 0)
t2 f32[d0] = logsumexp(in0) over d1
t3 f32[d0] = sub(in0[d1=t1], t2)
t4 f32[d0] = neg(t3)
t5 f32[d0] = where(t0, t4, 0.0)
t6 f32[] = sum(t5) over d0
t7 i64[d0] = cast(t0)
t8 i64[] = sum(t7) over d0
t9 f32[] = cast(t8)
t10 f32[] = div(t6, t9)
out0 f32[] = t10
""",
    "split_table": """region v1
dims d0=96 d1=24 d2=40
in0 i64[d0]
in1 f32[d2,d1]
t0 bool[d0] = lt(in0, 40)
t1 bool[d0] = ge(in0, 80)
t2 bool[d0] = logical_or(t0, t1)
t3 i64[d0] = sub(in0, 40)
t4 i64[d0] = where(t2, 0, t3)
t5 f32[d0,d1] = tanh(in1[d2=t4])
t6 f32[d0,d1] = where(t2, 0.0, t5)
out0 f32[d0,d1] = t6
""",
    "from_the_end": """region v1
dims d0=64 d1=24 d2=4000
in0 f32[d2,d1]
in1 i64[d0] in [-4000,3999]
t0 bool[d0] = lt(in1, 0)
t1 i64[d0] = add(in1, 4000)
t2 i64[d0] = where(t0, t1, in1)
t3 f32[d0,d1] = tanh(in0[d2=t2])
out0 f32[d0,d1] = t3
""",
    "late_rows": """region v1
dims d0=64 d1=24 d2=32000
in0 f32[d2,d1]
in1 i64[d0] in [0,d2)
t0 bool[d0] = ge(in1, 700)
t1 f32[d0,d1] = tanh(in0[d2=in1])
t2 f32[d0,d1] = where(t0, 0.5, t1)
out0 f32[d0,d1] = t2
""",
    "rows_of_512": """region v1
dims d0=?32 d1=512
in0 f32[d0,d1]
t0 f32[d0] = sum(in0) over d1
t1 f32[d0,d1] = div(in0, t0)
out0 f32[d0,d1] = t1
""",
    "framed_image": """region v1
dims d0=2 d1=8 d2=5 d3=12 d4=13 d5=12 d6=13 k0=3 k1=3
in0 f32[d0,d2,d3,d4]
in1 f32[d1,d2,k0,k1]
in2 f32[d1]
t0 f32[d0,d1,d5,d6] = dot(in0[d3=d5+k0-1, d4=d6+k1-1], in1) over d2,k0,k1
t1 f32[d0,d1,d5,d6] = add(t0, in2)
t2 f32[d0,d1,d5,d6] = relu(t1)
t3 f32[d0,d1,d5,d6] = minimum(t2, 6.0)
out0 f32[d0,d1,d5,d6] = t3
""",
}
# of more bytes than 2^31, more rows than 65,535 and more elements than a float counts: on a GPU alone
_HUGE = {
    "huge_silu": """region v1
dims d0=70001 d1=8192
in0 f32[d0,d1]
t0 f32[d0,d1] = sigmoid(in0)
t1 f32[d0,d1] = mul(in0, t0)
out0 f32[d0,d1] = t1
""",
}
_TEXTS["larger_of_two_wide"] = _TEXTS["larger_of_two"].replace("i32", "i64")


@lru_cache(maxsize=128)
def region(name: str) -> Program:
    """Raises KeyError for an unknown name."""
    return parse_program(_TEXTS[name] if name in _TEXTS else _HUGE[name])


def region_names() -> tuple[str, ...]:
    """Of those that any target can run."""
    return tuple(_TEXTS)
