"""A language model as a source of replies: a server's replies, judged on the host target, become pairs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from stage_toys import FAST, SLOW, TASKS
from test_generate_openai import chat, serving

from cudal1_compile.kernel.candidate import Reply, print_reply
from cudal1_compile.runtime.target import HOST
from cudal1_trainer.data.corpus import Source
from cudal1_trainer.data.scored import read_scored, write_scored
from cudal1_trainer.recipe import DataRecipe
from cudal1_trainer.sft.llm_replies import main
from cudal1_trainer.tasks.heldout import HeldOutProgram, hold_out, write_heldout

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("forks")]

# the canonical form of the toys' program multiplies by in0
FIRST, SECOND = FAST.replace("* b[j]", "* a[j]"), SLOW.replace("* ld(in1", "* ld(in0")
WRITTEN = (*(print_reply(Reply("Bound by memory.", "pointwise", code)) for code in (SECOND, FIRST, FAST)), "words")


def _answer(count: int, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """A slow kernel, a fast one, a wrong one and words, by turns; the prompt carries instructions."""
    prompt = body["messages"][0]["content"]
    assert "## Code" in prompt and "mul(t0, in0)" in prompt
    return 200, chat(*[WRITTEN[(count + i) % 4] for i in range(body["n"])])


def test_right_kernels_of_a_server_are_taught_and_held_out_programs_are_not(tmp_path: Path) -> None:
    write_heldout(hold_out([]), tmp_path / "heldout.json")
    tasks, taught = tmp_path / "tasks.jsonl", tmp_path / "taught.toy.jsonl"
    tasks.write_text("".join(json.dumps({"text": t}) + "\n" for t in TASKS[:2]))
    given = ["--recipe", "nano", "--data", str(tmp_path), "--tasks", str(tasks), "--out", str(taught)]
    with serving(_answer) as server:
        main(["--generator", f"{server.url}#model=toy", "--attempts", "5", *given])
        asked = len(server.requests)
        main(["--generator", f"{server.url}#model=toy", "--attempts", "5", *given])  # goes on: nothing is left
        assert len(server.requests) == asked
    head, *lines = map(json.loads, taught.read_text().splitlines())
    assert head["facts"] == HOST.facts() and "toy" in head["generator"]
    assert len(lines) == 2
    for line in lines:
        assert {code.strip() for _, _, code, _ in line["replies"]} == {FIRST, SECOND}
        assert all(cost < line["aten_us"] for *_, cost in line["replies"])

    scored = read_scored(write_scored(tmp_path, tmp_path / "scored.jsonl.xz", 1))
    assert scored is not None and len(scored) == 2
    source = Source(DataRecipe(contrastive=0.0, scored_plain=1.0), hold_out([]), scored)
    assert source.draw(random.Random(1))[0][1].reply.count("__global__") == 1

    held = [HeldOutProgram("task", "", "", lines[0]["text"], seed=1)]
    write_heldout(hold_out(held), tmp_path / "heldout.json")
    assert write_scored(tmp_path, tmp_path / "scored.jsonl.xz", 1) is not None
    assert len(read_scored(tmp_path / "scored.jsonl.xz") or ()) == 0  # both have the structure that is held out


def test_measurements_of_two_kinds_of_gpu_do_not_mix(tmp_path: Path) -> None:
    write_heldout(hold_out([]), tmp_path / "heldout.json")
    for name in ("a", "b"):
        (tmp_path / f"taught.{name}.jsonl").write_text(json.dumps({"facts": name}) + "\n")
    with pytest.raises(ValueError, match="2 kinds of GPU: a, b"):
        write_scored(tmp_path, tmp_path / "scored.jsonl.xz", 1)
