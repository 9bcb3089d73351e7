"""Case suites that a CPU made, on a GPU: torch's own results there pass them, and the judge uses them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from benchmarks.redteam.attacks import attacks_for
from benchmarks.redteam.honest import HONEST
from benchmarks.redteam.regions import region, region_names
from cudal1_compile.judge.bench.device import DeviceBench
from cudal1_compile.judge.checks.case_suite import CaseSuite
from cudal1_compile.judge.checks.case_suite_file import can_make_ahead, make_ahead, read_suite
from cudal1_compile.judge.checks.cases import check_together
from cudal1_compile.judge.checks.trial import landed, on_its_way
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.verdict import Accepted, Rejected
from cudal1_compile.runtime.target import detect_target
from cudal1_fx_passes.program.evaluate import evaluate

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)
AHEAD = [name for name in region_names() if can_make_ahead(region(name))]


@pytest.mark.parametrize("name", AHEAD)
def test_torch_on_the_device_passes_a_case_suite_made_on_a_cpu(name: str, tmp_path: Path) -> None:
    program, path = region(name), tmp_path / "suite"
    assert make_ahead(program, 5, (), path)
    suite = read_suite(path, program, CUDA)
    assert isinstance(suite, CaseSuite)
    results = [(case, evaluate(program, case.inputs, case.sizes)) for case in suite.cases]
    refused = [found.refusal for one in results for found in check_together([one]) if found.refusal]
    assert not refused


def test_the_judge_uses_case_suites_made_ahead() -> None:
    honest = [h for h in HONEST if h.region == "softmax"]
    wrong = next(a for a in attacks_for("cuda") if a.name == "softmax sum without its last element")
    program = region("softmax")
    with Judge(detect_target(CUDA), Limits(workers=1), seed=7) as judge:
        bench = judge._bench
        assert isinstance(bench, DeviceBench)
        bench._suites.begin(bench._suite_requests([program], 7))
        (future,) = bench._suites._asked.values()
        suite = Path(future.result(60.0)["suite"])
        verdicts = judge.judge_many(program, [*(h.code for h in honest), wrong.code])
        assert all(isinstance(v, Accepted) for v in verdicts[:-1]), verdicts
        assert isinstance(verdicts[-1], Rejected) and verdicts[-1].stage == "verify"
        end = time.monotonic() + 10.0
        while suite.exists() and time.monotonic() < end:
            time.sleep(0.01)
        assert not suite.exists()


def test_flags_come_with_the_wait_for_what_is_queued_before() -> None:
    stream = torch.cuda.Stream(CUDA)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for turn in range(100):
            torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
            flags = torch.arange(64, device=CUDA) % 7 == turn % 7
            assert landed(on_its_way(flags), CUDA) == [i % 7 == turn % 7 for i in range(64)]
