"""Templates' kernels against the oracle, on the host target checked for races and bounds.

A failure prints the program and the code; rerun it with `generate_task(random.Random(seed), family, small=True)`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import pytest
import torch
from codegen_regions import REGIONS
from slow_cases import slow_but
from torch import Tensor

from cudal1_compile.codegen.stages.schedule import print_schedule
from cudal1_compile.codegen.strategies import write_code
from cudal1_compile.codegen.templates import Schedule, variants, write_reply
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.verdict import Accepted
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.hostrun import HostLimits, run_isolated
from cudal1_compile.runtime.launch_plan import buffer_names
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_trainer.scores.quickcheck import Unusable, check, make_subject
from cudal1_trainer.tasks import FAMILIES, generate_task

pytestmark = pytest.mark.host


def refusal(program: Program, schedule: Schedule, seed: int) -> str | None:
    """Builds and runs one variant on two distributions; None where right."""
    reply = write_reply(program, schedule)
    if reply is None:
        return None
    candidate = parse_candidate(reply.code, program)
    image = build(program, candidate, HOST, check=True).image
    names = buffer_names(program, candidate)

    def run(outputs: Sequence[Tensor], scratch: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        buffers = dict(zip(names, [*outputs, *scratch, *inputs], strict=True))
        found = run_isolated(program, candidate, image, buffers, HostLimits(order="random", seed=seed))
        assert found.ok, f"{found.message}\n{print_program(program)}{reply.code}"

    for distribution in ("normal", "offset"):
        try:
            subject = make_subject(program, torch.device("cpu"), distribution, seed)
        except Unusable:
            continue
        reason = check(subject, candidate, run)
        if reason:
            return f"{distribution}: {reason}\n{print_program(program)}{reply.design}\n{reply.code}"
    return None


@pytest.mark.parametrize("seed", slow_but([0], range(3)))
@pytest.mark.parametrize("family", FAMILIES)
def test_random_variants_of_random_tasks(family: str, seed: int) -> None:
    rng = random.Random(seed)
    program = generate_task(rng, family, small=True)
    assert (reason := refusal(program, rng.choice(variants(program)), seed)) is None, reason


MARGINS = """region v1
dims d0=64 d1=1004
in0 i64[d0] in [0,d1)
in1 bf16[d0,d1]
t0 f32[d0,d1] = cast(in1)
t1 f32[d0] = sub(1.0, t0[d1=in0])
t2 f32[d0,d1] = add(t0, t1)
t3 f32[d0,d1] = maximum(t2, 0.0)
t4 f32[] = mean(t3) over d0,d1
t5 f32[d0] = var(t0, 1.0) over d1
t6 f32[d0] = sqrt(t5)
out0 f32[] = t4
out1 f32[d0] = t6
out2 f32[d0] = t1
"""


def test_the_first_kernel_of_a_split_loads_what_it_uses_alone() -> None:
    """Each row's own class is read for the second kernel; the first one has not even its index."""
    program = parse_program(MARGINS)
    found = [s for s in variants(program) if any(t.kind.startswith("split") for t in s.stages)]
    split = {tuple(t.kind for t in s.stages): s for s in found}
    assert split
    for schedule in split.values():
        assert (reason := refusal(program, schedule, 1)) is None, reason


def test_remainders_of_integers_are_not_those_of_floats() -> None:
    program = parse_program(
        "region v1\ndims d0=40\nin0 i64[d0]\nt0 i64[d0] = fmod(in0, 6)\nt1 i64[d0] = pow(t0, 3)\n"
        "out0 i64[d0] = t1\n"
    )
    reply = write_reply(program, variants(program)[0])
    assert reply is not None and "% 6" in reply.code and "int_pow<long long>" in reply.code
    with Judge(HOST, seed=1) as judge:
        verdict = judge.judge(program, reply.code)
    assert isinstance(verdict, Accepted), verdict


@pytest.mark.parametrize(("width", "vectors"), [(4096, {2, 4}), (4101, {1})])
def test_a_maximum_that_others_read_is_infinite_where_its_row_is(width: int, vectors: set[int]) -> None:
    """And so are, or are NaN, the parts of a softmax that a training step keeps."""
    program = parse_program(
        f"region v1\ndims d0=5 d1={width}\nin0 f32[d0,d1]\nt0 f32[d0] = amax(in0) over d1\n"
        "t1 f32[d0,d1] = sub(in0, t0)\nt2 f32[d0,d1] = exp(t1)\nt3 f32[d0] = sum(t2) over d1\n"
        "t4 f32[d0] = log(t3)\nout0 f32[d0] = t0\nout1 f32[d0] = t4\n"
    )
    found = [s for s in variants(program) if any(t.kind == "online" for t in s.stages)]
    assert {t.vector for s in found for t in s.stages if t.kind == "online"} == vectors
    x = torch.randn(5, width)
    x[1] = -torch.inf
    x[2, 7] = torch.inf
    x[3, 9:] = -torch.inf
    x[4, 4000] = torch.nan
    top = x.amax(1)
    wanted = top, (x - top[:, None]).exp().sum(1).log()
    for schedule in found:
        reply = write_reply(program, schedule)
        assert reply is not None
        candidate = parse_candidate(reply.code, program)
        image = build(program, candidate, HOST, check=True).image
        made = [torch.zeros(5), torch.zeros(5)]
        buffers = dict(zip(buffer_names(program, candidate), [*made, x], strict=True))
        assert run_isolated(program, candidate, image, buffers, HostLimits(seed=1)).ok
        torch.testing.assert_close(made, list(wanted), equal_nan=True)


@pytest.mark.parametrize("name", slow_but([*REGIONS][::2], REGIONS))
def test_regions_as_models_give_them(name: str) -> None:
    program = parse_program(REGIONS[name])
    found = {(s.strategy, s.stages[0].kind, s.stages[-1].kind): s for s in reversed(variants(program))}
    assert found
    for schedule in found.values():
        assert (reason := refusal(program, schedule, 1)) is None, reason


@pytest.mark.parametrize(
    "line",
    [
        "i8[d0] = sum(in0) over d1",
        "i8[d1] = prod(in0) over d0",
        "i8[d0,d1] = cumsum(in0) along d1",
        "i8[d0,d1] = mul(in0, 100)",
        "u8[d0,d1] = cast(in0)",
    ],
)
def test_narrow_integers_wrap_around_before_they_are_read(line: str) -> None:
    axes = line[: line.index("]") + 1].removeprefix("i8").removeprefix("u8")
    text = (
        f"region v1\ndims d0=12 d1=300\nin0 i8[d0,d1]\nt0 {line}\nt1 f32{axes} = cast(t0)\nout0 f32{axes} = t1\n"
    )
    program = parse_program(text)
    found = {(s.strategy, s.stages[0].kind): s for s in variants(program)}
    assert found
    for schedule in found.values():
        assert (reason := refusal(program, schedule, 1)) is None, reason


def test_no_thread_adds_up_a_hundred_thousand_terms() -> None:
    text = "region v1\ndims d0=300000 d1=3\nin0 f32[d0,d1]\nt0 f32[d1] = mean(in0) over d0\nout0 f32[d1] = t0\n"
    found = variants(parse_program(text))
    assert found and all(s.stages[0].kind != "thread" for s in found)


@pytest.mark.parametrize("count", slow_but([2], [2, 6]))
@pytest.mark.parametrize("strategy", ["split", "fused"])
def test_strategies_with_scratch(strategy: str, count: int) -> None:
    family = {"split": "totals", "fused": "mixed"}[strategy]
    done = 0
    for seed in range(60):
        program = generate_task(random.Random(seed), family, small=True)
        found = [s for s in variants(program) if s.strategy == strategy]
        if found and done < count:
            assert (reason := refusal(program, found[seed % len(found)], seed)) is None, reason
            done += 1
    assert done == count


# region, pattern of the schedule: designs for which the regions above are too small
DESIGNS = {
    "column_sums_in_vectors": (
        """region v1
dims d0=517 d1=36
in0 bf16[d0,d1]
in1 bf16[d0,d1]
in2 f32[d1]
in3 f32[d0]
t0 bf16[d0,d1] = mul(in0, 0.5)
t1 bf16[d0,d1] = mul(in1, t0)
t2 f32[d0,d1] = cast(t1)
t3 f32[d0,d1] = mul(t2, in2)
t4 f32[d0,d1] = mul(t3, in3)
t5 f32[d1] = mean(t4) over d0
t6 f32[d1] = mul(t5, in2)
out0 bf16[d0,d1] = t1
out1 bf16[d1] = t6
""",
        r"split/split_tile\.[24]\.",
    ),
    "one_column_a_thread_beside_an_output": (
        """region v1
dims d0=311 d1=45
in0 f16[d0,d1]
t0 f16[d0,d1] = neg(in0)
t1 f16[d1] = sum(t0) over d0
out0 f16[d0,d1] = t0
out1 f16[d1] = t1
""",
        r"split/split_tile\.1\.",
    ),
    "loss_and_its_gradient": (
        """region v1
dims d0=29492
in0 f32[d0]
in1 f32[d0]
t0 f32[d0] = sub(in0, in1)
t1 f32[d0] = mul(t0, t0)
t2 f32[] = mean(t1) over d0
t3 f32[d0] = mul(t0, 6.781684027777777e-05)
out0 f32[] = t2
out1 f32[d0] = t3
""",
        r"split/split_block\.4\.",
    ),
    "variance_read_once": (
        """region v1
dims d0=4 d1=6 d2=1252
in0 f16[d0,d1,d2]
t0 f32[d0,d1,d2] = cast(in0)
t1 f32[d1] = var(t0, 0.0) over d0,d2
t2 f32[d1] = mean(t0) over d0,d2
out0 f32[d1] = t1
out1 f32[d1] = t2
""",
        r"split/split_block\.4\.\d+\.r\.s",
    ),
    "odd_number_of_elements": (
        """region v1
dims d0=26401
in0 f32[d0]
in1 bool[d0]
in2 f16[d0]
t0 f32[d0] = add(in0, 0.25)
t1 bool[d0] = gt(t0, -0.49)
t2 f32[d0] = where(in1, t0, 0.0)
t3 f32[d0] = cast(in2)
t4 f32[d0] = add(t2, t3)
out0 f32[d0] = t4
out1 bool[d0] = t1
""",
        r"pointwise/ragged",
    ),
    "rows_of_odd_length": (
        """region v1
dims d0=13 d1=1023 d2=3
in0 bf16[d2,d0,d1]
in1 bf16[d1]
in2 f32[d0]
t0 bf16[d0,d1,d2] = mul(in0, in1)
t1 f32[d0,d1,d2] = cast(t0)
t2 f32[d0,d1,d2] = add(t1, in2)
t3 bf16[d0,d1,d2] = cast(t2)
out0 bf16[d0,d2,d1] = t3
out1 f32[d0,d2,d1] = t2
""",
        r"pointwise/ragged",
    ),
    "statistics_of_odd_rows": (
        """region v1
dims d0=7 d1=1023
in0 bf16[d0,d1]
in1 f32[d1]
in2 bf16[d0,d1]
t0 f32[d0,d1] = cast(in0)
t1 f32[d0] = mean(t0) over d1
t2 f32[d0,d1] = sub(t0, t1)
t3 f32[d0] = var(t0, 0.0) over d1
t4 i64[d0] = argmin(in2) over d1
t5 f32[d0,d1] = mul(t2, t3)
t6 f32[d0,d1] = mul(t5, in1)
out0 bf16[d0,d1] = t6
out1 i64[d0] = t4
""",
        r"grouped/ragged",
    ),
    "loss_over_an_odd_number": (
        """region v1
dims d0=23 d1=1021
in0 f32[d0,d1]
in1 f32[d0,d1]
t0 f32[d0,d1] = sub(in0, in1)
t1 f32[d0,d1] = mul(t0, t0)
t2 f32[] = mean(t1) over d0,d1
t3 f32[d0,d1] = mul(t0, 0.5)
out0 f32[] = t2
out1 f32[d0,d1] = t3
""",
        r"split/split_ragged",
    ),
    "transposed_copy_with_sums": (
        """region v1
dims d0=2 d1=45 d2=3 d3=38
in0 f16[d0,d2,d3,d1]
in1 f32[d2,d3]
t0 f16[d0,d1,d2,d3] = mul(in0, 0.5)
t1 f16[d2,d3] = sum(t0) over d0,d1
t2 f32[d2,d3] = cast(t1)
t3 f32[d2,d3] = mul(t2, in1)
t4 f16[d2,d3] = amax(in0) over d0,d1
out0 f16[d0,d1,d2,d3] = t0
out1 f32[d2,d3] = t3
out2 f16[d2,d3] = t4
""",
        r"split/turn",
    ),
    "first_of_equals_in_columns": (
        """region v1
dims d0=819 d1=37
in0 f32[d0,d1]
t0 f32[d0,d1] = floor(in0)
t1 i64[d1] = argmax(t0) over d0
t2 f32[d1] = mean(in0) over d0
out0 i64[d1] = t1
out1 f32[d1] = t2
""",
        r"split/split_tile|grouped/tile",
    ),
    "first_of_equals_in_rows": (
        """region v1
dims d0=3 d1=4098
in0 bf16[d0,d1]
t0 bf16[d0,d1] = floor(in0)
t1 i64[d0] = argmin(t0) over d1
out0 i64[d0] = t1
""",
        r"split/split_block",
    ),
    "softmax_of_masked_rows": (
        """region v1
dims d0=3 d1=4100
in0 f32[d0,d1]
in1 bool[d0,d1]
t0 f32[d0,d1] = where(in1, in0, -inf)
t1 f32[d0] = amax(t0) over d1
t2 f32[d0,d1] = sub(t0, t1)
t3 f32[d0,d1] = exp(t2)
t4 f32[d0] = sum(t3) over d1
t5 f32[d0,d1] = div(t3, t4)
t6 f32[d0] = sum(in0) over d1
out0 f32[d0,d1] = t5
out1 f32[d0] = t6
out2 f32[d0] = t1
""",
        r"grouped/online\.4\.",
    ),
    "logsumexp_of_odd_rows": (
        """region v1
dims d0=3 d1=4101
in0 bf16[d0,d1]
t0 f32[d0,d1] = cast(in0)
t1 f32[d0] = logsumexp(t0) over d1
t2 f32[d0,d1] = sub(t0, t1)
out0 f32[d0,d1] = t2
""",
        r"grouped/online\.1\.",
    ),
    "column_variance_read_once": (
        """region v1
dims d0=1501 d1=35
in0 bf16[d0,d1]
t0 f32[d0,d1] = cast(in0)
t1 f32[d1] = var(t0, 1.0) over d0
out0 f32[d1] = t1
""",
        r"split/split_tile\.1\.\d+\.r\.s",
    ),
    "norm_of_more_looked_up_rows_than_they_are_long": (
        """region v1
dims d0=97 d1=256 d2=4 d3=90
in0 f32[d0,d1]
in1 i64[d2,d3] in [0,d0)
in2 f32[d3,d1]
t0 f32[d1,d2,d3] = add(in0[d0=in1], in2)
t1 f32[d2,d3] = mean(t0) over d1
t2 f32[d1,d2,d3] = sub(t0, t1)
t3 f32[d2,d3] = var(t0, 0.0) over d1
t4 f32[d2,d3] = add(t3, 1e-05)
t5 f32[d1,d2,d3] = mul(t2, t4)
out0 f32[d2,d3,d1] = t5
out1 f32[d2,d3] = t1
""",
        r"grouped/block\.4\.",
    ),
}


@pytest.mark.parametrize("name", slow_but([*DESIGNS][::2], DESIGNS))
def test_designs(name: str) -> None:
    text, wanted = DESIGNS[name]
    program = parse_program(text)
    found = [s for s in variants(program) if re.search(wanted, print_schedule(s))]
    for schedule in found[:1] + found[-1:]:
        assert (reason := refusal(program, schedule, 1)) is None, reason
    assert found


def test_shifted_reads_that_stay_aligned_are_vectors() -> None:
    def reads(text: str) -> set[str]:
        program = parse_program(text)
        codes = [write_code(program, s) for s in variants(program)]
        return set(re.findall(r"\w+(?:<8>)?\(in2 .*(?=\) \*)", "".join(c for c in codes if "store<8>" in c)))

    text = REGIONS["rotary_of_a_part"]
    assert reads(text) == {"vload<8>(in2 + i0 * in2_d0 + i1 * in2_d1 + (max(i2 - 16, 0)"}
    assert reads(text.replace("d3=d2-16", "d3=d2-15")) == {
        "ld(in2 + i0 * in2_d0 + i1 * in2_d1 + (min(max((i2 + j) - 15, 0), d3 - 1)"
    }


def test_a_wrong_kernel_is_seen() -> None:
    program = parse_program(REGIONS["rotary_backward"])
    reply = write_reply(program, variants(program)[0])
    assert reply is not None
    candidate = parse_candidate(reply.code.replace("t5 ?", "!t5 ?"), program)
    assert candidate.code != reply.code
    image = build(program, candidate, HOST, check=True).image
    names = buffer_names(program, candidate)

    def run(outputs: Sequence[Tensor], scratch: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        run_isolated(program, candidate, image, dict(zip(names, [*outputs, *scratch, *inputs], strict=True)))

    assert check(make_subject(program, torch.device("cpu")), candidate, run) is not None
