"""A generator over a checkpoint that vLLM runs inside this process; needs the extra `cudal1[vllm]`.

vLLM is imported at construction only. It takes most of a GPU's memory, so kernels should be timed on
another GPU, or the engine kept small by `memory_share`. Run by `make test-vllm` on a CPU (vLLM 0.32); on a GPU
UNVERIFIED until somebody runs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import AutoConfig

from cudal1_compile.generate.errors import GeneratorError


@dataclass(frozen=True, slots=True)
class VllmConfig:
    model: str  # a checkpoint's directory, or a name that vLLM resolves itself
    temperature: float = 0.8
    max_new_tokens: int = 4096
    context_tokens: int = 32_768  # at most; fewer where the model has fewer positions
    memory_share: float = 0.5  # of the GPU's memory
    chat: bool = True  # through the checkpoint's chat template


class VllmGenerator:
    def __init__(self, config: VllmConfig) -> None:
        """Raises GeneratorError where vLLM is not installed or cannot start."""
        self.config = config
        self.vllm = import_vllm()
        self.name = f"vllm:{config.model}"
        try:
            positions = int(AutoConfig.from_pretrained(config.model).max_position_embeddings)
            context = min(config.context_tokens, positions)
            self.engine: Any = self.vllm.LLM(
                model=config.model,
                max_model_len=context,
                gpu_memory_utilization=config.memory_share,
                enable_prefix_caching=True,
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise GeneratorError(f"vLLM could not start {config.model}: {error}") from error
        self.max_new_tokens = min(config.max_new_tokens, context // 2)
        self.budget_tokens = context - self.max_new_tokens

    def count_tokens(self, text: str) -> int:
        return len(self.engine.get_tokenizer().encode(text))

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        params = self.vllm.SamplingParams(
            n=n, temperature=self.config.temperature, max_tokens=self.max_new_tokens, seed=seed
        )
        if self.config.chat:
            turns = [[{"role": "user", "content": p}] for p in prompts]
            answers = self.engine.chat(turns, params, use_tqdm=False)
        else:
            answers = self.engine.generate(list(prompts), params, use_tqdm=False)
        return [[str(o.text) for o in answer.outputs] for answer in answers]


def import_vllm() -> Any:
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise GeneratorError(
            f"the generator vllm needs the optional extra: pip install 'cudal1[vllm]' ({error})"
        ) from error
