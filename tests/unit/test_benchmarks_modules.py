"""The benchmark of small modules: every module runs, figures follow from rows, one module goes the whole way."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from benchmarks import modules
from benchmarks.model_contenders import Step, results
from benchmarks.zoo_modules import MODULES, ModuleSpec


def _row(
    eager: float, inductor: float, cudal1: float, error: float = 1e-7, choice: str = "all_kernels"
) -> dict[str, Any]:
    return {
        "ms": {"eager": eager, "inductor": inductor, "cudal1": cudal1},
        "worst_error": {"eager": 1e-7, "inductor": 1e-7, "cudal1": error},
        "decided": [(choice, 1.0)],
        "first_call_s": {"eager": 0.1, "inductor": 1.0, "cudal1": 9.0},
    }


@pytest.mark.parametrize("spec", MODULES, ids=lambda spec: spec.name)
def test_every_module_gives_finite_results_that_float64_confirms(spec: ModuleSpec) -> None:
    torch.manual_seed(0)
    module, inputs = spec.make(True)
    step = Step(module.train(spec.trains), inputs, spec.trains)
    found = results(step, step.module)
    assert all(bool(x.isfinite().all()) for x in found.values())
    assert not spec.trains or any(name.startswith("gradient") for name in found)


def test_summary_counts_the_better_of_eager_and_inductor() -> None:
    found = modules.summarise([_row(2.0, 4.0, 2.0), _row(8.0, 2.0, 1.0, choice="inductor"), {"failed": "no room"}])
    assert found["failed"] == 1 and found["sound"] == 1.0 and found["chosen"] == 0.5
    assert found["speedup_over_inductor"] == pytest.approx(2.0)
    assert found["speedup_over_best"] == pytest.approx(2**0.5)
    assert found["slowest_over_best"] == pytest.approx(1.0)


def test_an_error_beyond_the_baselines_is_not_sound() -> None:
    assert modules.is_sound(_row(1.0, 1.0, 1.0, error=9e-7))
    assert not modules.is_sound(_row(1.0, 1.0, 1.0, error=2e-6))


def test_decisions_are_read_from_the_trial() -> None:
    seen = modules.Decisions()
    logger = logging.getLogger("cudal1_compile.pipeline.choice")
    logger.addHandler(seen)
    logger.setLevel(logging.INFO)
    try:
        logger.info("decided for %s, %.3f of inductor's speed", "all_kernels", 1.25)
    finally:
        logger.removeHandler(seen)
        logger.setLevel(logging.NOTSET)
    assert seen.found == [("all_kernels", 1.25)]


def test_a_module_goes_the_whole_way_without_kernels() -> None:
    spec = next(m for m in MODULES if m.name == "running_sum")
    row = modules.measure(spec, True, {"target": "host", "budget_s": 0.0})
    assert modules.is_sound(row)
    assert row["regions"] == {"regions": 1, "new": 0, "aten": 0, "unprofitable": 0, "untuned": 1}
    assert set(row["ms"]) == {"eager", "inductor", "cudal1"}
