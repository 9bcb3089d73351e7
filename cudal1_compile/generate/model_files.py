"""The files of a model in the bundled form: which there must be, what names them, what they hold.

    config.json  generation_config.json  tokenizer.json
    model.safetensors.index.json  model-0000N-of-0000M.safetensors      or one model.safetensors

transformers writes such a directory and loads it as it is. Here it is read without transformers, whose import
takes seconds, and which sets torch's default dtype, of the whole process, while it loads. Nothing is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from cudal1_compile.generate.errors import GeneratorError, ModelMissing
from cudal1_compile.generate.llama_weights import LlamaSettings, check_tensors, read_settings

MODEL_DIR = Path(__file__).parent / "model"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SAMPLING = "generation_config.json"


@dataclass(frozen=True)
class Checkpoint:
    """A model in the host's memory. `max_new` and `temperature`: as generation_config.json says, where it does."""

    settings: LlamaSettings
    tensors: Mapping[str, Tensor]
    max_new: int | None
    temperature: float | None


def check_model_dir(directory: Path) -> list[Path]:
    """The files that make the model, sorted by name; raises ModelMissing, naming what is not there."""
    wanted = [directory / "config.json", directory / "tokenizer.json", *_weight_files(directory)]
    missing = [path.name for path in wanted if not path.is_file()]
    if missing:
        raise ModelMissing(
            f"no model in {directory}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing. "
            "Reinstall the package, train one with `make retrain`, or name another generator in the options"
        )
    return wanted


def model_digest(files: Sequence[Path]) -> str:
    """sha256 over the files' names and contents."""
    total = hashlib.sha256()
    for path in sorted(files):
        now = path.stat()
        content = _digest(path, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
        total.update(path.name.encode() + b"\0" + content)
    return total.hexdigest()


def read_checkpoint(directory: Path, dtype: torch.dtype) -> Checkpoint:
    """Raises GeneratorError where a file is damaged, or the model is no plain llama."""
    try:
        settings = read_settings(_read_json(directory / "config.json"))
        sampling = _read_json(directory / SAMPLING) if (directory / SAMPLING).is_file() else {}
        # a copy: what is read lies in the mapped file, which a training may replace while it is in use
        tensors = {
            name: tensor.to(dtype, copy=True)
            for path in _weight_files(directory)
            if path.suffix == ".safetensors"
            for name, tensor in load_file(path).items()
        }
        check_tensors(settings, tensors)
        return Checkpoint(settings, tensors, *_read_sampling(sampling))
    except (OSError, ValueError, SafetensorError) as error:
        raise GeneratorError(f"the model in {directory} cannot be loaded: {error}") from error


def check_ids(directory: Path, ids: int, rows: int) -> None:
    """Raises GeneratorError where the tokenizer has more ids than the model has rows."""
    if ids > rows:
        raise GeneratorError(
            f"the tokenizer in {directory} has {ids} ids, the model {rows} rows: put those of one model there"
        )


@lru_cache(maxsize=64)
def _digest(path: Path, size: int, mtime_ns: int, ctime_ns: int) -> bytes:
    """Of one file as it is at these times."""
    return hashlib.sha256(path.read_bytes()).digest()


def _weight_files(directory: Path) -> list[Path]:
    """The index among them, where there is one."""
    index = directory / INDEX
    if not index.is_file():
        return [directory / SINGLE]
    try:
        parts = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return [index, *sorted(directory / part for part in parts)]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise GeneratorError(f"{index} is not an index of safetensors parts: {error}") from error


def _read_json(path: Path) -> Mapping[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds a {type(found).__name__}: expected an object of settings")
    return found


def _read_sampling(found: Mapping[str, Any]) -> tuple[int | None, float | None]:
    max_new, temperature = found.get("max_new_tokens"), found.get("temperature")
    if max_new is not None and (type(max_new) is not int or max_new < 1):
        raise ValueError(f"{SAMPLING}: max_new_tokens={max_new!r}, expected a whole number from 1 on")
    if temperature is not None and (type(temperature) not in (int, float) or not temperature >= 0):
        raise ValueError(f"{SAMPLING}: temperature={temperature!r}, expected a number from 0 on")
    return max_new, None if temperature is None else float(temperature)
