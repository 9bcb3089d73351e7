"""The fork server is warm for compiles for a GPU, and its forks can use it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.first_compiles import check_first_compiles

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

pytestmark = pytest.mark.gpu


def test_a_first_compile_for_a_gpu_imports_registers_and_builds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("softmax", "argmax", "running_sum")
    attention, pre_grad, *_ = check_first_compiles(names, "cuda:0", tmp_path, monkeypatch)
    assert attention == pre_grad == 0  # for some of the others torch 2.13 asks which GPU it is: forks do that
