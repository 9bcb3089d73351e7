"""What is read of a checkpoint's files is what transformers reads of them, and what is wrong with them is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import generate_models
import pytest
import torch
from generate_models import make_checkpoint
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from cudal1_compile.generate import model_files
from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.generate.fast_llama import FastLlama
from cudal1_compile.generate.linear import Linear
from cudal1_compile.generate.llama_weights import LlamaWeights, arrange, take_weights
from cudal1_compile.generate.model_files import INDEX, SAMPLING, SINGLE, model_digest, read_checkpoint

PART = 40_000  # bytes; the model has some 60,000
FRESH = """
import sys, torch
torch.set_default_dtype(torch.float64)
torch.set_grad_enabled(True)
states = torch.get_rng_state()
from cudal1_compile.generate.bundled import BundledGenerator
generator = BundledGenerator()
assert generator.sampler.weights.inverse_frequency_E2.dtype == torch.float32
assert torch.get_default_dtype() == torch.float64 and torch.equal(states, torch.get_rng_state())
print(sorted({"transformers", "accelerate"} & sys.modules.keys()))
"""


def tensors_of(found: Any) -> list[Tensor]:
    """All, layer by layer."""
    if isinstance(found, Tensor):
        return [found]
    if isinstance(found, Linear):
        return [found.weight_ND if found.weight_ND is not None else found.packed.to_dense()]  # type: ignore[union-attr]
    if isinstance(found, tuple):
        return [t for part in found for t in tensors_of(part)]
    return [t for part in vars(found).values() for t in tensors_of(part)] if hasattr(found, "__dict__") else []


def settings_of(weights: LlamaWeights) -> dict[str, Any]:
    kinds = (int, float, tuple)
    return {n: v for n, v in vars(weights).items() if isinstance(v, kinds) and n != "layers"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("has_parts", [True, False])
def test_the_weights_are_transformers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_parts: bool, is_tied: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(generate_models, "PART_BYTES", PART if has_parts else 10 * PART)
    theta = {"rope_type": "default", "rope_theta": 500.0}
    make_checkpoint(tmp_path, tie_word_embeddings=is_tied, rope_parameters=theta, rms_norm_eps=1e-5)
    assert (tmp_path / INDEX).is_file() == has_parts != (tmp_path / SINGLE).is_file()
    checkpoint, cpu = read_checkpoint(tmp_path, dtype), torch.device("cpu")
    ours = arrange(checkpoint.settings, checkpoint.tensors, cpu, dtype)
    theirs = take_weights(LlamaForCausalLM.from_pretrained(str(tmp_path), local_files_only=True), cpu, dtype)
    assert settings_of(ours) == settings_of(theirs) and len(settings_of(ours)) == 6
    pairs = list(zip(tensors_of(ours), tensors_of(theirs), strict=True))
    assert len(pairs) == 2 * 6 + 4 and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
    assert torch.equal(pairs[0][0], pairs[-2][0]) == is_tied  # the embedding and the head
    prompts = [[5, 9, 40, 7], [1, 200, 31]]
    assert FastLlama(ours).sample(prompts, 40, 0.0) == FastLlama(theirs).sample(prompts, 40, 0.0)
    assert (checkpoint.max_new, checkpoint.temperature) == (48, 0.8)


def test_the_files_may_go_once_they_are_read(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    before = read_checkpoint(tmp_path, torch.bfloat16).tensors
    kept = {name: tensor.clone() for name, tensor in before.items()}
    (tmp_path / SINGLE).write_bytes(b"\0" * (tmp_path / SINGLE).stat().st_size)
    assert all(torch.equal(before[name], tensor) for name, tensor in kept.items())


def test_a_fresh_process_makes_the_bundled_generator_without_transformers() -> None:
    """And nothing of the process is changed."""
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def change(path: Path, **settings: Any) -> None:
    found = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (found | settings).items() if v != "absent"}))


def test_what_transformers_4_wrote_is_read_too(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    now = read_checkpoint(tmp_path, torch.float32)
    change(
        tmp_path / "config.json", rope_parameters="absent", rope_theta=500.0, rope_scaling=None, mlp_bias="absent"
    )
    (tmp_path / SAMPLING).unlink()
    before = read_checkpoint(tmp_path, torch.float32)
    assert before.settings == now.settings and before.settings.theta == 500.0
    assert (before.max_new, before.temperature) == (None, None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hidden_act": "gelu"}, r"llama with hidden_act='gelu': the fast sampler computes the plain"),
        ({"attention_bias": True, "mlp_bias": True}, "llama with attention_bias, mlp_bias"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type='yarn'"),
        ({"rope_parameters": 7}, "rope_parameters=7: expected an object"),
        ({"model_type": "qwen2"}, "model type 'qwen2': the fast sampler knows llama only"),
        ({"hidden_size": "absent"}, "hidden_size=None: expected a whole number from 1 on"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers=2.5: expected a whole number"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps='small': expected a number above 0"),
        ({"num_hidden_layers": 3}, r"no tensor model\.layers\.2\.\S+: config\.json asks for one of \[48\]"),
        ({"intermediate_size": 32}, r"mlp\.gate_proj\.weight is \[64, 48\]: config\.json asks for \[32, 48\]"),
        ({"tie_word_embeddings": False}, r"no tensor lm_head\.weight: config\.json asks for one of \[320, 48\]"),
    ],
)
def test_a_config_that_is_not_the_files_is_told(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    make_checkpoint(tmp_path)
    change(tmp_path / "config.json", **settings)
    with pytest.raises(GeneratorError, match=rf"the model in .* cannot be loaded: .*{said}"):
        read_checkpoint(tmp_path, torch.float32)


@pytest.mark.parametrize("settings", [{"temperature": "warm"}, {"temperature": -1}, {"max_new_tokens": 0}])
def test_settings_of_sampling_that_cannot_be_are_told(tmp_path: Path, settings: dict[str, Any]) -> None:
    make_checkpoint(tmp_path)
    change(tmp_path / SAMPLING, **settings)
    [(name, value)] = settings.items()
    with pytest.raises(GeneratorError, match=rf"generation_config\.json: {name}={value!r}, expected"):
        read_checkpoint(tmp_path, torch.float32)


@pytest.mark.parametrize("text", ["[]", "{", "\xff"])
def test_a_config_that_is_no_json_object_is_told(tmp_path: Path, text: str) -> None:
    make_checkpoint(tmp_path)
    (tmp_path / "config.json").write_bytes(text.encode("latin1"))
    with pytest.raises(GeneratorError, match="cannot be loaded"):
        read_checkpoint(tmp_path, torch.float32)


def test_a_tensor_that_its_part_lacks_is_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    tensors = load_file(tmp_path / SINGLE)
    save_file({n: t for n, t in tensors.items() if n != "model.norm.weight"}, tmp_path / SINGLE)
    with pytest.raises(GeneratorError, match=r"there is no tensor model\.norm\.weight: .* one of \[48\]"):
        read_checkpoint(tmp_path, torch.float32)


def test_a_file_is_read_once_for_its_digest_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_bytes(b"one")
    model_files._digest.cache_clear()
    first = model_digest([path])
    assert model_digest([path]) == first and model_files._digest.cache_info().misses == 1
    now = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(now.st_atime_ns, now.st_mtime_ns))  # of the same length and, it says, the same age
    assert model_digest([path]) != first
