"""The generator that runs vLLM in process, by the Python that CUDAL1_TEST_VLLM names: make test-vllm."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from stage_toys import REPLIES, TASKS, imitate
from test_trainer_foreign import make_checkpoint

from cudal1_trainer.model.base import load_base

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("CUDAL1_TEST_VLLM", "")
SCRIPT = """
import json, sys
if __name__ == "__main__":  # vLLM starts processes that read this file
    from cudal1_compile.generate.factory import make_generator
    generator = make_generator("vllm:" + sys.argv[1])
    replies = generator.propose(json.loads(sys.argv[2]), 3, seed=1)
    counts = [generator.budget_tokens, generator.count_tokens("in0 f32[d0]")]
    print("found " + json.dumps([counts, replies]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="CUDAL1_TEST_VLLM names no Python that has vLLM")
def test_replies_of_a_checkpoint_that_vllm_runs(tmp_path: Path) -> None:
    base = load_base(make_checkpoint(tmp_path / "raw", "qwen2", hidden=64))
    imitate(base.lm, base.language.codec, REPLIES[:1])
    base.save(tmp_path / "model")
    (tmp_path / "ask.py").write_text(SCRIPT)
    path = os.pathsep.join(map(str, (ROOT, ROOT / "fx_passes", ROOT / "cache")))
    said = subprocess.run(
        [PYTHON, str(tmp_path / "ask.py"), str(tmp_path / "model"), json.dumps(TASKS[:2])],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
    )
    (line,) = [line for line in said.stdout.splitlines() if line.startswith("found ")] or [said.stderr[-2000:]]
    (budget, count), replies = json.loads(line.removeprefix("found "))
    assert budget == 512 and count > 2  # half of the checkpoint's positions
    assert [[text.strip() for text in group] for group in replies] == [[REPLIES[0].strip()] * 3] * 2
