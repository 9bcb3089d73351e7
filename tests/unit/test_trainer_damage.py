"""Damaged files of a data folder and of a run: an error that names the file and says what to do, no traceback."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cudal1_compile.codegen.prior.regression import load_prior
from cudal1_trainer.scores.scorebook import read_scores
from cudal1_trainer.sft.metrics import forget_after
from cudal1_trainer.tasks.heldout import hold_out, read_heldout, write_heldout
from cudal1_trainer.tasks.structures import read_structures, write_structures

READERS: dict[str, Callable[[Path], object]] = {
    "heldout.json": read_heldout,
    "structures.jsonl.gz": read_structures,
    "prior.npz": load_prior,
    "scores.jsonl": lambda path: read_scores([path]),
    "metrics.jsonl": lambda path: forget_after(path, 3),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "content", [b"\x00\xff not a file of ours\n", b'{"programs": [{}]}\n', b"\x1f\x8b\x08 cut\n"]
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} cannot be read .*Put back a whole one"):
        READERS[name](path)


def test_what_is_whole_is_read_and_a_damaged_line_of_the_families_named(tmp_path: Path) -> None:
    write_structures(["a", "b"], tmp_path / "structures.jsonl.gz")
    assert read_structures(tmp_path / "structures.jsonl.gz") == ("a", "b")
    whole = (tmp_path / "structures.jsonl.gz").read_bytes()
    (tmp_path / "structures.jsonl.gz").write_bytes(whole[:-6])  # gzip's end
    with pytest.raises(ValueError, match="structures.jsonl.gz cannot be read"):
        read_structures(tmp_path / "structures.jsonl.gz")
    assert gzip.decompress(whole).decode().splitlines() == [json.dumps("a"), json.dumps("b")]
    write_heldout(hold_out(()), tmp_path / "heldout.json")
    assert not read_heldout(tmp_path / "heldout.json").programs
    (tmp_path / "families.jsonl").write_text('{"text": "region v1\\n"}\n')
    with pytest.raises(ValueError, match=r"families\.jsonl cannot be read"):
        read_heldout(tmp_path / "heldout.json")
