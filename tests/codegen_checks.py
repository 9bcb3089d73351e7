"""What tests of templates ask of their kernels: right results, no broken rule of memory, values in registers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from cudal1_compile.judge.checks.memcheck import find_fault
from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.hostrun import run_isolated
from cudal1_compile.runtime.target import HOST, Target
from cudal1_fx_passes.program.ir import Program
from cudal1_trainer.scores.measure import _check_all, build_all
from cudal1_trainer.tasks.variants import Variant

LOCAL_BYTES = 48  # ptxas parks a few registers now and then


def run_on_host(program: Program, candidates: Mapping[str, Candidate]) -> tuple[set[str], dict[str, str]]:
    """Names of those that are right, and why others are not. Raises Unusable where values overflow."""
    built = build_all(program, candidates, HOST, lambda _: None)
    failures = {b.name: b.failure for b in built if b.failure is not None}
    kernels, _ = _check_all(program, built, torch.device("cpu"), lambda _: None, ("normal",), failures)
    return set(kernels), failures


def results_on_host(
    program: Program, variant: Variant, inputs: Mapping[str, torch.Tensor]
) -> Mapping[str, torch.Tensor]:
    """Outputs by name, of float32 tensors alone, whatever the inputs hold."""
    dims = {a.name: a.size for a in program.axes}
    outputs = {o.name: torch.empty([dims[a] for a in o.axes]) for o in program.outputs}
    scratch = {s.name: torch.empty(s.size_bytes(dims) // 4) for s in variant.candidate.scratch}
    image = build(program, variant.candidate, HOST).image
    assert run_isolated(program, variant.candidate, image, {**inputs, **outputs, **scratch}).ok
    return outputs


def assert_no_rule_is_broken(program: Program, variants: Iterable[Variant]) -> None:
    """By the host's check build."""
    for variant in variants:
        look = find_fault(program, variant.candidate, 3, 20.0)
        assert look.fault is None, variant.candidate.code
        assert dict(look.said) == {"host check build": "clean"}


def assert_registers_hold_all(program: Program, variants: Iterable[Variant]) -> None:
    """As NVRTC builds them for an H100."""
    target = Target("cuda", "test", "sm_90a", 132, 227 * 1024, 50 << 20)
    for variant in variants:
        for resources in build(program, variant.candidate, target).kernels.values():
            assert resources.local_bytes <= LOCAL_BYTES, variant.candidate.code
