"""Nothing in an object runs when it is loaded, and could do nothing if it did."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.redteam.honest import HONEST, SILU_SCALAR
from benchmarks.redteam.load_time import load_time_rows
from benchmarks.redteam.regions import region
from cudal1_compile.errors import BuildError
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime import hostbuild
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.cubin import check_cubin
from cudal1_compile.runtime.elf import ElfFacts, read_elf
from cudal1_compile.runtime.target import GPU_ARCHES, HOST, Target

pytestmark = pytest.mark.host

PROGRAM = region("silu")


def test_every_object_is_refused_and_none_escapes(tmp_path: Path) -> None:
    rows = load_time_rows(tmp_path)
    assert len({r.name for r in rows}) == len(rows) > 60
    assert not [r for r in rows if r.accepted]
    assert not [r for r in rows if r.escaped]
    stopped = [r for r in rows if "system call" in r.child]
    assert len(stopped) >= 12, "the payloads no longer run as their objects are loaded"


@pytest.mark.parametrize("check", [False, True])
def test_facts_of_a_kernels_object(check: bool) -> None:
    image = build(PROGRAM, parse_candidate(SILU_SCALAR, PROGRAM), HOST, check=check).image
    facts = read_elf(image)
    assert facts.defined == {"cudal1_entry_k", "cudal1_touch_shared"}
    assert {"expf", "cudal1_state", "__tls_get_addr"} <= facts.undefined
    assert ("__tsan_write4" in facts.undefined) is check
    assert facts.tls_bytes == 1


def test_a_changed_object_is_refused_or_the_same_to_every_reader() -> None:
    """Bytes of the headers and tables are changed: a refusal is BuildError, and what passes needs nothing new."""
    image = build(PROGRAM, parse_candidate(SILU_SCALAR, PROGRAM), HOST).image
    rng, passed = random.Random(42), 0
    known = read_elf(image)
    for _ in range(4000):
        changed = bytearray(image)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(0x1000) if rng.random() < 0.5 else rng.randrange(len(image))
            changed[at] = rng.randrange(256)
        try:
            facts = read_elf(bytes(changed))
            hostbuild.check_facts(facts, check=False)
        except BuildError:
            continue
        passed += 1
        assert isinstance(facts, ElfFacts) and facts.undefined <= known.undefined | hostbuild.ALLOWED
    assert 100 < passed < 3900


@pytest.mark.parametrize("arch", GPU_ARCHES)
def test_cubins_of_right_kernels_pass(arch: str) -> None:
    target = Target("cuda", "any", arch, 132, 227 * 1024, 50 << 20)
    for honest in HONEST[:8]:
        program = region(honest.region)
        check_cubin(build(program, parse_candidate(honest.code, program), target).image)


def test_parts_of_a_cubin_are_refused() -> None:
    target = Target("cuda", "any", "sm_90a", 132, 227 * 1024, 50 << 20)
    image = build(PROGRAM, parse_candidate(SILU_SCALAR, PROGRAM), target).image
    for end in range(0, len(image) - 64, 997):
        with pytest.raises(BuildError):
            check_cubin(image[:end])
