"""The table of convolutions: every program is one of torch's convolutions and has kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from benchmarks.products import INSTANCE_NORM, Convolution, main, table
from cudal1_compile.judge.checks.cases import oracle_bytes
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.ir import Ref
from cudal1_fx_passes.program.products import match_convolution
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.variants import write_variants


def test_the_table(tmp_path: Path) -> None:
    main(["--out", str(tmp_path / "products.jsonl")])
    rows = [json.loads(line) for line in (tmp_path / "products.jsonl").read_text().splitlines()]
    assert len(rows) == len(list(table())) >= 50
    for row in rows:
        program = parse_program(row["text"])
        (dot,) = [o for o in program.ops if o.fn.startswith("dot")]
        reads_elsewhere = any(isinstance(x, Ref) and x.access for x in dot.operands)
        assert (match_convolution(program, dot) is not None) == reads_elsewhere, row["text"]
        assert oracle_bytes(program, {}) < 8 << 30, row["text"]
        assert write_variants(program, 2), row["text"]


@pytest.mark.parametrize("transposed", [False, True])
def test_a_program_is_what_torch_computes(transposed: bool) -> None:
    layer = Convolution("conv_chain", 2, 3, (6, 5), 4, 3, 2, 1, transposed=transposed, tail=INSTANCE_NORM)
    program = layer.program()
    g = torch.Generator().manual_seed(0)
    x, w, bias = (torch.randn(s, generator=g) for s in ((2, 3, 6, 5), (3, 4, 3, 3), (4,)))
    made = F.conv_transpose2d(x, w, bias, 2, 1) if transposed else F.conv2d(x, w.transpose(0, 1), bias, 2, 1)
    wanted = F.instance_norm(made)
    by_shape = {tuple(t.shape): t for t in (x, w if transposed else w.transpose(0, 1).contiguous(), bias)}
    inputs = [by_shape[tuple(program.axis[a].size for a in i.axes)] for i in program.inputs]
    (got,) = evaluate(program, inputs)
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)  # the native reference rounds to TF32
