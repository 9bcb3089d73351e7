"""Rollouts by a server of the OpenAI protocol in an environment of its own, vLLM's for instance.

    contrastive:
      server: /opt/vllm/bin/vllm serve {model} --port {port} --generation-config auto

    sampler.synchronise(lm)    writes the weights, compares the files with them, starts the server anew on them
    sampler.sample(...)        asks it for completions

A folder is named by the digest of its files and every request names the folder, so that no server answers with the
weights of an earlier step. Weights are written in bfloat16, with settings that sample the policy itself (no
top-k, no penalties). Replies come as text and are learned as the tokens that the tokenizer makes of them.
Not for the bundled model, which has a sampler of its own, nor for adapters. Tested with `transformers serve` and
vLLM 0.32 on a CPU (make test-vllm); on a GPU vLLM is UNVERIFIED until somebody runs it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import load_file
from transformers import GenerationConfig

from cudal1_compile.generate.model_files import check_model_dir, model_digest
from cudal1_compile.generate.openai_client import OpenAIConfig, OpenAIGenerator
from cudal1_trainer.model.base import Base
from cudal1_trainer.model.sampler import WeightsDiffer

START_S = 600.0  # of a server with a large model
PARALLEL = 32  # requests at once
TIMEOUT_S = 900.0  # of a request that waits for its turn


class ServedSampler:
    """`command`: words, of which {model} and {port} are filled in. One server at a time; ends with this object."""

    def __init__(self, command: str, base: Base, folder: Path) -> None:
        """Raises ValueError for a model that no server is for."""
        if not base.foreign or base.adapted is not None:
            raise ValueError("`server` is for all weights of a checkpoint of another kind: leave it out here")
        self.words, self.base, self.folder = shlex.split(command), base, folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._end: Any = None  # of the running server
        self._model, self._address = folder, ""

    def synchronise(self, lm: Any) -> None:
        """Raises WeightsDiffer, RuntimeError where the server does not start."""
        self.close()
        shutil.rmtree(self._model, ignore_errors=True)
        self._model = self._write(lm)
        self._start()

    def close(self) -> None:
        if self._end is not None:
            self._end()

    def sample(
        self, prompts: Sequence[Sequence[int]], max_new: int, temperature: float, seed: int
    ) -> list[list[int]]:
        """One reply a prompt; equal neighbours are one request. Raises GeneratorError."""
        groups = [(ids, len(list(group))) for ids, group in groupby(map(tuple, prompts))]
        texts = [self._text(list(ids)) for ids, _ in groups]
        config = OpenAIConfig(
            self._address,
            str(self._model),
            temperature=temperature,
            max_tokens=max_new,
            chat=False,
            timeout_s=TIMEOUT_S,
            parallel=PARALLEL,
        )
        found = OpenAIGenerator(config).propose(texts, max(count for _, count in groups), seed)
        replies = [text for row, (_, count) in zip(found, groups, strict=True) for text in row[:count]]
        if len(replies) != len(prompts):
            raise RuntimeError(
                f"the server gave {len(replies)} of {len(prompts)} replies; its words are in {self._log}"
            )
        return [self._ids(text, max_new) for text in replies]

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    def _text(self, ids: list[int]) -> str:
        """What the server's tokenizer makes these ids of, the beginning of a text that it adds itself included."""
        tokenizer = self.base.language.tokenizer
        text = str(tokenizer.decode(ids))
        for form in (text, text.removeprefix(tokenizer.bos_token or "")):
            if list(tokenizer(form)["input_ids"]) == ids:
                return form
        raise ValueError("this tokenizer does not give a prompt's ids back from its text: leave `server` out")

    def _ids(self, text: str, max_new: int) -> list[int]:
        """A reply that was cut has no end."""
        ids = self.base.language.codec.encode_reply(text)
        return ids if len(ids) <= max_new else ids[:max_new]

    def _write(self, lm: Any) -> Path:
        fresh = self.folder / "fresh"
        replace(self.base, lm=lm).save(fresh)
        eos = self.base.language.tokenizer.eos_token_id
        plain = GenerationConfig(do_sample=True, top_k=0, eos_token_id=eos, pad_token_id=eos)  # type: ignore[no-untyped-call]
        plain.save_pretrained(fresh)
        files = check_model_dir(fresh)
        check_weights(files, lm)
        model = self.folder / model_digest(files)[:16]
        os.replace(fresh, model)
        return model

    def _start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        filled = {"{model}": str(self._model), "{port}": str(port)}
        words = [filled.get(word, word) for word in self.words]
        with self._log.open("ab") as said:
            server = subprocess.Popen(words, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        self._end = weakref.finalize(self, _kill, server)
        self._address = f"http://127.0.0.1:{port}/v1"
        self._wait(server, f"http://127.0.0.1:{port}/health")

    def _wait(self, server: subprocess.Popen[bytes], address: str) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end and server.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(address, timeout=5.0).status_code == httpx.codes.OK:
                    return
            time.sleep(0.3)
        raise RuntimeError(f"the server did not start within {START_S:.0f} s; its words are in {self._log}")


def check_weights(files: Sequence[Path], lm: Any) -> None:
    """Raises WeightsDiffer where a file holds other weights than the model, rounded to its dtype."""
    mine = lm.state_dict()
    held = {n: w for f in files if f.suffix == ".safetensors" for n, w in load_file(f).items()}
    if unknown := sorted(set(held) - set(mine)):
        raise WeightsDiffer(f"the server's files hold {unknown[0]}, which the model in training has not")
    lacking = set(mine) - set(held)
    given = {mine[name].data_ptr() for name in held}
    if left := sorted(name for name in lacking if mine[name].data_ptr() not in given):  # but for tied ones
        raise WeightsDiffer(f"the server's files lack {left[0]}")
    for name, weight in held.items():
        if not torch.equal(weight, mine[name].detach().to("cpu", weight.dtype)):
            raise WeightsDiffer(f"the server's files and the model in training differ in {name}")


def _kill(server: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
