"""The judge's work on the host target: legality, correctness and a declared cost; never a time.

    quick:     rough suite -> check build, one case: rules of the machine and the cost -> Timed
    otherwise: case suite (cached) -> check build, one case: the same -> plain build, every case
    -> cost below that of the region run one operation at a time, or refused

Every run happens in a child process of its own (runtime.hostrun), so that hangs and crashes cost a candidate
only itself; candidates are tried in parallel threads, finalists and candidates side by side, finalists first.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cudal1_compile.errors import BuildError, LaunchError
from cudal1_compile.judge.bench.canary import Canary, sing_on_host
from cudal1_compile.judge.checks.case_suite import CaseSuite, NoRoom, Unverifiable, prepare_suite
from cudal1_compile.judge.checks.cases import Case
from cudal1_compile.judge.checks.rough import rough_suite
from cudal1_compile.judge.checks.ruling import is_right, of_unrounded, ruled, with_unrounded
from cudal1_compile.judge.checks.trial import Trial, TrialStopped, Wrong
from cudal1_compile.judge.inputs.make import derive_seed
from cudal1_compile.judge.inputs.names import LITERAL_LARGE, LITERAL_TARGETED
from cudal1_compile.judge.inputs.sizes import OWN_SIZES, tensor_elements
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.oracle.numerics import numerics_of
from cudal1_compile.judge.sandbox.build_budget import BuildBudget
from cudal1_compile.judge.verdict import Accepted, Deferred, HostCost, Proof, Rejected, Timed, Verdict
from cudal1_compile.kernel.candidate import Candidate, CandidateError
from cudal1_compile.runtime import hostbuild
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.host_cost import baseline_cost
from cudal1_compile.runtime.hostrun import BufferLayout, HostLimits, HostRun, Order, run_isolated
from cudal1_compile.runtime.launch_plan import buffer_names
from cudal1_compile.runtime.launch_table import ALIGNMENT
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program.ir import INT_DTYPES, Program
from cudal1_fx_passes.program.text import print_program

log = logging.getLogger(__name__)

MAX_ELEMENTS = 1 << 23  # of inputs and outputs: beyond it fibers take minutes
ROOM_BYTES = 4 << 30  # of main memory, for a case suite
MAX_REGIONS = 256
CPU = torch.device("cpu")
_Waiting = deque[tuple[Future[Verdict], Callable[[], Verdict]]]
ORDERS: tuple[Order, ...] = ("forward", "reverse", "random")
LAYOUTS: dict[int, BufferLayout] = {2: "inputs first", 3: "outputs first"}  # by launch; otherwise apart


class _IsolatedRunner:
    """Runs a candidate in a child process; each launch takes blocks and threads in another order."""

    def __init__(
        self,
        program: Program,
        candidate: Candidate,
        image: bytes,
        seconds: float,
        plain: bool,
        count: Callable[[HostRun], None],
    ) -> None:
        self._program = program
        self._candidate = candidate
        self._image = image
        self._seconds = seconds
        self._plain = plain  # buffers lie otherwise from launch to launch; checks and costs need them apart
        self._count = count
        self._launches = 0
        self.cost = 0  # the largest of the checked runs of the example's sizes, cost units

    def launch(
        self,
        outputs: Sequence[Tensor],
        scratch: Sequence[Tensor],
        inputs: Sequence[Tensor],
        sizes: Mapping[str, int],
    ) -> None:
        names = buffer_names(self._program, self._candidate)
        buffers = dict(zip(names, (*outputs, *scratch, *inputs), strict=True))
        order = ORDERS[self._launches % len(ORDERS)]
        limits = HostLimits(seconds=self._seconds, order=order, seed=self._launches)
        if self._plain:
            layout = LAYOUTS.get(self._launches, "apart")
            limits = replace(limits, skew=ALIGNMENT * (self._launches % 2), layout=layout)
        self._launches += 1
        run = run_isolated(self._program, self._candidate, self._image, buffers, limits, sizes)
        self._count(run)
        if run.trouble is not None:
            raise run.trouble
        if not run.ok:
            raise TrialStopped(run.message)
        if not sizes:
            self.cost = max(self.cost, run.cost or 0)

    def wait(self) -> None:
        """A launch has ended when it returns."""


class HostBench:
    """Case suites of regions, and the trial of candidates against them."""

    def __init__(self, target: Target, limits: Limits) -> None:
        hostbuild.prepare()  # raises here, not once a candidate
        self.target = target
        self.limits = limits
        self.spent_s: defaultdict[str, float] = defaultdict(float)  # not counted here: candidates run in parallel
        self._suites: OrderedDict[tuple[str, int], CaseSuite | Unverifiable | NoRoom] = OrderedDict()
        self._lock = threading.Lock()
        self.workers = 1
        self.counts: dict[str, int] = {}
        self.isolation: dict[str, bool] = {}
        self._count_lock = threading.Lock()
        self._canary = Canary(sing_on_host)
        self._budget = BuildBudget(limits.slow_builds_s)
        self._pool = ThreadPoolExecutor(limits.build_count, "cudal1-host-judge")
        self._urgent: _Waiting = deque()  # finalists: their regions are nearly done
        self._rest: _Waiting = deque()

    def expect(self, programs: Sequence[Program]) -> None:
        """Nothing is compiled by Inductor here."""

    def submit(self, tasks: Sequence[tuple[Program, Candidate]], seed: int) -> list[Future[Verdict]]:
        """Gates 2 to 6 and the cost of each candidate."""
        return [
            self._later(self._rest, partial(self._try_exact, p, c, seed, seed, thorough=False)) for p, c in tasks
        ]

    def submit_quick(self, tasks: Sequence[tuple[Program, Candidate]], seed: int) -> list[Future[Verdict]]:
        """The cost of each candidate, and whether it breaks a rule."""
        return [
            self._later(self._rest, partial(self._guarded, self._cost_roughly, p, c, derive_seed(seed, "quick")))
            for p, c in tasks
        ]

    def submit_exam(
        self, program: Program, candidate: Candidate, seed: int, is_sure: bool = False
    ) -> Future[Verdict]:
        """What `submit` and then `submit_finalists` ask."""

        def examine() -> Verdict:
            found = self._try_exact(program, candidate, seed, seed, thorough=False)
            if not isinstance(found, Accepted):
                return found
            return self._try_exact(program, candidate, seed, derive_seed(seed, "finalists"), thorough=True)

        return self._later(self._urgent, examine)

    def submit_finalists(
        self, program: Program, candidates: Sequence[Candidate], seed: int
    ) -> list[Future[Verdict]]:
        """The same on fresh inputs, with the check build over every case."""
        fresh = derive_seed(seed, "finalists")
        return [
            self._later(self._urgent, partial(self._try_exact, program, c, seed, fresh, thorough=True))
            for c in candidates
        ]

    def submit_baselines(self, program: Program, seed: int, inductor: bool) -> Future[Verdict]:
        return self._later(self._urgent, lambda: Rejected("time", "the host target has no clock"))

    def trouble(self) -> str | None:
        return self._canary.trouble()

    def wake(self) -> None:
        """There is no device."""

    def close(self) -> None:
        """What is running ends by itself: after an interrupt nobody is to wait for it."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _later(self, waiting: _Waiting, work: Callable[[], Verdict]) -> Future[Verdict]:
        answer: Future[Verdict] = Future()
        waiting.append((answer, work))
        self._pool.submit(self._do_next)
        return answer

    def _do_next(self) -> None:
        """In a thread of the pool; as often as something was submitted."""
        try:
            answer, work = self._urgent.popleft()
        except IndexError:
            answer, work = self._rest.popleft()
        if answer.set_running_or_notify_cancel():
            try:
                answer.set_result(work())
            except BaseException as error:  # noqa: BLE001  whoever waits for the answer raises it
                answer.set_exception(error)

    def _count(self, run: HostRun) -> None:
        with self._count_lock:
            if run.ok:
                for name, held in run.seal:
                    self.isolation[name] = self.isolation.get(name, True) and held
            else:
                name = f"runs ended by {run.status}"
                self.counts[name] = self.counts.get(name, 0) + 1

    def _try_exact(
        self, program: Program, candidate: Candidate, unrounded_seed: int, seed: int, thorough: bool
    ) -> Verdict:
        """The candidate's verdict, or that of its unrounded form, where that one is not right."""
        *unrounded, own = with_unrounded(program, candidate)
        for other in unrounded:
            verdict = self._try(program, other, unrounded_seed, thorough=False)
            if not is_right(verdict):
                return of_unrounded(verdict)
        return ruled(program, own, self._try(program, own, seed, thorough))

    def _try(self, program: Program, candidate: Candidate, seed: int, thorough: bool) -> Verdict:
        return self._guarded(self._trials, program, candidate, seed, thorough)

    def _guarded(self, work: Callable[..., Verdict], *args: object) -> Verdict:
        try:
            return work(*args)
        except TrialStopped as stopped:
            return Rejected("verify", str(stopped))
        except BuildError as error:
            return Rejected("build", str(error))
        except (LaunchError, CandidateError) as error:  # also a plan that divides by zero at other sizes
            return Rejected("verify", f"the launch failed: {error}")
        except OSError as error:  # of a compiler or a run
            return self._canary.rule(error)
        except MemoryError:
            return Deferred("the machine has no memory for a case suite of this region")
        except RuntimeError as error:  # of torch, in the case suite: other regions' candidates go on
            log.error("the judge failed: %s", error)
            return Deferred(f"the judge failed: {error}")

    def _cost_roughly(self, program: Program, candidate: Candidate, seed: int) -> Verdict:
        checked = self._image(program, candidate, check=True)
        suite = self._suite(program, seed, rough=True)
        if not isinstance(suite, CaseSuite):
            return Deferred(suite.reason)
        checker = _IsolatedRunner(program, candidate, checked, self.limits.host_s, False, self._count)
        found = Trial(replace(suite, cases=suite.cases[:1]), candidate, checker, CPU).verify(repeats=0)
        if isinstance(found, Wrong):
            return Rejected("verify", found.reason)
        cost = HostCost(float(checker.cost), float(baseline_cost(program)))
        return _too_costly(cost) or Timed(host_cost=cost)

    def _trials(self, program: Program, candidate: Candidate, seed: int, thorough: bool) -> Verdict:
        checked = self._image(program, candidate, check=True)
        match self._suite(program, seed):
            case NoRoom(reason):
                return Deferred(reason)
            case Unverifiable(reason):
                return Rejected("task", reason)
            case CaseSuite() as suite:
                suite = suite.of(candidate)
        legality = suite if thorough else replace(suite, cases=_legality_cases(suite))
        # the cost is counted over aligned buffers: it may not depend on where memory lies
        checker = _IsolatedRunner(program, candidate, checked, self.limits.host_s, False, self._count)
        found = Trial(legality, candidate, checker, CPU).verify(repeats=0)
        if isinstance(found, Wrong):
            return Rejected("verify", found.reason)
        plain = self._image(program, candidate, check=False)
        runner = _IsolatedRunner(program, candidate, plain, self.limits.host_s, True, self._count)
        found = Trial(suite, candidate, runner, CPU).verify(repeats=1)
        if isinstance(found, Wrong):
            return Rejected("verify", found.reason)
        cost = HostCost(float(checker.cost), float(baseline_cost(program)))
        if (refused := _too_costly(cost)) is not None:
            return refused
        versions = (("torch", str(torch.__version__)),)
        label = numerics_of(program, candidate.code)
        return Accepted(Proof(self.target.key, label, found.errors, suite.seed, None, cost, versions))

    def _image(self, program: Program, candidate: Candidate, check: bool) -> bytes:
        with self._budget.grant(print_program(program), hostbuild.COMPILE_LIMIT_S) as limit_s:
            return build(program, candidate, self.target, check, limit_s=limit_s).image

    def _suite(self, program: Program, seed: int, rough: bool = False) -> CaseSuite | Unverifiable | NoRoom:
        if tensor_elements(program) > MAX_ELEMENTS:
            return NoRoom(f"{tensor_elements(program)} elements are too many for the host target")
        key = (print_program(program), seed)
        with self._lock:
            found = self._suites.get(key)
            if found is None:
                room = min(self.limits.memory_bytes, ROOM_BYTES)
                if rough:
                    found = rough_suite(program, seed, CPU, room)
                else:
                    found = prepare_suite(program, seed, CPU, room, self.limits.distributions or None)
                self._suites[key] = found
                while len(self._suites) > MAX_REGIONS:
                    self._suites.popitem(last=False)
            self._suites.move_to_end(key)
        return found


def _too_costly(cost: HostCost) -> Rejected | None:
    if cost.candidate < cost.baseline:
        return None
    return Rejected(
        "time",
        f"cost {cost.candidate:.0f} is not below {cost.baseline:.0f}, the cost of one operation at a time "
        f"(ratio {cost.cost_ratio:.2f})",
    )


def _legality_cases(suite: CaseSuite) -> tuple[Case, ...]:
    """Few, since a check build is slow: the first one, indices at their ends, and one of each other size.

    Also the numbers that only this candidate names.
    """
    sizes = {tuple(c.sizes.items()): c for c in reversed(suite.cases) if c.sizes and c.name != OWN_SIZES}
    indexed = any(i.dtype in INT_DTYPES for i in suite.program.inputs)
    ends = [
        c for c in suite.cases if c.name in (LITERAL_TARGETED, LITERAL_LARGE) or (c.name == "edges" and indexed)
    ]
    return (suite.cases[0], *ends, *sizes.values())
