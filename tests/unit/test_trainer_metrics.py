"""Lines of figures: whole ones or none, on a full disk and after a kill."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tmpfs import run_on_tmpfs

from cudal1_trainer.sft.metrics import append, forget_after, write_report

FULL = """
import sys
from pathlib import Path
from tmpfs import fill
from cudal1_trainer.sft.metrics import Metrics
out = Path(sys.argv[1])
metrics = Metrics(out, True)
metrics.write(0, {"loss": 0.5})
give_back = fill(out)
for step in range(1, 200):  # the room left in the file's last block ends within a line
    metrics.write(step, {"loss": 0.5})
metrics.close()
give_back()
metrics.write(200, {"loss": 0.25})
print((out / "metrics.jsonl").read_text())
"""


def test_a_full_disk_costs_whole_lines(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    done = run_on_tmpfs(tmp_path, "1m", FULL, str(tmp_path), environment=environment)
    steps = [json.loads(line)["step"] for line in done.stdout.split("\n") if line]
    assert 10 < len(steps) < 200 and steps == [*range(len(steps) - 1), 200]
    assert "are not written" in done.stderr


def test_what_a_killed_run_wrote_behind_its_checkpoint_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    forget_after(path, 1)
    for step in (1, 2, 3):
        append(path, json.dumps({"step": step}) + "\n")
    with path.open("a") as stream:
        stream.write('{"step": 4, "lo')
    forget_after(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_report_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_report(tmp_path, {"steps": object()})
    assert not list(tmp_path.iterdir())
    write_report(tmp_path, {"steps": 3})
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
