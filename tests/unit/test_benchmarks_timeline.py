"""The stamps of a first call: each call is noted, whatever comes of it, and told in a few lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.timeline import Stamps, main, stamped
from cudal1_compile.judge.judge import Judge
from cudal1_compile.pipeline.progress import LineProgress
from cudal1_compile.synthesis.progress import Decided, Preparing


class Work:
    def double(self, number: int) -> int:
        if number < 0:
            raise ValueError("a number below 0")
        return 2 * number


def test_each_call_is_noted_also_one_that_raises() -> None:
    stamps, plain = Stamps(), Work.double
    with stamps.around(Work, "double", "doubling", lambda given, found: {"of": given[1], "found": found}):
        assert Work().double(4) == 8
        with pytest.raises(ValueError, match="below 0"):
            Work().double(-1)
    assert Work.double is plain
    assert [(e["kind"], e["of"], e["found"]) for e in stamps.events] == [
        ("doubling", 4, 8),
        ("doubling", -1, None),
    ]
    assert all(e["s"] >= 0 for e in stamps.events)


def test_what_is_stamped_is_there_and_as_before_afterwards() -> None:
    """Names of the package's own, which a change of it may change."""
    stamps, close = Stamps(), Judge.close
    with stamped(stamps):
        assert Judge.close is not close
        progress = LineProgress("cuda")
        progress(Preparing(3, 20.0))
        progress.close()
    assert Judge.close is close
    assert [e["event"] for e in stamps.events] == ["Preparing"]


def test_a_timeline_is_told_by_phase_and_by_kind_of_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decided = repr(Decided(2, 3, 0.5, (1.3,), 4.0))
    events = [
        {"at": 1.0, "kind": "progress", "event": "Judging", "text": "not shown"},
        {"at": 2.0, "s": 0.5, "kind": "ask", "op": "quick", "verdicts": ["Timed"]},
        {"at": 4.0, "s": 1.5, "kind": "ask", "op": "quick", "verdicts": ["Timed"]},
        {"at": 5.0, "kind": "progress", "event": "Decided", "text": decided},
        {"at": 6.0, "s": 1.0, "kind": "judge closes", "spent": {"aten": 0.1, "inductor": 7.5}},
    ]
    file = tmp_path / "timeline.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert main(["--read", str(file)]) == 0
    told = capsys.readouterr().out
    assert "not shown" not in told and decided in told
    assert "ask quick             2 calls,    2.0 s, median 1.00, longest 1.50" in told
    assert "worker seconds: inductor 7.5" in told and "aten" not in told
    with pytest.raises(SystemExit):
        main(["--job", "llama"])
