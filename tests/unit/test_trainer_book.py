"""The book: verdicts are remembered, exemplars come from distinct buckets, islands stay apart."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.redteam.attacks import ATTACKS
from benchmarks.redteam.known_hacks import digests
from cudal1_compile.generate.exemplars import ExemplarConfig
from cudal1_trainer.rl.book import Book
from cudal1_trainer.rl.form import form_digest, known_hacks
from cudal1_trainer.rl.launch import find_hacks
from cudal1_trainer.scores.outcome import Code, Outcome

BUCKETS = ExemplarConfig("buckets", 2, 0.1, 0.25)


def _note(book: Book, task: int, digest: str, score: float, island: int = 0) -> None:
    book.note(task, island, Code(f"code {digest}", digest, f"design {digest}"), Outcome("right", score))


def test_two_exemplars_come_from_distinct_buckets_and_never_from_another_task() -> None:
    book = Book(1, 8)
    for digest, score in (("a", 1.01), ("b", 1.02), ("c", 1.55)):
        _note(book, 7, digest, score)
    _note(book, 8, "d", 9.0)
    for seed in range(20):
        slow, fast = book.choose(7, 0, BUCKETS, seed)
        assert slow.speedup < 1.1 and fast.speedup == 1.55
    assert book.best(7) == 1.55 and book.choose(9, 0, BUCKETS, 0) == []


def test_a_hack_of_one_task_is_known_on_every_other_and_undecided_is_not() -> None:
    book = Book(1, 8)
    book.note(1, 0, Code("code", "h"), Outcome("unbelievable"))
    book.note(1, 0, Code("code", "u"), Outcome("undecided"))
    book.note(1, 0, Code("code", "w"), Outcome("wrong"))
    assert book.known(2, "h") == Outcome("unbelievable")
    assert book.known(1, "u") is None and book.known(2, "w") is None and book.known(1, "w") is not None


def test_code_that_is_a_known_hack_but_for_its_names_is_looked_at_twice() -> None:
    hack = "// launch: f<<<d0, 64>>>(in0)\n__global__ void f(f32* in0) { int i = 3; st(in0, i); }"
    renamed = re.sub(r"\bi\b", "k", re.sub(r"\bf\b", "g", hack)).replace("{", "{  // new\n")
    book = Book(1, 8)
    assert not book.is_suspect(hack)
    book.note(1, 0, Code(hack, "h"), Outcome("unbelievable"))
    again = Book(1, 8)
    again.load(book.state())
    for known in (book, again):
        assert known.is_suspect(hack) and known.is_suspect(renamed)
        assert not known.is_suspect(hack.replace("st(", "ld("))
    book.note(1, 0, Code(hack.replace("3", "4"), "w"), Outcome("wrong"))
    assert not book.is_suspect(hack.replace("3", "4"))


def test_the_judges_attacks_and_earlier_cases_are_known_hacks(tmp_path: Path) -> None:
    (tmp_path / "hacks.0.jsonl").write_text(
        json.dumps({"program": "", "kind": "unbelievable", "code": "mine"}) + "\n"
    )
    found = set(find_hacks(tmp_path))
    assert found >= {form_digest("mine"), *(form_digest(a.code) for a in ATTACKS)} and len(found) > 400


def test_islands_do_not_see_each_other_until_the_worst_gets_the_best() -> None:
    book = Book(2, 8)
    _note(book, 0, "a", 1.0, island=0)
    _note(book, 0, "b", 2.0, island=1)
    assert [e.speedup for e in book.choose(0, 0, BUCKETS, 0)] == [1.0]
    book.migrate()
    assert [e.speedup for e in book.choose(0, 0, BUCKETS, 0)] == [2.0]


def test_its_state_restores_it() -> None:
    book = Book(2, 4)
    _note(book, 3, "a", 1.2, island=1)
    book.note(3, 0, Code("code", "h"), Outcome("forbidden", 0.0, "asm"))
    book.set_reference(3, 1.5)
    book.remember(3, [0.0, None, 1.2])
    again = Book(2, 4)
    again.load(book.state())
    assert again.state() == book.state()
    assert again.known(5, "h") == Outcome("forbidden", 0.0, "asm") and again.best(3) == 1.5
    assert again.remember(3, [1.0, 1.0, 1.0]) == [1.2, 1.0, 1.0, 1.0]


def test_the_trainers_digests_are_those_of_the_red_team() -> None:
    assert known_hacks() == set(digests()), "renew them: python -m benchmarks.redteam.known_hacks"
