"""The loop on the host target: no kernel -> exported task -> stage 3 -> installed -> the same compile has one."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from stage_toys import PROBES, RECIPE, REPLIES, STAGE, make_bundle
from typer.testing import CliRunner

from cudal1_trainer.cli import train
from cudal1_trainer.rl.contrastive import main as contrastive
from cudal1_trainer.tasks.heldout import HeldOutProgram, hold_out, write_heldout

pytestmark = [pytest.mark.host, pytest.mark.slow]

COMPILE = """
import sys
import torch
from cudal1_compile import backend

def model(x, y):
    return (x + y) * y

x, y = torch.randn(512), torch.randn(512)
options = {"target": "host", "generator": sys.argv[1]}
torch.testing.assert_close(torch.compile(model, backend=backend.cudal1, options=options)(x, y), model(x, y))
"""


# the canonical form of (x + y) * y names y first
RIGHT = REPLIES[1].replace("* b[j]", "* a[j]")
WRONG = RIGHT.replace("+ b[j]", "- b[j]")
PROBED = tuple(text.replace("mul(t0, in1)", "mul(t0, in0)") for text in PROBES)


def _compile(bundle: Path) -> str:
    """What a new process says of it."""
    done = subprocess.run([sys.executable, "-c", COMPILE, str(bundle)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def _command(*words: str) -> str:
    done = CliRunner().invoke(train, words)
    assert done.exit_code == 0, done.output
    return done.output


def _heldout(folder: Path, *texts: str) -> str:
    write_heldout(hold_out(HeldOutProgram("task", t, "", t) for t in texts), folder / "heldout.json")
    return str(folder)


def _recipe(path: Path, **changes: int) -> str:
    stage = replace(STAGE, steps=16, tasks=1, prompts=1, group=16, ahead=0, **changes)
    path.write_text(yaml.safe_dump(asdict(replace(RECIPE, contrastive=stage))))
    return str(path)


@pytest.mark.timeout(900)
def test_a_region_without_a_kernel_gets_one_by_training_on_it(tmp_path: Path) -> None:
    bundle, new = tmp_path / "bundle", tmp_path / "out" / "model"
    misses = str(tmp_path / "misses.jsonl")
    make_bundle(bundle, replies=[WRONG] * 13 + [RIGHT] * 3)
    path = bundle / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"temperature": 0.01}))  # always its first choice
    assert "unprofitable 1" in _compile(bundle)
    assert "unprofitable 1" in _compile(bundle)  # this model is not asked twice
    assert "1 regions" in _command("export-misses", misses)

    recipe = ["--recipe", _recipe(tmp_path / "toy.yaml", probe_tasks=0), "--tasks", misses]
    folders = ["--model", str(bundle), "--data", _heldout(tmp_path / "data"), "--out", str(new.parent)]
    contrastive(recipe + folders)

    probed = ["--recipe", _recipe(tmp_path / "probed.yaml"), "--data", _heldout(tmp_path / "probes", *PROBED)]
    assert "2 held-out programs" in _command("compare", str(bundle), str(new), *probed, "--install")
    assert "new 1" in _compile(bundle)
    assert "hit 1" in _compile(bundle)
