"""The backend as other libraries use it: what they compute stays what it is without."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from accelerate import Accelerator
from backend_reference import Calls, compiled, every_region  # noqa: F401  a fixture
from slow_cases import slow_but
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.two_tensor import TwoTensor

pytestmark = pytest.mark.host

SIZES = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 63, "pad_token_id": 63}


def gpt2(**settings: Any) -> Any:
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, n_positions=64, **SIZES, **settings)
    return transformers.GPT2LMHeadModel(config).eval()


def llama() -> Any:
    config = transformers.LlamaConfig(
        num_hidden_layers=1,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        **SIZES,
    )
    return transformers.LlamaForCausalLM(config).eval()


class Block(nn.Module):
    """Not nn.Sequential alone, whose forward Dynamo leaves to eager where another library calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16), nn.Softmax(-1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def losses(
    step: Callable[[], Tensor], optimiser: torch.optim.Optimizer, backward: Any = Tensor.backward
) -> list[float]:
    found = []
    for _ in range(3):
        optimiser.zero_grad()
        loss = step().square().mean()
        backward(loss)
        optimiser.step()
        found.append(loss.item())
    return found


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


GENERATES = [(gpt2, "dynamic"), (llama, "static")]


@pytest.mark.parametrize(("make", "cache"), slow_but(GENERATES[:1], GENERATES))
def test_a_model_generates(make: Callable[[], Any], cache: str, every_region: Calls) -> None:  # noqa: F811
    model, ids = make(), torch.randint(1, 60, (2, 7))
    settings = {"max_new_tokens": 5, "do_sample": False, "cache_implementation": cache, "disable_compile": True}
    expected = model.generate(ids, **settings)
    model.forward = compiled(model.forward)
    assert torch.equal(model.generate(ids, **settings), expected)
    assert len(every_region)


class Scored(Block):
    """With the loss that transformers' Trainer asks for."""

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        out = self.layers(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


def test_a_trainer_takes_a_model_compiled_in_place(every_region: Calls, tmp_path: Path) -> None:  # noqa: F811
    data = [{"x": torch.randn(16), "labels": torch.randn(16)} for _ in range(8)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    model = Scored()
    twin = copy.deepcopy(model)
    model.compile(backend="cudal1", options={"target": "host"})
    found = [transformers.Trainer(model=m, args=arguments, train_dataset=data).train() for m in (twin, model)]
    assert found[1].training_loss == pytest.approx(found[0].training_loss, rel=1e-5)
    assert len(every_region)


def test_accelerate_prepares_a_wrapped_model(every_region: Calls) -> None:  # noqa: F811
    model, x = Block(), torch.randn(8, 16)
    twin = copy.deepcopy(model)
    accelerator = Accelerator(cpu=True)
    fast, optimiser = accelerator.prepare(compiled(model), sgd(model))
    found = losses(lambda: fast(x), optimiser, accelerator.backward)
    assert found == pytest.approx(losses(lambda: twin(x), sgd(twin)), rel=1e-5)
    assert len(every_region)


@pytest.mark.parametrize("is_outside", [False, True])
def test_distributed_data_parallel(is_outside: bool, every_region: Calls, group: None) -> None:  # noqa: F811
    model, x = Block(), torch.randn(8, 16)
    twin = copy.deepcopy(model)
    fast = compiled(DistributedDataParallel(model)) if is_outside else DistributedDataParallel(compiled(model))
    assert losses(lambda: fast(x), sgd(model)) == pytest.approx(losses(lambda: twin(x), sgd(twin)), rel=1e-5)
    assert len(every_region)


def test_an_optimiser_is_compiled_with_its_step(every_region: Calls) -> None:  # noqa: F811
    model, x = Block(), torch.randn(8, 16)
    twin = copy.deepcopy(model)
    ours, theirs = (torch.optim.AdamW(m.parameters(), lr=0.01, foreach=True) for m in (model, twin))

    def step() -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        ours.step()
        ours.zero_grad()
        return loss

    fast = compiled(step)
    found = [fast().item() for _ in range(3)]
    assert found == pytest.approx(losses(lambda: twin(x), theirs), rel=1e-4)
    assert len(every_region)


def test_a_tensor_of_a_subclass(every_region: Calls) -> None:  # noqa: F811
    def fn(x: Tensor) -> Tensor:
        return torch.softmax(x * 2, -1) + 1

    x = TwoTensor(torch.randn(16, 32), torch.randn(16, 32))
    got, due = compiled(fn)(x), fn(x)
    torch.testing.assert_close((got.a, got.b), (due.a, due.b))
    assert len(every_region)


def test_two_resets_without_a_graph() -> None:
    """A reset that loaded Inductor would add to the backends that torch goes through."""
    script = """
import sys, torch
for _ in range(2):
    torch.compile(torch.nn.Linear(4, 4), backend="cudal1", options={"target": "host"})
    torch.compiler.reset()
assert "torch._inductor.compile_fx" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_compiled_model_is_stored_copied_and_given_other_weights(every_region: Calls) -> None:  # noqa: F811
    model, x = Block(), torch.randn(8, 16)
    fast, file = compiled(model), io.BytesIO()
    torch.testing.assert_close(fast(x), model(x))
    torch.save(fast.state_dict(), file)
    file.seek(0)
    fast.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(copy.deepcopy(fast)(x), model(x))
    other = Block()
    model.load_state_dict(other.state_dict(), assign=True)
    torch.testing.assert_close(fast(x), other(x))
    model.double()
    torch.testing.assert_close(fast(x.double()), other.double()(x.double()))
    assert len(every_region)
