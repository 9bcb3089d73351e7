"""Checks at run time on a GPU: streams, CUDA graphs of the modes and of the user, a full device, training.

Kernels are the regions themselves, run with aten; a wrong one spoils an element. They stand where loaded kernels
stand, behind the registry's switch and its check of the first call, so that refuting them works as in a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backend_reference import Calls, every_region, mode_options  # noqa: F401  a fixture
from torch import Tensor

from cudal1_compile.dispatch import call_check, registry
from cudal1_compile.pipeline import shadow
from cudal1_fx_passes.program.text import parse_program

pytestmark = pytest.mark.gpu


class Kernels:
    """How they behave now, and what was seen of them."""

    def __init__(self) -> None:
        self.error = torch.zeros(1, device="cuda")  # added to one element; replays of a recording read it too
        self.streams: list[int] = []  # of each kernel run outside a capture
        self.captured = 0
        self.compared = 0

    def run(self, right: Callable[..., None], args: tuple[Any, ...]) -> None:
        if torch.cuda.is_current_stream_capturing():
            self.captured += 1
        else:
            self.streams.append(args[-1])
        right(*args)
        out: Tensor = next(a for a in args if a.is_floating_point())
        out.as_strided((1,), (1,)).add_(self.error)


@pytest.fixture
def kernels(every_region: Calls, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:  # noqa: F811
    found = Kernels()

    def load(entry_id: str, device: torch.device, text: str) -> registry.KernelFunction:
        program = parse_program(text)
        right = registry.load_reference(program, device)
        return registry._guarded(entry_id, program, lambda *args: found.run(right, args), device)

    def prepare(*args: Any) -> Any:
        found.compared += 1
        return real_prepare(*args)

    real_prepare = call_check._prepare
    monkeypatch.setattr(registry, "_load_or_reference", load)
    monkeypatch.setattr(registry, "_refuted", set())
    monkeypatch.setattr(call_check, "_prepare", prepare)
    call_check._say.cache_clear()
    torch.manual_seed(0)
    yield found


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    def read() -> list[str]:
        assert "could not be checked" not in caplog.text
        return [r.getMessage() for r in caplog.records if "gave a wrong result" in r.getMessage()]

    return read


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x * 2, -1) + 1


def compile_(fn: Callable[..., Any], share: float = 0.0, mode: str | None = None, **settings: Any) -> Any:
    options = {"target": "cuda", "shadow": share} | mode_options(mode)
    return torch.compile(fn, backend="cudal1", options=options, **settings)


def rand(*size: int) -> Tensor:
    return torch.randn(*size, device="cuda")


def check_step(fast: Callable[..., Any], fn: Callable[..., Any] = softmax, rows: int = 64) -> None:
    x = rand(rows, 256).requires_grad_()
    y = x.detach().clone().requires_grad_()
    out, expected = fast(x), fn(y)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-4)


def check_call(fast: Callable[..., Any], fn: Callable[..., Any] = softmax) -> None:
    x = rand(64, 256)
    with torch.no_grad():
        torch.testing.assert_close(fast(x).clone(), fn(x), rtol=1e-4, atol=1e-5)


MODES = [None, "reduce-overhead"]


@pytest.mark.parametrize("mode", MODES)
def test_the_first_use(mode: str | None, kernels: Kernels, said: Callable[[], list[str]]) -> None:
    """In a CUDA-graph mode it falls into the warm-up, so that what is recorded is right."""
    kernels.error.fill_(7)
    fast = compile_(softmax, mode=mode)
    for _ in range(5):
        check_step(fast)
    assert len(said()) == kernels.compared == 2, "forward and backward, once each"


@pytest.mark.parametrize("mode", MODES)
def test_right_kernels(mode: str | None, kernels: Kernels, said: Callable[[], list[str]]) -> None:
    """Nothing is said, the recording is as without a check, and only the first calls are compared."""
    fast = compile_(softmax, mode=mode)
    for _ in range(6):
        check_step(fast)
    assert not said() and kernels.compared == 2
    assert bool(kernels.captured) == (mode is not None)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_kernel_that_goes_wrong(
    mode: str | None,
    dynamic: bool,
    kernels: Kernels,
    said: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Recorded while it was right. A checked call finds it; what was recorded is not replayed any more."""
    monkeypatch.setattr(shadow, "OFFSET", 0.0)
    fast = compile_(softmax, 0.125, mode, dynamic=dynamic)  # call 7 is checked
    for call in range(7):
        check_step(fast, rows=64 + 8 * dynamic * (call % 2))
    kernels.error.fill_(7)
    for call in range(7, 14):
        check_step(fast, rows=64 + 8 * dynamic * (call % 2))
    assert len(said()) == 2, "forward and backward"


def test_replays_between_checked_calls(kernels: Kernels, said: Callable[[], list[str]]) -> None:
    """Checked calls run beside a CUDA graph's pool and leave nothing in it."""
    fast = compile_(softmax, 0.25, "reduce-overhead")
    for _ in range(16):
        check_step(fast)
    recorded = kernels.captured
    for _ in range(16):
        check_step(fast)
    assert not said() and kernels.captured == recorded, "nothing is recorded again"


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_another_stream(share: float, kernels: Kernels, said: Callable[[], list[str]]) -> None:
    """The copies, the kernel and the comparison are in order on the caller's stream."""
    kernels.error.fill_(7)
    fast = compile_(softmax, share)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(10):
            slow = rand(2048, 2048)
            for _ in range(10):
                slow = (slow @ slow).clamp(-1, 1)  # the input is ready long after the call
            x = slow[:64, :256].contiguous()
            torch.testing.assert_close(fast(x), softmax(x), rtol=1e-4, atol=1e-5)
    stream.synchronize()
    assert set(kernels.streams) == {stream.cuda_stream} and len(said()) == 1


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_capture_by_the_user(share: float, kernels: Kernels, said: Callable[[], list[str]]) -> None:
    """Nothing waits while a graph is captured, also not for the first call; after it checks go on."""
    fast = compile_(softmax, share)
    x = rand(64, 256)
    with torch.no_grad():
        fast(x)
        compared = kernels.compared
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = fast(x)
        assert kernels.captured >= 1 and kernels.compared == compared
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.testing.assert_close(captured, softmax(x), rtol=1e-4, atol=1e-5)
    check_call(fast)
    assert not said() and kernels.compared == compared + int(share)


def test_the_first_call_within_a_capture(kernels: Kernels, said: Callable[[], list[str]]) -> None:
    """It is checked at the first call after it."""
    device = torch.device("cuda", torch.cuda.current_device())
    text = "region v1\ndims d0=64\nin0 f32[d0]\nt0 f32[d0] = exp(in0)\nout0 f32[d0] = t0\n"
    run = registry.load("within a capture", "cuda", device.index, text)
    x, out = rand(64), torch.empty(64, device="cuda")
    run_warm = torch.exp(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(out, x, torch.cuda.current_stream().cuda_stream)
    assert kernels.compared == 0
    graph.replay()
    torch.testing.assert_close(out, run_warm)
    run(out, x, torch.cuda.current_stream().cuda_stream)
    run(out, x, torch.cuda.current_stream().cuda_stream)
    assert kernels.compared == 1 and not said()


def test_a_full_device(kernels: Kernels, said: Callable[[], list[str]]) -> None:
    """What a call leaves free is enough for a comparison, in slices; the stand-in's own steps take 512 MiB."""
    rows, columns = 1 << 13, 1 << 12  # 128 MiB
    x = rand(rows, columns)
    with torch.no_grad():
        expected = softmax(x)
        fast = compile_(softmax, 1.0)
        fast(rand(rows, columns))
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        before = kernels.compared
        ballast = torch.empty(free - (800 << 20), dtype=torch.uint8, device="cuda")
        try:
            out = fast(x)
        finally:
            del ballast
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    assert kernels.compared > before


def test_random_numbers_stay_the_same(kernels: Kernels) -> None:
    x = rand(64, 256)
    found = []
    for share in (0.0, 1.0):
        torch._dynamo.reset()
        fast = compile_(lambda x: F.dropout(torch.softmax(x, -1) * 2 + 1, 0.5), share)
        torch.manual_seed(7)
        found.append((fast(x), fast(x), torch.cuda.get_rng_state()))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
