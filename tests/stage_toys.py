"""A policy small enough for tests of stages 2 and 3: its whole replies are single tokens.

`make_bundle` trains it in a second to write each of REPLIES equally often, whatever the prompt: two right kernels
of different cost, a wrong one and one that no parser reads. What reinforcement has to find is one token.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from cudal1_compile.generate.prompt import with_stages
from cudal1_compile.generate.tokens import SPECIAL_TOKENS, Codec
from cudal1_compile.judge.verdict import Accepted, HostCost, Proof, Rejected, Verdict
from cudal1_compile.kernel.candidate import Reply, print_reply
from cudal1_compile.runtime.target import HOST
from cudal1_trainer.data.loader import Row, make_batch, padded_length, targets
from cudal1_trainer.model.language import Coder
from cudal1_trainer.model.model import ReplyLoss, build_model, save_bundle
from cudal1_trainer.recipe import ModelRecipe, Recipe, StageRecipe
from cudal1_trainer.scores.referee import Group, Ruling, Rulings

TASK = """region v1
dims d0={size}
in0 f32[d0]
in1 f32[d0]
t0 f32[d0] = add(in0, in1)
t1 f32[d0] = mul(t0, in1)
out0 f32[d0] = t1
"""
TASKS = tuple(TASK.format(size=128 * n) for n in (1, 2, 3, 4))
PROBES = tuple(TASK.format(size=128 * n) for n in (5, 6))
SLOW = """// launch: f<<<cdiv(d0, 64), 64>>>(in0, in1, out0)
__global__ void f(const f32* in0, const f32* in1, f32* out0 DIMS) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  if (i < d0) st(out0 + i, (ld(in0 + i) + ld(in1 + i)) * ld(in1 + i));
}"""
FAST = """// launch: f<<<cdiv(d0, 256), 64>>>(in0, in1, out0)
__global__ void f(const f32* in0, const f32* in1, f32* out0 DIMS) {
  const int i = (blockIdx.x * 64 + threadIdx.x) * 4;
  if (i >= d0) return;
  float a[4], b[4], r[4];
  vload<4>(in0 + i, a);
  vload<4>(in1 + i, b);
  for (int j = 0; j < 4; j++) r[j] = (a[j] + b[j]) * b[j];
  vstore<4>(out0 + i, r);
}"""
WRONG = FAST.replace("+ b[j]", "- b[j]")
REPLIES = (
    *(print_reply(Reply("Bound by memory.", "pointwise", code)) for code in (SLOW, FAST, WRONG)),
    "no reply",
)
STAGE = StageRecipe(
    steps=8,
    arm="plain",
    tasks=4,
    prompts=2,
    group=8,
    max_new=4,
    ahead=1,
    updates=1,
    tokens_per_pass=4096,
    lr=4e-3,
    warmup_steps=1,
    kl=0.0,
    checkpoint_s=0.0,
    silence_s=60.0,
    probe_tasks=2,
    probe_samples=16,
)
RECIPE = Recipe("toy", self_supervised=STAGE, contrastive=STAGE)


def make_bundle(directory: Path, seed: int = 0, replies: Sequence[str] = REPLIES) -> Path:
    """`replies`: each as often as it stands there; at most 16."""
    tokenizer = make_tokenizer(SPECIAL_TOKENS, replies)
    names = dict(zip(("pad_token", "bos_token", "sep_token", "eos_token"), SPECIAL_TOKENS, strict=True))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)  # type: ignore[no-untyped-call]
    torch.manual_seed(seed)
    lm = build_model(ModelRecipe(32, 1, 2, 1, 64, 1024), len(fast))
    imitate(lm, Codec(tokenizer), replies, seed)
    save_bundle(lm, fast, directory)
    return directory


def imitate(lm: Any, codec: Coder, replies: Sequence[str] = REPLIES, seed: int = 0) -> None:
    """Teaches a model to write each of the replies, whatever the prompt."""
    loss, rng = ReplyLoss(lm), random.Random(seed)
    optimizer = torch.optim.AdamW(loss.parameters(), 1e-2)
    for _ in range(60):
        prompts = [codec.encode_prompt(with_stages(f"{HOST.facts()}\n{rng.choice(TASKS)}")) for _ in range(16)]
        rows = [Row([*p, *codec.encode_reply(replies[i % len(replies)])], len(p)) for i, p in enumerate(prompts)]
        batch = make_batch(rows, padded_length(max(len(r.ids) for r in rows)))
        places, ids = targets(batch)
        value = loss(*(torch.from_numpy(x.astype("int64")) for x in (batch.tokens, places, ids)))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()


def make_tokenizer(special: Sequence[str], replies: Sequence[str] = REPLIES) -> Tokenizer:
    """Each reply is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([f"{HOST.facts()}\n{TASKS[0]}"] * 4, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (*dict.fromkeys(replies), "cuda")])
    return tokenizer


def verdict_on(code: str) -> Verdict:
    """What the judge says about the replies' codes, without a compiler."""
    if code.strip() == WRONG:
        return Rejected("verify", "out0[0] is 0, expected 1")
    cost = 50.0 if code.strip() == SLOW else 25.0
    return Accepted(Proof("host", "exact", (), 0, None, HostCost(cost, 60.0)))


class ToyReferee:
    """In place of a Referee: the same answers at once."""

    def __init__(self) -> None:
        self.target, self.lost, self.spent_s = HOST, 0, {"trial": 1.0}
        self._found: dict[int, Rulings] = {}

    def submit(self, key: int, groups: Sequence[Group]) -> None:
        self._found[key] = {(g.text, code): Ruling(verdict_on(code)) for g in groups for code in g.codes}

    def result(self, key: int) -> Rulings:
        return self._found.pop(key)
