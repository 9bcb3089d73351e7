"""Mutations: each category finds its place, one place changes, the launch plan only where it is meant."""

from __future__ import annotations

import random
from collections import Counter
from difflib import SequenceMatcher

import pytest

from benchmarks.redteam.honest import HONEST
from benchmarks.redteam.mutate import CATEGORIES, Mutant, mutants
from benchmarks.redteam.regions import region

SCAN = """// scratch: s0 f32[d0] = 0
// launch: k<<<cdiv(d0, 32), 32>>>(in0, in1, s0, out0)
__global__ void k(const f32* in0, f32* s0, f32* out0 DIMS) {
  const float a = max(0.5f * -b, 1.5f);
  __syncthreads();
  if (threadIdx.x == 0 && lane_id() == 0) st(out0 + 1, relu(a));
  for (int i = 0; i < d0; i += 32) a = block_sum(a) + minimum(a, b) - c / d1;
  if (a <= 3) return;
}
"""


def _every() -> list[Mutant]:
    found = [m for h in HONEST for m in mutants(region(h.region), h.code, random.Random(1), 10**6)]
    return found + mutants(region("softmax"), SCAN, random.Random(1), 10**6)


def test_every_category_finds_places() -> None:
    counts = Counter(m.category for m in _every())
    assert set(counts) == set(CATEGORIES)


def test_a_mutant_differs_in_one_place() -> None:
    for honest in HONEST[:8]:
        for m in mutants(region(honest.region), honest.code, random.Random(1), 40):
            parts = SequenceMatcher(None, honest.code, m.code, autojunk=False).get_matching_blocks()
            assert m.code != honest.code
            first, last = parts[0].size, parts[-2].size
            assert honest.code[:first].count("\n") + 1 >= m.line or first == 0
            assert len(m.code) - len(honest.code) < 40 and last > 0
            assert m.before in honest.code and m.after in m.code


@pytest.mark.parametrize(
    ("category", "after"),
    [
        ("missing barrier", ""),
        ("dropped guard", "if (false) return;"),
        ("max for min", "const float a = min(0.5f * -b, 1.5f);"),
        ("sign dropped", "const float a = max(0.5f * b, 1.5f);"),
        ("wrong constant", "const float a = max(0.505f * -b, 1.5f);"),
        ("omitted initialisation", "// scratch: s0 f32[d0]"),
        ("grid too small", "// launch: k<<<max((d0) / (32), 1), 32>>>(in0, in1, s0, out0)"),
        ("swapped operands", "for (int i = 0; i < d0; i += 32) a = block_sum(a) + minimum(a, b) - d1 / c;"),
        ("wrong axis size", "for (int i = 0; i < d1; i += 32) a = block_sum(a) + minimum(a, b) - c / d1;"),
        ("& for |", "if (threadIdx.x == 0 || lane_id() == 0) st(out0 + 1, relu(a));"),
    ],
)
def test_what_a_category_writes(category: str, after: str) -> None:
    found = [m for m in mutants(region("softmax"), SCAN, random.Random(1), 10**6) if m.category == category]
    assert after in [m.after for m in found]


def test_the_same_seed_gives_the_same_mutants_in_different_categories() -> None:
    h = HONEST[2]
    first, again = (mutants(region(h.region), h.code, random.Random(7), 8) for _ in range(2))
    assert first == again and len(first) == 8
    assert len({m.category for m in first}) == 8
