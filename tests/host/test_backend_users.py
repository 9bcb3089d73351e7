"""What users have beside a plain model: beside backend="inductor", nothing is lost and nothing is said."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from backend_reference import Calls, compiled, every_region  # noqa: F401  a fixture
from torch import Tensor, nn
from torch.nn import functional as F
from trials import Junk

pytestmark = pytest.mark.host


def test_a_sparse_gradient(every_region: Calls, caplog: pytest.LogCaptureFixture) -> None:  # noqa: F811
    """Inductor infers fake tensors anew behind a pass, and fails at sparse ones: that graph is left to it."""
    gradients = []
    at, weight = torch.randint(0, 5, (4, 5)), torch.randn(20, 16)
    for wrap in (lambda run: run, compiled):
        table = nn.Embedding.from_pretrained(weight, freeze=False, sparse=True)
        wrap(lambda i, table=table: torch.softmax(table(i), -1).exp())(at).square().sum().backward()
        assert table.weight.grad is not None and table.weight.grad.is_sparse
        gradients.append(table.weight.grad.to_dense())
    torch.testing.assert_close(gradients[1], gradients[0])
    warnings = [r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("cudal1")]
    assert len(every_region) == 1 and not warnings
    assert any("is sparse" in r.reason for r in every_region.plans[0].refused)


def read_at(w: Tensor, i: Tensor, j: Tensor, x: Tensor, t: Tensor) -> tuple[Tensor, ...]:
    return F.embedding(i, w).sin().exp(), w[j].cos().exp(), F.cross_entropy(x, t)


def test_an_index_out_of_bounds_is_an_error(every_region: Calls) -> None:  # noqa: F811
    """A kernel would read whatever lies there; Inductor's own code asserts, and so does the graph for a kernel."""
    # one thread: what Inductor's code throws within an OpenMP region ends the process
    options = {"target": "host", "cpp.threads": 1}
    fast = torch.compile(read_at, backend="cudal1", options=options)

    def inputs(name: str, value: int) -> list[Tensor]:
        given = {"w": torch.randn(20, 16), "x": torch.randn(8, 32)} | {n: torch.arange(8) for n in "ijt"}
        given[name][3] = value
        return [given[n] for n in "wijxt"]

    for name, value in (("i", 19), ("j", -20), ("t", -100), ("t", 31)):
        given = inputs(name, value)
        torch.testing.assert_close(fast(*given), read_at(*given))
    assert len(every_region) == 12
    for name, value in (("i", 20), ("i", -1), ("j", 20), ("j", -21), ("t", 32), ("t", -1)):
        with pytest.raises(RuntimeError, match="index out of bounds"):
            fast(*inputs(name, value))  # aten, which stands for kernels here, would raise an IndexError


@pytest.mark.slow  # in every run: of an axis whose size is known
def test_an_index_out_of_a_symbolic_axis_is_an_error(every_region: Calls) -> None:  # noqa: F811
    def of_batch(a: Tensor, b: Tensor, t: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        return F.cross_entropy(a @ b.t() * 0.1, t), a[i].exp() * 2

    fast = torch.compile(of_batch, backend="cudal1", options={"target": "host", "cpp.threads": 1})
    for n in (32, 48):  # the second batch makes the classes' axis symbolic
        given = [torch.randn(n, 16), torch.randn(n, 16), torch.arange(n), torch.arange(n) - n]
        torch.testing.assert_close(fast(*given), of_batch(*given))
    assert every_region
    for at, value in ((2, 48), (2, -1), (3, 48), (3, -49)):
        given[at] = given[at].index_fill(0, torch.tensor(5), value)
        with pytest.raises(RuntimeError, match="index out of bounds"):
            fast(*given)
        given[at] = torch.arange(48)


@pytest.mark.skipif(not hasattr(torch.compile(len), "aot_compile"), reason="this torch has none for functions")
@pytest.mark.parametrize(
    "options", [{"shadow": 1.0}, {"on_miss": "background", "generator": Junk()}], ids=["shadow", "background"]
)
def test_a_package(options: dict[str, Any], request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """aot_compile writes what the backend returns, and can write nothing but Inductor's own."""
    torch._dynamo.reset()
    if "shadow" in options:
        request.getfixturevalue("every_region")
    x, path = torch.randn(16, 32), tmp_path / "package"
    fast = torch.compile(
        lambda x: torch.softmax(x * 2, -1) + 1,
        fullgraph=True,
        backend="cudal1",
        options={"target": "host"} | options,
    )
    with torch._inductor.config.patch(force_disable_caches=False):
        fast.aot_compile(((x,), {})).save_compiled_function(str(path))
    with path.open("rb") as file:
        again = torch.compiler.load_compiled_function(file)
    torch.testing.assert_close(again(x), torch.softmax(x * 2, -1) + 1)
