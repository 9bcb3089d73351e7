"""A batched sampler for small Llama models on CPU and CUDA.

    prompts -> unique prompts -> prefill once each -> rows decode together, one token a step
    a prompt and replies that are known -> prefill -> the tree of their tokens at once -> log-likelihoods

Rows of one prompt share its keys and values: their queries attend to one prefix cache as one product, and
each row keeps only what it generated itself, so no row is padded to another's length. Decoding runs in
stages of `stage_steps` with fixed shapes; between stages finished rows leave and the row caches grow. On
CUDA all of it runs on a stream of the sampler's own, and each stage is captured once as a CUDA graph and
replayed, because some 200 small launches a token would cost more than their work.

Greedy results equal transformers' token for token in float32, likelihoods its log-softmax. It serves one process
and one device, and computes no gradients: training does that with the transformers model itself.

Legend of shape suffixes: P prompts, N rows of a prompt, R = P * N rows, L prefix, S steps, V vocabulary.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cudal1_compile.generate.llama_forward import DEAD, Rows, decode_step, prefill, project, read_tree
from cudal1_compile.generate.llama_weights import LlamaWeights, take_weights
from cudal1_compile.generate.threads import at_most

log = logging.getLogger(__name__)

PREFILL_TOKENS = 32_768  # prompt tokens worked on at once
SCORED = 64  # known replies that are read at once
CHECK_STEPS = 16  # between two looks at the clock and at whether every row has ended
FILL_LIMIT = 1.25  # rows including fillers over rows, where prompts are repeated unequally often
ROWS_A_THREAD = 256  # on a CPU: with fewer, a step's operations are too short to be shared
LEAVE_SHARE = 0.9  # finished rows leave where fewer than this share of the rows is alive


@dataclass(frozen=True, slots=True)
class Sample:
    ids: list[int]  # what was generated, the end token included where it was reached
    finished: bool  # False: cut off by max_new or by the deadline


class SharedDevice(Protocol):
    """That others use too."""

    def inside(self) -> AbstractContextManager[None]:
        """Around all work on it."""

    def give_way(self) -> None:
        """Between two steps of that, of some 20 ms at most: others may have it to themselves meanwhile."""


class _Alone:
    def inside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def give_way(self) -> None:
        """There is nobody."""


ALONE: SharedDevice = _Alone()


class FastLlama:
    """Samples from one model. Not safe for two threads at once."""

    def __init__(
        self,
        weights: LlamaWeights,
        stage_steps: int | None = None,
        max_rows: int = 1024,
        shared: SharedDevice = ALONE,
    ) -> None:
        """`max_rows` bounds the memory: more samples than that are worked off one batch after the other."""
        on_cuda = weights.device.type == "cuda"
        self.weights = weights
        self.stage_steps = stage_steps or (128 if on_cuda else 48)
        self.max_rows = max_rows
        self.shared = shared
        self.use_graphs = on_cuda
        self.graph: torch.cuda.CUDAGraph | None = None  # the last that was captured; the next takes its memory
        self.stream = torch.cuda.Stream(weights.device) if on_cuda else None  # type: ignore[no-untyped-call]

    @classmethod
    def from_model(
        cls,
        model: Any,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> FastLlama:
        """Copies the weights of a transformers LlamaForCausalLM, so later training steps do not reach it."""
        weights = take_weights(model, torch.device(device) if device is not None else None, dtype)
        return cls(weights)

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        max_new: int,
        temperature: float | Sequence[float] = 1.0,
        seed: int = 0,
    ) -> list[list[int]]:
        """One reply for each prompt (repeat a prompt for more); the end token is included where reached."""
        return [s.ids for s in self.sample_until(prompts, max_new, temperature, seed)]

    @torch.inference_mode()
    def sample_until(
        self,
        prompts: Sequence[Sequence[int]],
        max_new: int,
        temperature: float | Sequence[float] = 1.0,
        seed: int = 0,
        deadline: float | None = None,
    ) -> list[Sample]:
        """As sample, ending unfinished at `deadline` (time.monotonic). Temperature 0 is greedy."""
        warm = [temperature] * len(prompts) if isinstance(temperature, int | float) else list(temperature)
        self._check(prompts, warm, max_new)
        device = self.weights.device
        generator = torch.Generator(device=device).manual_seed(seed)
        results = [Sample([], False) for _ in prompts]
        with self.shared.inside(), self._on_stream():
            self._sample_batches(prompts, max_new, warm, generator, deadline, results)
        return results

    @torch.inference_mode()
    def score(
        self, prompt: Sequence[int], replies: Sequence[Sequence[int]], deadline: float | None = None
    ) -> list[float]:
        """log p(reply | prompt) of each; none where the deadline (time.monotonic) cuts it off."""
        if not replies:
            return []
        self._check([prompt], [0.0], max(map(len, replies)))
        if len(prompt) < 2 or not all(replies):
            raise ValueError("a prompt of less than two tokens, or a reply of none")
        w, shape = self.weights, (1, self.weights.kv_heads, len(prompt) - 1, self.weights.head_dim)
        order = sorted(range(len(replies)), key=lambda i: tuple(replies[i]))  # what begins alike is read once
        found = [0.0] * len(replies)
        with self.shared.inside(), self._on_stream(), nullcontext() if self.use_graphs else at_most(1):
            prefix = [(w.embed_VD.new_empty(shape), w.embed_VD.new_empty(shape)) for _ in w.layers]
            prefill(w, torch.tensor([prompt[:-1]], device=w.device), prefix)
            for places in (order[start : start + SCORED] for start in range(0, len(order), SCORED)):
                self.shared.give_way()
                if deadline is not None and time.monotonic() >= deadline:
                    return []
                scores = self._score_tree(prompt[-1], [replies[i] for i in places], prefix)
                for place, score in zip(places, scores, strict=True):
                    found[place] = score
        return found

    def _score_tree(
        self, root: int, replies: Sequence[Sequence[int]], prefix: list[tuple[Tensor, Tensor]]
    ) -> list[float]:
        """root: the prompt's last token, behind which all of them begin."""
        ids, parents, ends = [root], [0], []
        known: dict[tuple[int, int], int] = {}  # parent and token -> node
        for reply in replies:
            node = 0
            for token in reply:
                parent, node = node, known.setdefault((node, token), len(ids))
                if node == len(ids):
                    ids.append(token)
                    parents.append(parent)
            ends.append(node)
        above = np.eye(len(ids), dtype=bool)
        for node, parent in enumerate(parents[1:], 1):
            above[node] |= above[parent]
        sees_CC = torch.from_numpy(above).to(self.weights.device)
        ids_C, parents_C = torch.tensor([ids, parents], device=sees_CC.device)
        logits_CV = read_tree(self.weights, ids_C, sees_CC.sum(1) - 1, sees_CC, prefix)
        logp_C = logits_CV.log_softmax(-1)[parents_C, ids_C]
        logp_C[0] = 0.0  # of the root, which is given
        found: list[float] = logp_C.where(sees_CC[ends], 0.0).sum(-1).tolist()
        return found

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Behind what the caller's stream has to do; what that does next comes behind this."""
        if self.stream is None:
            yield
            return
        with torch.cuda.device(self.weights.device):
            callers = torch.cuda.current_stream()
            self.stream.wait_stream(callers)
            try:
                with torch.cuda.stream(self.stream):
                    yield
            finally:
                callers.wait_stream(self.stream)

    def _sample_batches(
        self,
        prompts: Sequence[Sequence[int]],
        max_new: int,
        warm: list[float],
        generator: torch.Generator,
        deadline: float | None,
        results: list[Sample],
    ) -> None:
        for batch in _split_batches(prompts, self.max_rows):
            if deadline is not None and time.monotonic() >= deadline:
                break
            asked, some = [prompts[i] for i in batch], [warm[i] for i in batch]
            with nullcontext() if self.use_graphs else at_most(max(1, len(batch) // ROWS_A_THREAD)):
                found = _Run(self, asked, max_new, some, generator, deadline).finish()
            for i, sample in zip(batch, found, strict=True):
                results[i] = sample

    def _check(self, prompts: Sequence[Sequence[int]], temperatures: Sequence[float], max_new: int) -> None:
        if len(temperatures) != len(prompts):
            raise ValueError(f"{len(temperatures)} temperatures for {len(prompts)} prompts")
        if any(t < 0 for t in temperatures):
            raise ValueError("a temperature is negative; 0 is greedy")
        if any(not p for p in prompts):
            raise ValueError("a prompt is empty")
        longest = max((len(p) for p in prompts), default=0)
        if max_new < 1 or longest + max_new > self.weights.max_positions:
            raise ValueError(
                f"a prompt of {longest} tokens and max_new={max_new}: at least 1 new token and together at "
                f"most {self.weights.max_positions} are possible"
            )


class _Run:
    """One batch of prompts from prefill to the last token."""

    def __init__(
        self,
        owner: FastLlama,
        prompts: list[Sequence[int]],
        max_new: int,
        temperatures: list[float],
        generator: torch.Generator,
        deadline: float | None,
    ) -> None:
        self.weights, self.stage_steps, self.use_graphs = owner.weights, owner.stage_steps, owner.use_graphs
        self.owner = owner
        self.max_new, self.deadline, self.generator = max_new, deadline, generator
        self.ids: list[list[int]] = [[] for _ in prompts]
        self.ended = [False] * len(prompts)
        self.eos = torch.tensor(self.weights.eos_ids, dtype=torch.long, device=self.weights.device)
        self.rows = self._prefill(prompts, temperatures)

    def finish(self) -> list[Sample]:
        made = 0
        while made < self.max_new:
            steps = min(self.stage_steps, self.max_new - made)
            made += self._run_stage(steps)
            if all(self.ended) or self._is_late():
                break
            if made < self.max_new:
                self._start_stage(made)
        return [Sample(ids, ended) for ids, ended in zip(self.ids, self.ended, strict=True)]

    def _is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    # prefill

    def _prefill(self, prompts: list[Sequence[int]], temperatures: list[float]) -> Rows:
        w = self.weights
        unique: dict[tuple[int, ...], list[int]] = {}
        for i, prompt in enumerate(prompts):
            unique.setdefault(tuple(prompt), []).append(i)
        width = group_width([len(places) for places in unique.values()])
        number: list[list[int]] = []
        shared: list[tuple[int, ...]] = []
        for prompt_ids, places in unique.items():
            for start in range(0, len(places), width):
                group = places[start : start + width]
                number.append(group + [DEAD] * (width - len(group)))
                shared.append(prompt_ids)
        lengths = torch.tensor([len(p) for p in shared], device=w.device)
        prefix, logits_PV = self._read_prompts(shared, lengths)
        columns = torch.arange(prefix[0][0].shape[2], device=w.device)
        mask = torch.zeros(len(shared), columns.shape[0], dtype=torch.float32, device=w.device)
        mask.masked_fill_(columns[None] >= lengths[:, None], float("-inf"))
        flat = [i for group in number for i in group]
        return Rows(
            prefix,
            mask,
            lengths.repeat_interleave(width),
            self._empty_suffix(len(flat), min(self.stage_steps, self.max_new)),
            torch.zeros(1, dtype=torch.long, device=w.device),
            torch.zeros(len(flat), dtype=torch.long, device=w.device),
            logits_PV.repeat_interleave(width, 0),
            torch.tensor(
                [0.0 if i == DEAD else temperatures[i] for i in flat], dtype=torch.float32, device=w.device
            ),
            number,
        )

    def _read_prompts(
        self, prompts: list[tuple[int, ...]], lengths: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        w = self.weights
        longest = max(len(p) for p in prompts)
        ids_PL = torch.zeros(len(prompts), longest, dtype=torch.long)
        for i, p in enumerate(prompts):
            ids_PL[i, : len(p)] = torch.tensor(p)
        ids_PL = ids_PL.to(w.device)
        shape = (len(prompts), w.kv_heads, longest, w.head_dim)
        prefix = [
            (
                torch.empty(shape, device=w.device, dtype=w.dtype),
                torch.empty(shape, device=w.device, dtype=w.dtype),
            )
            for _ in w.layers
        ]
        last = []
        size = max(1, PREFILL_TOKENS // longest)
        for start in range(0, len(prompts), size):
            part = slice(start, start + size)
            x_PLD = prefill(w, ids_PL[part], [(k[part], v[part]) for k, v in prefix])
            last.append(x_PLD[torch.arange(x_PLD.shape[0], device=w.device), lengths[part] - 1])
            self.owner.shared.give_way()
        return prefix, project(w, torch.cat(last))

    def _empty_suffix(self, rows: int, columns: int) -> list[tuple[Tensor, Tensor]]:
        w = self.weights
        shape = (rows, w.kv_heads, columns, w.head_dim)
        # zeros, not empty: masked columns still take part in the product with weight zero
        return [
            (
                torch.zeros(shape, device=w.device, dtype=w.dtype),
                torch.zeros(shape, device=w.device, dtype=w.dtype),
            )
            for _ in w.layers
        ]

    # decoding

    def _run_stage(self, steps: int) -> int:
        """Makes up to `steps` tokens a row and hands them out; returns how many it made."""
        r = self.rows
        tokens_RS = torch.empty(r.token_R.shape[0], steps, dtype=torch.long, device=r.token_R.device)
        done_R = torch.zeros(r.token_R.shape[0], dtype=torch.bool, device=r.token_R.device)
        flat = [i for group in r.number for i in group]
        done_R |= torch.tensor([i == DEAD or self.ended[i] for i in flat], device=done_R.device)
        graph: torch.cuda.CUDAGraph | None = None
        made = 0
        for s in range(steps):
            r.token_R.copy_(self._pick(r.logits_RV, r.temperature_R))
            tokens_RS[:, s] = r.token_R
            done_R |= torch.isin(r.token_R, self.eos)
            made = s + 1
            if made % CHECK_STEPS == 0 and (bool(done_R.all()) or self._is_late()):
                break
            self.owner.shared.give_way()
            if graph is not None:
                graph.replay()
            else:
                decode_step(self.weights, r)
                # after one step as it comes, so that no library initialises itself inside the capture
                graph = self._capture() if self.use_graphs and s + 2 < steps else None
        self._hand_out(flat, tokens_RS[:, :made].tolist())
        return made

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Not torch.cuda.graph(): that empties the allocator's cache, which may be another's too."""
        graph, last = torch.cuda.CUDAGraph(), self.owner.graph
        # thread_local: another thread may be using the device
        graph.capture_begin(None if last is None else last.pool(), capture_error_mode="thread_local")
        try:
            decode_step(self.weights, self.rows)
        finally:
            graph.capture_end()
        self.owner.graph = graph
        return graph

    def _pick(self, logits_RV: Tensor, temperature_R: Tensor) -> Tensor:
        """Greedy where the temperature is 0; else the Gumbel-max trick, which samples the softmax exactly.

        Its noise comes from uniform numbers, which a CPU draws six times faster than exponential ones. A summed
        softmax would be faster still there, but CUDA refuses cumsum under deterministic algorithms.
        """
        noise_RV = torch.empty_like(logits_RV).uniform_(generator=self.generator)
        noise_RV.clamp_min_(1e-30).log_().neg_().log_()
        warm_RV = logits_RV / temperature_R.clamp_min(1e-4)[:, None] - noise_RV
        return torch.where((temperature_R > 0)[:, None], warm_RV, logits_RV).argmax(-1)

    def _hand_out(self, flat: list[int], tokens: list[list[int]]) -> None:
        for place, new in zip(flat, tokens, strict=True):
            if place == DEAD or self.ended[place]:
                continue
            end = next((i for i, t in enumerate(new) if t in self.weights.eos_ids), None)
            self.ids[place] += new if end is None else new[: end + 1]
            self.ended[place] = end is not None

    # between stages

    def _start_stage(self, made: int) -> None:
        """Lets finished rows go where that pays, and makes room for the next columns."""
        r = self.rows
        prompts, width = r.shape
        alive = [[j for j, i in enumerate(group) if i != DEAD and not self.ended[i]] for group in r.number]
        kept = [p for p, group in enumerate(alive) if group]
        new_width = max(len(group) for group in alive)
        leave = len(kept) * new_width < LEAVE_SHARE * prompts * width
        if not leave:
            kept, new_width = list(range(prompts)), width
            alive = [list(range(width))] * prompts
        self.rows = self._select(r, kept, alive, new_width, made, min(self.stage_steps, self.max_new - made))

    def _select(self, r: Rows, kept: list[int], alive: list[list[int]], width: int, made: int, room: int) -> Rows:
        device, old_width = r.token_R.device, r.shape[1]
        number, places = [], []
        for p in kept:
            group = alive[p]
            number.append([r.number[p][j] for j in group] + [DEAD] * (width - len(group)))
            places += [p * old_width + j for j in group + group[:1] * (width - len(group))]
        rows = torch.tensor(places, device=device)
        suffix = self._empty_suffix(len(places), made + room)
        for (new_k, new_v), (old_k, old_v) in zip(suffix, r.suffix, strict=True):
            new_k[:, :, :made] = old_k[rows, :, :made]
            new_v[:, :, :made] = old_v[rows, :, :made]
        same = kept == list(range(r.shape[0]))
        at = torch.tensor(kept, device=device)
        return Rows(
            r.prefix if same else [(k[at], v[at]) for k, v in r.prefix],
            r.prefix_mask_PL if same else r.prefix_mask_PL[at],
            r.length_R[rows],
            suffix,
            torch.full((1,), made, dtype=torch.long, device=device),
            r.token_R[rows],
            r.logits_RV[rows],
            r.temperature_R[rows],
            number,
        )


def group_width(counts: Sequence[int]) -> int:
    """Rows that share one prefix: as many as possible with few fillers; a prompt repeated more is read again."""
    total = sum(counts)
    for width in sorted(set(counts), reverse=True):
        if sum(-(-c // width) * width for c in counts) <= FILL_LIMIT * total:
            return width
    return 1


def _split_batches(prompts: Sequence[Sequence[int]], max_rows: int) -> list[list[int]]:
    """Places of at most `max_rows` prompts each; equal prompts stay neighbours, and so share their prefix."""
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), tuple(prompts[i]), i))
    return [order[i : i + max_rows] for i in range(0, len(order), max_rows)]
