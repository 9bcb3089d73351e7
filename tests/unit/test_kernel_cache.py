"""One digest for all spellings of a kernel, and the store that a user's settings open."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudal1_compile import config
from cudal1_compile.kernel_cache import normalised_digest, open_store

CODE = """// launch: k<<<cdiv(d0, 256), 256>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
    int i = blockIdx.x * 256 + threadIdx.x;
    #pragma unroll
    if (i < d0) st(out0 + i, ld(in0 + i) + 1.5e-3f);
}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("blockIdx.x * 256", "blockIdx.x*256"),
        ("\n    int i", "\n\n\tint\n i"),
        ("st(out0", "st( /* here */ out0"),
        ("int i =", "int i = // why\n"),
        ("+ threadIdx.x", "+ \\\n threadIdx.x"),
        ("}\n", "}\n\n\n// the end"),
        ("k<<<cdiv(d0, 256), 256>>>", "k<<<cdiv(d0,256),256>>>"),
    ],
)
def test_another_spelling_has_the_same_digest(old: str, new: str) -> None:
    assert old in CODE
    assert normalised_digest(CODE.replace(old, new)) == normalised_digest(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1.5e-3f", "1.5e-2f"),
        ("i < d0", "i <= d0"),
        ("(in0, out0)\n", "(out0, in0)\n"),
        ("256), 256", "256), 128"),
        ("int i", "inti"),
        ("// launch", "// lunch"),
    ],
)
def test_another_kernel_has_another(old: str, new: str) -> None:
    assert old in CODE
    assert normalised_digest(CODE.replace(old, new)) != normalised_digest(CODE)


def test_the_key_lies_in_the_users_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDAL1_KEY_FILE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with open_store(tmp_path / "cache") as store:
        assert store.path is not None
    assert config.key_file() == tmp_path / "config" / "cudal1" / "key" and config.key_file().is_file()
    assert [p for p in (tmp_path / "cache").iterdir() if "key" in p.name] == []


def test_a_key_within_the_cache_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUDAL1_KEY_FILE", str(tmp_path / "cache" / "keys" / "key"))
    with open_store(tmp_path / "cache") as store:
        assert store.path is None and "lies within it" in store.database.fault
    assert not config.key_file().exists()
