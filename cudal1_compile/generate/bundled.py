"""The model that comes with the package, or any directory of the same form (model_files.py).

    files -> the host's memory, at once     -> the device, with the first proposals

The fast sampler runs it. What a directory lacks is told before anything is loaded. transformers is not imported,
and no state of the process is changed, so that it may be made in any thread. A compile for a GPU has it in a
process of its own (pipeline/generator_process.py). This module trains nothing.

With `prior_first` the schedule prior answers prompts of a GPU that show no variants, in milliseconds: over 160
programs its first design is 1.12 times as fast as the model's likeliest, by time, and the best of eight reach
1.44x and 1.43x over the better baseline (rl.h200). The model is asked once variants are shown.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import cycle, islice
from pathlib import Path

import torch

from cudal1_compile.codegen.prior.regression import Prior, load_prior
from cudal1_compile.codegen.ranking import ranked
from cudal1_compile.codegen.repair.code import fit_code, other_tiles
from cudal1_compile.codegen.repair.plan import fit_plan, other_stage
from cudal1_compile.codegen.replies import as_design, design_of, lower_nearest
from cudal1_compile.codegen.templates import fit_design
from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.generate.fast_llama import ALONE, Cooling, FastLlama, Sample, SharedDevice
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
    shown_designs,
    shows_variants,
    with_stages,
)
from cudal1_compile.generate.protocol import PROMPTS_AT_ONCE
from cudal1_compile.generate.tokens import Codec, load_codec
from cudal1_compile.kernel.candidate import CandidateError, parse_reply, print_reply
from cudal1_fx_passes.program.ir import Program

DEFAULT_MAX_NEW = 1536
DEFAULT_TEMPERATURE = 0.8
GPU_PROMPTS = 128  # a GPU takes hardly longer for many prompts than for 4; with 8 replies each they fill max_rows
SHORTEST_REPLY = 64  # tokens; a prompt that leaves less room is not worth asking
DESIGN_TOKENS = 80  # a reply's first lines up to its first stage; 31 mostly, more than 80 in one of 2,108
REPAIRED_CHARACTERS = 32 * 1024  # of a reply; the longest right ones have 20,000, and repairs grow faster
WARM_PROMPTS, WARM_REPLIES, WARM_TOKENS = 8, 16, 4  # few, with a step that is captured
OUTLINE = "\nf0: "  # what comes behind them
DESIGN = "## Algorithm Design\n"
GPU = "target sm_"  # begins the prompts of GPUs
WHOLE_TOKENS = 320  # of a reply without code; some designs have a dozen stages


@dataclass(frozen=True, slots=True)
class BundledConfig:
    directory: Path = MODEL_DIR
    device: str = "cpu"
    dtype: torch.dtype | None = None  # None: bfloat16 where the device is fast at it, otherwise float32
    temperature: float | None = None  # None: as generation_config.json says, or DEFAULT_TEMPERATURE
    code_temperature: float = 0.1  # once the code has begun: the design is a choice, the code its consequence
    greedy_first: bool = True  # the first of n replies takes the most likely token always
    prior_first: bool = False  # see `_by_prior`
    draws: int = 4  # designs for each reply of several; 1: replies are drawn as they come


@dataclass
class _Asked:
    """One reply, on its way."""

    prompt: str
    row: list[int]  # its tokens
    warm: float
    begun: list[int] = field(default_factory=list)
    reply: str | None = None

    def lower(self, codec: Codec) -> None:
        """The rest is codegen's, where the design is whole and can be lowered."""
        self.reply = _lowered(self.prompt, codec.decode(self.begun))


@lru_cache(maxsize=1024)
def _lowered(prompt: str, begun: str) -> str | None:
    """The reply that a design leads to, from what the model has written so far."""
    program, design = _region(prompt), _design(begun)
    found = None if program is None else lower_nearest(program, design)
    return None if found is None else print_reply(found)


@lru_cache(maxsize=1024)
def _fitted_head(prompt: str, head: str) -> str | None:
    """With numbers that can be written; None where there are none."""
    program, design = _region(prompt), _design(head)
    fitted = None if program is None else fit_design(program, design)
    return None if fitted is None else head.removesuffix(design) + fitted


@lru_cache(maxsize=4096)
def _fitted_design(prompt: str, text: str) -> str | None:
    """A reply without code, with numbers that can be lowered; None where there are none."""
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


def _design(begun: str) -> str:
    return begun.partition(DESIGN)[2].partition("\n## ")[0]


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
        self._code_token = find_code_token(self.codec)
        self._lock = threading.Lock()  # of who samples: an abandoned call may still be at it
        self._shared, self._prepare = shared, prepare
        self.writes_designs = True
        self.reads_designs = checkpoint.designs
        self.prompts_at_once = PROMPTS_AT_ONCE if config.device == "cpu" else GPU_PROMPTS
        self._positions = checkpoint.settings.max_positions
        # a reply may take all positions that its prompt leaves; long prompts leave it so many
        self.least_room = min(checkpoint.max_new or DEFAULT_MAX_NEW, self._positions - SHORTEST_REPLY)
        self.budget_tokens = self._positions - self.least_room - 2  # <bos> and <sep>
        if self.reads_designs:
            self.budget_tokens -= STAGES_TOKENS
        wanted = config.temperature if config.temperature is not None else checkpoint.temperature
        self.temperature = DEFAULT_TEMPERATURE if wanted is None else wanted

    @cached_property
    def sampler(self) -> FastLlama:
        token, found = self._code_token, self._checkpoint
        cooling = Cooling(token, self.config.code_temperature) if token is not None else None
        with self._shared.inside():
            weights = arrange(found.settings, found.tensors, torch.device(self.config.device), self._dtype)
        return FastLlama(weights, cooling=cooling, shared=self._shared)

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
        if self.reads_designs:
            prompts = [with_stages(p) for p in prompts]
        coded = [self.codec.encode_prompt(p) for p in prompts]
        longest = max((len(ids) for ids in coded), default=0)
        room = self._positions - longest
        if room < min(SHORTEST_REPLY, self.least_room):
            raise GeneratorError(
                f"a prompt of {longest} tokens leaves room for {room}; at most {self.budget_tokens}"
            )
        end = deadline if deadline != float("inf") else None
        if self.reads_designs:
            return self._designs(prompts, coded, n, room, seed, end)
        groups = [
            [_Asked(prompt, ids, self._warm(i), head) for i, head in enumerate(heads)]
            for prompt, ids, heads in zip(
                prompts, coded, self._heads(prompts, coded, n, room, seed, end), strict=True
            )
        ]
        self._lower([a for group in groups for a in group], room, seed, end)
        bare = [group for group in groups if all(a.reply is None for a in group)]
        self._write([a for group in bare for a in group], room, seed, end)
        return [[a.reply for a in group if a.reply is not None] for group in groups]

    def _designs(
        self,
        prompts: Sequence[str],
        coded: Sequence[list[int]],
        n: int,
        room: int,
        seed: int,
        end: float | None,
    ) -> list[list[str]]:
        """Different ones as far as there are, the most frequent first, with the nearest numbers that can be.

        What its prompt shows is no reply; what cannot be lowered is one only where there is no other: it says why.
        """
        count = n * self.config.draws if n > 1 else 1
        texts = self._drawn(coded, count, min(WHOLE_TOKENS, room), seed, end)
        found: list[list[str]] = []
        for i, prompt in enumerate(prompts):
            some = texts[i * count : (i + 1) * count]
            legal = [fitted for text in some if (fitted := _fitted_design(prompt, text)) is not None]
            new = [text for text in legal if design_of(parse_reply(text)) not in shown_designs(prompt)]
            found.append((self._ranked(new) or self._ranked(some))[:n])
        return found

    def _drawn(
        self, coded: Sequence[list[int]], count: int, tokens: int, seed: int, end: float | None
    ) -> list[str]:
        """So many texts of each prompt, one prompt's after the other's."""
        rows = [ids for ids in coded for _ in range(count)]
        warm = [self._warm(i) for _ in coded for i in range(count)]
        return [self.codec.decode(s.ids) for s in self.sampler.sample_until(rows, tokens, warm, seed, end)]

    def _warm(self, place: int) -> float:
        """How warm a prompt's reply at that place is."""
        return 0.0 if place == 0 and self.config.greedy_first else self.temperature

    def _lower(self, asked: Sequence[_Asked], room: int, seed: int, end: float | None) -> None:
        """The model ends its designs, codegen writes their code; what cannot be lowered has no reply."""
        for one in asked:
            one.lower(self.codec)
        left = [one for one in asked if one.reply is None] if self._code_token is not None else []
        for one, sample in zip(left, self._sample(left, room, seed, end, self._code_token), strict=True):
            one.begun = sample.ids
            one.lower(self.codec)

    def _sample(
        self, asked: Sequence[_Asked], room: int, seed: int, deadline: float | None, stop: int | None = None
    ) -> list[Sample]:
        rows, warm, begun = [a.row for a in asked], [a.warm for a in asked], [a.begun for a in asked]
        return self.sampler.sample_until(rows, room, warm, seed, deadline, begun, stop) if asked else []

    def _write(self, asked: Sequence[_Asked], room: int, seed: int, end: float | None) -> None:
        """The code of designs that cannot be lowered, token by token."""
        for one in asked:
            one.begun = one.begun[: room - 1]
        found = self._sample(asked, room, seed, end)
        rows, warm, prompts = [a.row for a in asked], [a.warm for a in asked], [a.prompt for a in asked]
        self._again(self._other_stages(found, prompts), rows, warm, found, seed, end)
        cool = [min(t, self.config.code_temperature) for t in warm]
        self._again(self._repaired_plans(found, prompts), rows, cool, found, seed, end)
        late = end is not None and time.monotonic() >= end
        for one, sample in zip(asked, found, strict=True):
            if sample.finished or not late:
                one.reply = _fitted(self.codec.decode(sample.ids), one.prompt)

    def _beginning(self, text: str) -> list[int]:
        """Without a line's break at its end, which is one token with the next line's first letter."""
        return self.codec.encode_reply(text.rstrip("\n"))[:-1]

    def _heads(
        self,
        prompts: Sequence[str],
        coded: Sequence[list[int]],
        n: int,
        room: int,
        seed: int,
        deadline: float | None,
    ) -> list[list[list[int]]]:
        """What a prompt's replies begin with, up to a design's first stage: different ones as far as there are.

        Designs are short, so more are drawn, and the most frequent ones are taken, with the nearest numbers that
        can be lowered. Over 120 measured programs the best of four is 1.4% behind the fastest schedule for 2.8%,
        of eight 0.4% for 1.5%.
        """
        count = n * self.config.draws
        if n == 1 or self.config.draws < 2:
            return [[[]] * n for _ in coded]
        texts = self._drawn(coded, count, min(DESIGN_TOKENS, room), seed, deadline)
        heads = [text.partition(OUTLINE)[0] if OUTLINE in text else "" for text in texts]
        found: list[list[list[int]]] = []
        for i, prompt in enumerate(prompts):
            some = heads[i * count : (i + 1) * count]
            legal = [fitted for head in some if (fitted := _fitted_head(prompt, head)) is not None]
            chosen = self._ranked(legal)[:n] or islice(cycle(self._ranked(some)), n)
            found.append([self._beginning(head)[: room - 1] for head in chosen])
        return found

    def _ranked(self, heads: Sequence[str]) -> list[str]:
        """Each once, the most frequent first, behind that of the most likely tokens."""
        greedy = heads[:1] if self.config.greedy_first else []
        return list(dict.fromkeys([*greedy, *(head for head, _ in Counter(heads).most_common())]))

    def _again(
        self,
        begun: Mapping[int, list[int]],
        rows: Sequence[list[int]],
        warm: Sequence[float],
        found: list[Sample],
        seed: int,
        deadline: float | None,
    ) -> None:
        """Replies that begin otherwise are written to their end again."""
        positions = self._positions
        begun = {i: ids for i, ids in begun.items() if len(rows[i]) + len(ids) + SHORTEST_REPLY <= positions}
        if not begun:
            return
        asked = [rows[i] + ids for i, ids in begun.items()]
        room = positions - max(map(len, asked))
        again = self.sampler.sample_until(asked, room, [warm[i] for i in begun], seed, deadline)
        for (i, ids), rest in zip(begun.items(), again, strict=True):
            if rest.finished:
                found[i] = Sample(ids + rest.ids, True)

    def _other_stages(self, found: Sequence[Sample], prompts: Sequence[str]) -> dict[int, list[int]]:
        """Of each reply with a stage that cannot be, by itself or by its code: what comes before, and another."""
        begun: dict[int, list[int]] = {}
        for i, (sample, prompt) in enumerate(zip(found, prompts, strict=True)):
            design, whole = (self.codec.decode(sample.ids[:end]) for end in (self._code_at(sample.ids), None))
            if len(whole) > REPAIRED_CHARACTERS:
                continue
            if other := other_stage(design, prompt) or other_tiles(whole, prompt):
                begun[i] = self._beginning(other_stage(other, prompt) or other)
        return begun

    def _repaired_plans(self, found: Sequence[Sample], prompts: Sequence[str]) -> dict[int, list[int]]:
        """Of each reply whose plan does not hold: what comes before the code, up to the token that opens it."""
        begun: dict[int, list[int]] = {}
        for i, (sample, prompt) in enumerate(zip(found, prompts, strict=True)):
            if (at := self._code_at(sample.ids)) is None:
                continue
            before = self.codec.decode(sample.ids[:at])
            if len(before) <= REPAIRED_CHARACTERS and (repaired := fit_plan(before, prompt)) != before:
                begun[i] = self._beginning(repaired)
        return begun

    def _code_at(self, ids: Sequence[int]) -> int | None:
        """Behind the token that opens the code; None where none does."""
        token = self._code_token
        return None if token is None or token not in ids else ids.index(token) + 1


def _fitted(text: str, prompt: str) -> str:
    return fit_code(text, prompt) if len(text) <= REPAIRED_CHARACTERS else text


def find_code_token(codec: Codec) -> int | None:
    """The token that opens a reply's code block; None (nothing cools) where no single token holds its `cuda`."""
    ids = codec.encode_reply("## Code\n```cuda\n")
    found = [i for i in ids if "cuda" in codec.decode([i])]
    return found[0] if len(found) == 1 else None
