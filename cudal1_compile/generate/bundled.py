"""The model that comes with the package, or any directory of the same form (model_files.py).

    files -> the host's memory, at once     -> the device, with the first proposals

Where a prompt shows variants, designs are drawn without replacement from all others that its region may have, by
the model's likelihood of each (draws.py). Elsewhere the fast sampler draws some, several times as many as asked
for; those that codegen can lower are kept, with the nearest numbers that can be. What a directory lacks is told
before anything is loaded. transformers is not imported, and no state of the process is changed, so that it may be
made in any thread. A compile for a GPU has it in a process of its own (pipeline/generator_process.py). This module
trains nothing.

With `prior_first` the schedule prior answers prompts of a GPU that show no variants, in milliseconds. The model is
asked once variants are shown.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path

import torch

from cudal1_compile.codegen.prior.regression import Prior, load_prior
from cudal1_compile.codegen.ranking import ranked
from cudal1_compile.codegen.replies import as_design, design_of, lower_nearest
from cudal1_compile.generate.draws import in_drawn_order, lower_first, open_designs
from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.generate.fast_llama import ALONE, FastLlama, SharedDevice
from cudal1_compile.generate.linear import fast_cpu_dtype
from cudal1_compile.generate.llama_weights import arrange
from cudal1_compile.generate.model_files import (
    MODEL_DIR,
    check_ids,
    check_model_dir,
    model_digest,
    read_checkpoint,
)
from cudal1_compile.generate.prompt import (
    STAGES_TOKENS,
    find_region,
    shown_variants,
    shows_variants,
    with_stages,
)
from cudal1_compile.generate.protocol import PROMPTS_AT_ONCE
from cudal1_compile.generate.tokens import load_codec
from cudal1_compile.kernel.candidate import CandidateError, parse_reply, print_reply
from cudal1_fx_passes.program.ir import Program

DEFAULT_TEMPERATURE = 0.8
GPU_PROMPTS = 128  # a GPU takes hardly longer for many prompts than for 4; with 8 replies each they fill max_rows
SHORTEST_REPLY = 64  # tokens; a prompt that leaves less room is not worth asking
WARM_PROMPTS, WARM_REPLIES, WARM_TOKENS = 8, 16, 4  # few, with a step that is captured
GPU = "target sm_"  # begins the prompts of GPUs
WHOLE_TOKENS = 320  # of a reply; some designs have a dozen stages


@dataclass(frozen=True, slots=True)
class BundledConfig:
    directory: Path = MODEL_DIR
    device: str = "cpu"
    dtype: torch.dtype | None = None  # None: bfloat16 where the device is fast at it, otherwise float32
    temperature: float | None = None  # None: as generation_config.json says, or DEFAULT_TEMPERATURE
    greedy_first: bool = True  # the first of n replies takes the most likely token always
    prior_first: bool = False  # see `_by_prior`
    distinct: bool = False  # first prompts are answered without replacement, too
    draws: int = 4  # designs for each reply of several, where they are sampled


@lru_cache(maxsize=4096)
def _fitted(prompt: str, text: str) -> str | None:
    """A reply with the nearest numbers that can be lowered; None where there are none."""
    program = _region(prompt)
    try:
        reply = parse_reply(text)
    except CandidateError:
        return None
    found = None if program is None or reply.code else lower_nearest(program, design_of(reply))
    return None if found is None else print_reply(as_design(replace(found, analysis=reply.analysis)))


@lru_cache(maxsize=256)
def _by_prior(prompt: str, n: int) -> tuple[str, ...]:
    """The designs that the schedule prior takes for the fastest, lowered.

    None where the model is to be asked: on the host target, of which the prior knows nothing, where the prompt
    shows variants, and where no template has any.
    """
    program, prior = _region(prompt), _bundled_prior()
    if program is None or prior is None or not prompt.startswith(GPU) or shows_variants(prompt):
        return ()
    said = "The schedule prior takes this design for number {} of those that it knows."
    replies = (reply for _, reply in islice(ranked(program, prior), n))
    return tuple(print_reply(replace(r, analysis=said.format(i + 1))) for i, r in enumerate(replies))


@lru_cache(maxsize=1)
def _bundled_prior() -> Prior | None:
    return load_prior()


@lru_cache(maxsize=256)
def _region(prompt: str) -> Program | None:
    """None for a prompt of none."""
    try:
        return find_region(prompt)
    except ValueError:
        return None


class BundledGenerator:
    def __init__(
        self,
        config: BundledConfig | None = None,
        shared: SharedDevice = ALONE,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """Raises ModelMissing where the directory holds no complete model, GeneratorError where it is damaged.

        prepare: called each time before the device is used.
        """
        self.config = config = config or BundledConfig()
        self.name = f"bundled:{model_digest(check_model_dir(config.directory))[:12]}"
        self.codec = load_codec(str(config.directory / "tokenizer.json"))
        self._dtype = config.dtype or (torch.bfloat16 if config.device != "cpu" else fast_cpu_dtype())
        self._checkpoint = checkpoint = read_checkpoint(config.directory, self._dtype)
        check_ids(config.directory, self.codec.tokenizer.get_vocab_size(), checkpoint.settings.vocab)
        self._lock = threading.Lock()  # of who samples: an abandoned call may still be at it
        self._shared, self._prepare = shared, prepare
        self.writes_designs = True
        self.prompts_at_once = PROMPTS_AT_ONCE if config.device == "cpu" else GPU_PROMPTS
        self._positions = checkpoint.settings.max_positions
        self.least_room = min(checkpoint.max_new or WHOLE_TOKENS, self._positions - SHORTEST_REPLY)
        self.budget_tokens = self._positions - self.least_room - 2 - STAGES_TOKENS  # <bos> and <sep>
        wanted = config.temperature if config.temperature is not None else checkpoint.temperature
        self.temperature = DEFAULT_TEMPERATURE if wanted is None else wanted

    @cached_property
    def sampler(self) -> FastLlama:
        found = self._checkpoint
        with self._shared.inside():
            weights = arrange(found.settings, found.tensors, torch.device(self.config.device), self._dtype)
        return FastLlama(weights, shared=self._shared)

    def warm_up(self) -> None:
        """Takes a GPU, which loads what sampling needs there: seconds."""
        row = self.codec.encode_prompt("region v1\n")
        rows = [[*row, token] for token in range(WARM_PROMPTS) for _ in range(WARM_REPLIES)]
        with self._lock:
            self._prepare()
            self.sampler.sample(rows, WARM_TOKENS)

    def count_tokens(self, text: str) -> int:
        return self.codec.count(text)

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        return self.propose_until(prompts, n, seed, float("inf"))

    def propose_until(self, prompts: Sequence[str], n: int, seed: int, deadline: float) -> list[list[str]]:
        """All prompts decode together; replies that the deadline cuts off are left out.

        Raises GeneratorError for a prompt that is too long.
        """
        found: list[Sequence[str]] = [self._first(prompt, n, deadline) for prompt in prompts]
        left = [prompt for prompt, replies in zip(prompts, found, strict=True) if not replies]
        if left:
            with self._lock:
                self._prepare()
                sampled = iter(self._propose(left, n, seed, deadline))
            found = [replies or next(sampled) for replies in found]
        return [list(replies) for replies in found]

    def _first(self, prompt: str, n: int, deadline: float) -> Sequence[str]:
        """None where the model is to be asked, or the time is over."""
        return _by_prior(prompt, n) if self.config.prior_first and time.monotonic() < deadline else ()

    def _propose(self, prompts: Sequence[str], n: int, seed: int, deadline: float) -> list[list[str]]:
        prompts = [with_stages(p) for p in prompts]
        coded = [self.codec.encode_prompt(p) for p in prompts]
        longest = max((len(ids) for ids in coded), default=0)
        room = self._positions - longest
        if room < min(SHORTEST_REPLY, self.least_room):
            raise GeneratorError(
                f"a prompt of {longest} tokens leaves room for {room}; at most {self.budget_tokens}"
            )
        numbered = enumerate(zip(prompts, coded, strict=True))
        found = [self._drawn(p, ids, n, random.Random(f"{seed} {i}"), deadline) for i, (p, ids) in numbered]
        left = [i for i, replies in enumerate(found) if replies is None]
        sampled = self._sampled([prompts[i] for i in left], [coded[i] for i in left], n, seed, room, deadline)
        for i, replies in zip(left, sampled, strict=True):
            found[i] = replies
        return [replies or [] for replies in found]

    def _drawn(self, prompt: str, ids: list[int], n: int, rng: random.Random, deadline: float) -> list[str] | None:
        """Without replacement; None where designs are to be sampled."""
        program = _region(prompt) if self.config.distinct or shows_variants(prompt) else None
        if program is None:
            return None
        if time.monotonic() >= deadline:
            return []
        replies = open_designs(program, shown_variants(prompt), n, rng)
        if replies is None:
            return None
        pairs = [(reply, self.codec.encode_reply(print_reply(reply))) for reply in replies]
        fitting = [pair for pair in pairs if len(ids) + len(pair[1]) <= self._positions]
        scores = self.sampler.score(ids, [row for _, row in fitting], deadline)
        order = in_drawn_order(scores, self.temperature, rng, self.config.greedy_first)
        return lower_first(program, (fitting[i][0] for i in order), n)

    def _sampled(
        self,
        prompts: Sequence[str],
        coded: Sequence[list[int]],
        n: int,
        seed: int,
        room: int,
        deadline: float,
    ) -> list[list[str]]:
        count = n * self.config.draws if n > 1 else 1
        rows = [ids for ids in coded for _ in range(count)]
        warm = [self._warm(i) for _ in coded for i in range(count)]
        drawn = self.sampler.sample_until(rows, min(WHOLE_TOKENS, room), warm, seed, deadline)
        late = time.monotonic() >= deadline
        found: list[list[str]] = []
        for i, prompt in enumerate(prompts):
            some = drawn[i * count : (i + 1) * count]
            texts = [self.codec.decode(s.ids) for s in some if s.finished or not late]
            found.append(self._chosen(prompt, texts)[:n])
        return found

    def _chosen(self, prompt: str, texts: Sequence[str]) -> list[str]:
        """Different ones as far as there are, the most frequent first, with the nearest numbers that can be.

        What cannot be lowered is one only where there is no other: it says why.
        """
        legal = [fitted for text in texts if (fitted := _fitted(prompt, text)) is not None]
        return self._ranked(legal) or self._ranked(texts)

    def _warm(self, place: int) -> float:
        """How warm a prompt's reply at that place is."""
        return 0.0 if place == 0 and self.config.greedy_first else self.temperature

    def _ranked(self, texts: Sequence[str]) -> list[str]:
        """Each once, the most frequent first, behind that of the most likely tokens."""
        greedy = texts[:1] if self.config.greedy_first else []
        return list(dict.fromkeys([*greedy, *(text for text, _ in Counter(texts).most_common())]))
