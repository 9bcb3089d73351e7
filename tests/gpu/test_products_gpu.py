"""Products as regions on a GPU, with templates' kernels: right in every precision, torch's flags obeyed.

pytest tests/gpu/test_products_gpu.py -s     prints which regions run by a kernel
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trials import new_process

from cudal1_compile.inductor.graph_plan import GraphPlanned
from cudal1_compile.pipeline import compile as pipeline
from cudal1_compile.pipeline.choice import SETTLED
from cudal1_trainer.data.template_generator import TemplateGenerator

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

BUDGET_S = 40.0


@pytest.fixture(autouse=True)
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[GraphPlanned]]:
    """Of every compile, in a process of its own."""
    new_process(monkeypatch)
    torch.manual_seed(0)
    found: list[GraphPlanned] = []
    monkeypatch.setattr(pipeline, "report", lambda plan, kind: found.append(plan))
    allowed = torch.backends.cudnn.allow_tf32
    yield found
    torch.backends.cudnn.allow_tf32 = allowed


def model() -> nn.Module:
    first = (nn.Conv2d(16, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
    second = (nn.Conv2d(32, 32, 3, 1, 1, groups=32, bias=False), nn.BatchNorm2d(32), nn.SiLU())
    return nn.Sequential(
        *first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 64), nn.GELU()
    ).cuda()


def compiled(module: nn.Module) -> Any:
    options = {"products": True, "generator": TemplateGenerator(), "budget_s": BUDGET_S, "process_budget_s": 1e6}
    return torch.compile(module, backend="cudal1", options=options)


def errors(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    """On one scale for all gradients of a model: that of a bias before a norm is rounding alone."""
    typical = max(float(e.double().square().mean().sqrt()) for e in exact)
    return [float((f.double() - e).abs().max()) / typical for f, e in zip(found, exact, strict=True)]


@pytest.mark.parametrize(
    ("train", "tf32", "autocast", "last", "bound"),
    [
        pytest.param(True, True, False, False, 5e-2, id="tf32"),
        pytest.param(True, False, False, True, 1e-3, id="f32, channels last"),
        pytest.param(True, True, True, False, 3e-1, id="autocast"),
        pytest.param(False, False, False, False, 1e-3, id="f32, eval"),
    ],
)
def test_right_in_every_precision(
    train: bool,
    tf32: bool,
    autocast: bool,
    last: bool,
    bound: float,
    plans: list[GraphPlanned],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline, "may_try", lambda: False)
    monkeypatch.setattr(
        pipeline, "_untried", lambda plan: "all_kernels" if plan.choice == "deciding" else plan.choice
    )
    torch.backends.cudnn.allow_tf32 = tf32
    layout = torch.channels_last if last else torch.contiguous_format
    module = model().train(train).to(memory_format=layout)  # type: ignore[call-overload]
    exact, x = copy.deepcopy(module).double(), torch.randn(16, 16, 28, 28, device="cuda").to(memory_format=layout)
    fast = compiled(module)
    with torch.set_grad_enabled(train):
        with torch.autocast("cuda", torch.float16, enabled=autocast):
            out = fast(x)
        wanted = exact(x.double())
    assert max(errors([out], [wanted])) < bound
    if train:
        out.float().square().mean().backward()
        wanted.square().mean().backward()
        pairs = zip(module.parameters(), exact.parameters(), strict=True)
        grads = [(p.grad, q.grad) for p, q in pairs if p.grad is not None and q.grad is not None]
        assert max(errors([g for g, _ in grads], [e for _, e in grads])) < bound
    kernels = [r for p in plans for r in p.regions if r.fingerprint in p.kernels("all_kernels")]
    products = [r for r in kernels if " = dot" in r.seen.text]
    print(f"{len(products)} products of {len(kernels)} kernels run")
    convolutions = [r.seen.text for r in products if " k0=" in r.seen.text]
    assert all((" = dot_tf32" in text) == (tf32 and not autocast) for text in convolutions)


def test_the_flag_is_obeyed_between_calls() -> None:
    torch.backends.cudnn.allow_tf32 = True
    module = model().eval()
    fast, x = compiled(module), torch.randn(16, 16, 28, 28, device="cuda")
    with torch.no_grad():
        for _ in range(SETTLED):
            fast(x)
        torch.backends.cudnn.allow_tf32 = False
        out, wanted = fast(x), copy.deepcopy(module).double()(x.double())
    assert max(errors([out], [wanted])) < 1e-4
