"""The store as synthesis sees it: what was tried before, and a place for what is tried now.

A store that fails must cost no result: whatever was written stays readable from memory for this call, and the
failure is one warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from cudal1_cache.errors import CacheError
from cudal1_cache.rows import ACCEPTED, TIMED, Attempt, Entry, RegionText
from cudal1_cache.store import History, Store
from cudal1_compile.kernel.candidate import Exemplar
from cudal1_compile.runtime.target import Target
from cudal1_compile.synthesis.records import DEFERRED
from cudal1_compile.synthesis.validity import why_stale

log = logging.getLogger(__name__)

RELATIVES = 16  # accepted attempts for other sizes that may serve as exemplars


def histories(store: Store, regions: Sequence[RegionText], target: Target) -> dict[str, History]:
    """Of many regions at once, which are added; none where the store fails, as each then finds out by itself."""
    try:
        store.add_regions(*regions)
        return store.histories([r.fingerprint for r in regions], target.key)
    except CacheError as error:
        log.debug("regions are looked up one by one: %s", error)
        return {}


class Archive:
    """All attempts for one region on one target, oldest first.

    Where a search ended without a kernel and that no longer holds, another one begins: earlier attempts are
    exemplars, and decide nothing.
    """

    def __init__(self, store: Store, region: RegionText, target: Target, history: History | None = None) -> None:
        """history: of the region, which the store has, where that was read already (`histories`)."""
        self.store, self.region, self.target = store, region, target
        self.attempts: list[Attempt] = []
        self._since = float("-inf")  # the search began later, in Unix seconds
        self._refuted: dict[str, str] = {}  # why, by the digest of the code
        self.is_reliable = True
        if history is None:
            self._try(lambda: store.add_regions(region))
            self.read()
        else:
            self._learn(history)

    @property
    def current(self) -> list[Attempt]:
        """Those of this search."""
        return [a for a in self.attempts if a.created > self._since]

    def read(self) -> None:
        """What the store has by now."""
        name = self.region.fingerprint
        self._try(lambda: self._learn(self.store.histories([name], self.target.key)[name]))

    def _learn(self, history: History) -> None:
        self._keep(history.attempts)
        self._refuted = history.refuted
        ended = next((e for e in history.entries if e.status != "kernel"), None)
        if ended is not None and why_stale(ended, self.target) is not None:
            self._since = ended.created

    def put(self, attempts: Sequence[Attempt]) -> None:
        """Adds attempts, or replaces those of the same id."""
        self._keep(attempts)
        self._try(lambda: self.store.add_attempts(attempts))

    def _keep(self, attempts: Sequence[Attempt]) -> None:
        place = {a.id: i for i, a in enumerate(self.attempts)}
        for attempt in attempts:
            if attempt.id in place:
                self.attempts[place[attempt.id]] = attempt
            else:
                self.attempts.append(attempt)

    def put_entry(self, entry: Entry) -> None:
        self._try(lambda: self.store.put_entry(entry))
        self._try(lambda: self.store.clear_miss(self.region.fingerprint, self.target.key))

    def verdict_on(self, code_digest: str) -> Attempt | None:
        """The latest attempt with a verdict on this very code."""
        return next(
            (a for a in reversed(self.current) if a.code_digest == code_digest and a.stage != DEFERRED), None
        )

    def why_refuted(self, code: str) -> str | None:
        """What a kernel of this code, however it was spelled, computed wrong in a user's call."""
        return self._refuted.get(self.store.digest_code(code)) if self._refuted else None

    def waiting(self) -> list[Attempt]:
        """Attempts that have no verdict, each code once."""
        found = {a.code_digest: a for a in self.attempts if a.stage == DEFERRED}
        return [a for digest, a in found.items() if self.verdict_on(digest) is None]

    def accepted(self) -> list[Attempt]:
        """Proven candidates with a score, best first, each code once under its latest verdict."""
        return [a for a in self.scored() if a.stage == ACCEPTED]

    def timed(self) -> list[Attempt]:
        """Those that nothing is proven of, likewise."""
        return [a for a in self.scored() if a.stage == TIMED]

    def scored(self) -> list[Attempt]:
        latest = {a.code_digest: a for a in self.attempts if a.stage != DEFERRED}
        found = [a for a in latest.values() if a.stage in (ACCEPTED, TIMED) and a.speedup is not None]
        return sorted(found, key=lambda a: (-(a.speedup or 0.0), a.id))

    def exemplars(self) -> list[Exemplar]:
        return [Exemplar(a.code, a.speedup, a.design) for a in self.scored() if a.speedup is not None]

    def relatives(self) -> list[Attempt]:
        """Measured candidates for other sizes of the region, fastest first."""
        found: list[Attempt] = []
        self._try(lambda: found.extend(self.store.best_relatives(self.region, self.target.key, RELATIVES)))
        return found

    def refusals(self, limit: int) -> list[str]:
        """The latest reasons, each once."""
        reasons = [f"{a.stage}: {a.reason}" for a in self.attempts if a.stage not in (ACCEPTED, TIMED, DEFERRED)]
        return list(dict.fromkeys(reversed(reasons)))[:limit]

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except CacheError as error:
            if self.is_reliable:
                log.warning("the kernel cache failed, results of this process are kept in memory only: %s", error)
            self.is_reliable = False
