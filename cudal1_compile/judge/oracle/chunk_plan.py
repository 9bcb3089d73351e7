"""How a program's results are taken chunk by chunk, within a limit of memory: which reductions first, how small.

    program + limit -> chunk_plan() -> ChunkPlan(passes, what they keep, bytes) | NoChunks

A pass runs over the TILES of one axis, or where that is not small enough of several. The outputs need reductions;
those of which every chunk needs all of the result are KEPT, each by a pass of its own before, and a scan that is
cut along its axis is CARRIED: what its terms come to is kept at the end of each block. Of the axes along which
passes can go that one is taken with which the least is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil, prod

from cudal1_compile.judge.oracle.chunk_passes import ChunkPlan, Pass, ranges_of
from cudal1_compile.judge.oracle.chunk_program import Chunk, Known, NoChunks, Range, Target, chunk_of, sized
from cudal1_compile.judge.oracle.memory import oracle_bytes
from cudal1_compile.judge.oracle.partial_sums import SCANS, as_reduction
from cudal1_compile.judge.oracle.reduction_rules import POSITIONS
from cudal1_fx_passes.program.ir import Op, Program
from cudal1_fx_passes.program.ops import OPS, Kind

EXPECTED_BYTES = 64  # an output element's oracle, tolerance and comparison
KEPT_BYTES = 192  # an element's joined parts, and what is concluded from them
CARRIED_BYTES = 64  # the joined parts alone
SMALL_SHARE = 16  # of the limit, where a reduction is rather computed again for each chunk than kept
KEPT_SHARE = 2  # of the limit, for what is kept
ENOUGH = 3  # plans to choose from, along the largest axes that have one


def chunk_plan(program: Program, sizes: Mapping[str, int], limit_bytes: int) -> ChunkPlan:
    """Raises NoChunks where nothing fits, naming what is too large."""
    return _planned(sized(program, sizes), limit_bytes)


@lru_cache(maxsize=64)
def _planned(program: Program, limit_bytes: int) -> ChunkPlan:
    axes = sorted((a for a in program.axes if a.size > 1), key=lambda a: -a.size)
    plans: list[ChunkPlan] = []
    reasons: list[NoChunks] = []
    for axis in axes:
        if len(plans) < ENOUGH:
            try:
                plans.append(_Planner(program, limit_bytes, axis.name).plan())
            except NoChunks as reason:
                reasons.append(reason)
    if not plans:
        raise reasons[0] if reasons else NoChunks("no axis of the region has two elements")
    return min(plans, key=lambda p: p.work)


@dataclass(frozen=True, slots=True)
class _Trial:
    """One way to take a pass: what it needs to be known, the steps that this takes, bytes of its largest chunk."""

    made: Pass
    kept: frozenset[str]
    scans: frozenset[str]
    steps: Mapping[str, int]
    size_bytes: int
    largest: str  # the operation with the most terms in a chunk


class _Planner:
    """Plans whose passes go along one axis where they can. steps: along each axis the same in all passes."""

    def __init__(self, program: Program, limit_bytes: int, preferred: str) -> None:
        self._p, self._limit, self._preferred = program, limit_bytes, preferred
        self._extent = {a.name: a.size for a in program.axes}
        self._steps: dict[str, int] = {}
        self._kept: frozenset[str] = frozenset()
        self._scans: frozenset[str] = frozenset()
        self._whole: dict[str, int] = {}

    def plan(self) -> ChunkPlan:
        while True:
            before = (self._kept, self._scans, dict(self._steps))
            cut = [self._cut(root) for root in self._roots()]
            if before == (self._kept, self._scans, self._steps):
                return self._arranged(cut)

    def _roots(self) -> list[Pass]:
        """A pass for each result that needs one, nothing cut."""
        outputs = [Pass("outputs", (o.name,), {}) for o in self._p.outputs]
        return outputs + [
            Pass("parts", (op.name,), {}) for op in self._p.ops if op.name in self._kept | self._scans
        ]

    def _cut(self, root: Pass) -> Pass:
        """Cut as far as the limit asks for, and what it needs noted."""
        whole = root.targets(self._p, {})[0].ranges
        choices = list(self._choices(root, [a for a in whole if self._extent[a] > 1]))
        for keep_all, axes in product((False, True), choices):
            trial = self._largest_that_fits(root, axes, keep_all)
            if trial.size_bytes <= self._limit:
                self._kept, self._scans = trial.kept, trial.scans
                self._steps |= trial.steps
                return trial.made
        raise NoChunks(
            f"the smallest part of {root.values[0]} takes {trial.size_bytes >> 10} KiB, most of it for "
            f"{trial.largest}, and {self._limit >> 10} KiB are the limit"
        )

    def _largest_that_fits(self, root: Pass, axes: Sequence[str], keep_all: bool) -> _Trial:
        """The last one that was tried where none fits."""
        trial = self._try(self._with_steps(root, dict.fromkeys(axes, 1)), keep_all)
        # the least, but for what is carried of scans, which grows with the number of blocks
        if trial.size_bytes > self._limit and not trial.scans:
            return trial
        steps = {a: self._steps.get(a, self._extent[a]) for a in axes}
        while True:
            trial = self._try(self._with_steps(root, steps), keep_all)
            if trial.size_bytes <= self._limit or all(n == 1 for n in steps.values()):
                return trial
            largest = max(steps, key=steps.__getitem__)
            share = self._limit / trial.size_bytes if len(steps) == 1 else 0.5
            steps[largest] = max(1, int(steps[largest] * min(0.5, share)))

    def _with_steps(self, root: Pass, steps: Mapping[str, int]) -> Pass:
        return replace(root, tile={a: n for a, n in steps.items() if n < self._extent[a]})

    def _choices(self, root: Pass, axes: list[str]) -> Iterator[tuple[str, ...]]:
        """Which axes to cut: none, each alone, then more and more together; a scan's always along its own."""
        scan = root.values[0] if root.values[0] in self._scans else None
        fixed = self._p.op[scan].over if scan else ()
        order = sorted(axes, key=lambda a: (a not in fixed, a != self._preferred, -self._extent[a]))
        if not scan:
            yield ()
            yield from ((a,) for a in order)
        yield from (tuple(order[:n]) for n in range(1 if scan else 2, len(order) + 1))

    def _try(self, made: Pass, keep_all: bool) -> _Trial:
        """With what its chunks ask for kept and carried; where nothing is cut only if that is too large.

        keep_all: also reductions of which a chunk needs a part of the result.
        """
        kept, scans, steps = self._kept, self._scans, {**self._steps, **made.tile}
        while True:
            known = self._known(kept, scans, steps)
            chunks = self._chunks(made, known)
            size = max(map(_chunk_bytes, chunks)) + self._kept_bytes(known)
            more = self._worth_keeping(chunks[0], keep_all) if made.tile or size > self._limit else set()
            cut = _cut_scans(self._p, chunks)
            if more <= kept and cut.keys() <= scans:
                return _Trial(made, kept, scans, steps, size, _largest(chunks[0]))
            kept, scans = kept | more, scans | cut.keys()
            steps |= {a: min(n, steps.get(a, n)) for a, n in cut.values()}

    def _known(self, kept: frozenset[str], scans: frozenset[str], steps: Mapping[str, int]) -> Known:
        along = {s: self._p.op[s].over[0] for s in scans}
        return Known(kept, {s: steps.get(a, self._extent[a]) for s, a in along.items()})

    def _kept_bytes(self, known: Known) -> int:
        found = KEPT_BYTES * sum(self._p.size(self._p.op[name].axes) for name in known.kept)
        for name, step in known.carried.items():
            op = self._p.op[name]
            blocks = ceil(self._extent[op.over[0]] / step)
            found += CARRIED_BYTES * blocks * self._p.size(as_reduction(op).axes)
        return found

    def _samples(self, made: Pass) -> list[dict[str, Range]]:
        """The first tile, the last, and one between them."""
        ends = [(a, self._extent[a], step) for a, step in made.tile.items()]
        starts = [
            {a: 0 for a, _, _ in ends},
            {a: (size - 1) // step // 2 * step for a, size, step in ends},
            {a: (size - 1) // step * step for a, size, step in ends},
        ]
        return [{a: (at[a], min(at[a] + step, size)) for a, size, step in ends} for at in starts]

    def _worth_keeping(self, chunk: Chunk, keep_all: bool) -> set[str]:
        """Reductions of which a chunk needs all of the result, but for small ones and too large results."""
        found = set()
        for op in chunk.program.ops:
            place = chunk.places[op.name]
            source = self._p.op[place.source]
            if OPS[op.fn].kind not in (Kind.REDUCE, Kind.DOT) or place.in_parts or place.kept:
                continue
            is_whole = keep_all or all(place.ranges[a] == (0, self._extent[a]) for a in source.axes)
            is_large = KEPT_BYTES * self._p.size(source.axes) * KEPT_SHARE > self._limit
            if is_whole and not is_large and self._whole_bytes(place.source) * SMALL_SHARE > self._limit:
                found.add(place.source)
        return found

    def _whole_bytes(self, name: str) -> int:
        """Of a value with all that it is made of."""
        if name not in self._whole:
            target = Target(name, ranges_of(self._p, name, {}, in_parts=True), in_parts=True)
            self._whole[name] = _chunk_bytes(chunk_of(self._p, [target], Known()))
        return self._whole[name]

    def _arranged(self, cut: Sequence[Pass]) -> ChunkPlan:
        """What needs nothing of another in one pass, where there is room, in an order in which all is known."""
        known = self._known(self._kept, self._scans, self._steps)
        made = {p.values[0] if p.stage == "parts" else f"output {p.values[0]}": p for p in cut}
        level = self._levels(made, known)
        passes: list[tuple[int, Pass]] = []
        for name, one in sorted(made.items(), key=lambda item: level[item[0]]):
            for n, (at, other) in enumerate(passes):
                both = replace(other, values=(*other.values, *one.values))
                if (at, other.stage, other.tile) == (level[name], one.stage, one.tile) and self._fits(both, known):
                    passes[n] = (at, both)
                    break
            else:
                passes.append((level[name], one))
        found = tuple(p for _, one in passes for p in (one, *self._second(one)))
        size = max(self._pass_bytes(p, known) for p in found)
        return ChunkPlan(found, known, size, sum(self._work(p, known) for p in found))

    def _second(self, made: Pass) -> list[Pass]:
        positions = tuple(n for n in made.values if made.stage == "parts" and self._p.op[n].fn in POSITIONS)
        return [Pass("rivals", positions, made.tile)] if positions else []

    def _levels(self, made: Mapping[str, Pass], known: Known) -> dict[str, int]:
        """After how many others each can be taken."""
        found: dict[str, int] = {}
        order = [op.name for op in self._p.ops if op.name in made] + [n for n in made if n not in self._p.op]
        for name in order:
            chunks = self._chunks(made[name], known)
            needed = {p.source for c in chunks for p in c.places.values() if not p.in_parts}
            found[name] = 1 + max((found[n] for n in needed & found.keys()), default=0)
        return found

    def _chunks(self, made: Pass, known: Known) -> list[Chunk]:
        return [chunk_of(self._p, made.targets(self._p, tile), known) for tile in self._samples(made)]

    def _pass_bytes(self, made: Pass, known: Known) -> int:
        return max(map(_chunk_bytes, self._chunks(made, known))) + self._kept_bytes(known)

    def _fits(self, made: Pass, known: Known) -> bool:
        return self._pass_bytes(made, known) <= self._limit

    def _work(self, made: Pass, known: Known) -> float:
        chunk = self._chunks(made, known)[1]
        count = prod(ceil(self._extent[a] / step) for a, step in made.tile.items())
        return float(count * sum(_terms(chunk, op) for op in chunk.program.ops))


def _terms(chunk: Chunk, op: Op) -> int:
    return chunk.program.size(tuple({*op.axes, *op.over}))


def _largest(chunk: Chunk) -> str:
    if not chunk.program.ops:
        return "an input"
    op = max(chunk.program.ops, key=lambda op: _terms(chunk, op))
    return f"{chunk.places[op.name].source} ({op.fn})"


def _chunk_bytes(chunk: Chunk) -> int:
    outputs = [o for o in chunk.program.outputs if o.value in chunk.places]
    return oracle_bytes(chunk.program, {}) + EXPECTED_BYTES * sum(chunk.program.size(o.axes) for o in outputs)


def _cut_scans(program: Program, chunks: Sequence[Chunk]) -> dict[str, tuple[str, int]]:
    """Scans of which a chunk has a part of their axis: that, and the most of it in one chunk."""
    found: dict[str, tuple[str, int]] = {}
    for chunk in chunks:
        for place in chunk.places.values():
            op = program.op.get(place.source)
            if op is not None and op.fn in SCANS and not place.in_parts:
                lo, hi = place.ranges[op.over[0]]
                if hi - lo < program.axis[op.over[0]].size:
                    found[op.name] = (op.over[0], max(hi - lo, found.get(op.name, ("", 0))[1]))
    return found
