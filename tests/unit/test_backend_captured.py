"""Recorded graphs on the CPU, where a replay computes anew into the memory of the recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from replays import Graph, Replays
from torch import Tensor, nn

from cudal1_compile.pipeline import captured
from cudal1_compile.pipeline.captured import MOST, Captured


def owned(x: Tensor) -> nn.Parameter:
    return nn.Parameter(x, requires_grad=False)


def linear(x: Tensor, w: Tensor) -> tuple[Tensor, None, int]:
    return x @ w, None, 3


def test_a_replay_reads_inputs_and_parameters_anew_and_its_outputs_stay() -> None:
    device, w = Replays(), owned(torch.randn(4, 4))
    run = Captured(linear, device)
    xs = [torch.randn(3, 4) for _ in range(6)]
    found = [run(x, w) for x in xs]
    assert (device.recorded, device.replayed) == (1, 3) and run.why_not == ""
    for x, (y, nothing, number) in zip(xs, found, strict=True):
        torch.testing.assert_close(y, x @ w)
        assert nothing is None and number == 3
    w.mul_(2.0)
    torch.testing.assert_close(run(xs[0], w)[0], xs[0] @ w)
    assert device.replayed == 4 and device.order == ["begin", "end"] * 4


def test_outputs_keep_their_strides_and_what_has_gaps_is_not_recorded() -> None:
    device, w = Replays(), owned(torch.randn(6, 6))
    turned, cut = (Captured(graph, device) for graph in (lambda x, w: [(x @ w).T], lambda x, w: [(x @ w)[:, :4]]))
    for x in (torch.randn(3, 6) for _ in range(5)):
        assert turned(x, w)[0].stride() == (1, 6) and cut(x, w)[0].stride() == (6, 1)
    assert device.replayed == 2 and turned.why_not == "" and "no plain tensor" in cut.why_not


def test_parameters_that_move_are_recorded_again_until_there_are_too_many() -> None:
    device, x = Replays(), torch.randn(3, 4)
    run = Captured(linear, device, warm_up=0)
    models = [owned(torch.randn(4, 4)) for _ in range(MOST)]
    for w in models * 2:
        torch.testing.assert_close(run(x, w)[0], x @ w)
    assert (device.recorded, device.replayed, run.why_not) == (MOST, MOST, "")
    last = owned(torch.randn(4, 4))
    torch.testing.assert_close(run(x, last)[0], x @ last)
    assert "do not stay" in run.why_not and device.recorded == MOST


def test_inputs_that_stay_are_read_in_place_until_they_move() -> None:
    device, w, x, y = Replays(), owned(torch.randn(4, 4)), torch.randn(3, 4), torch.randn(3, 4)
    run = Captured(lambda x, y, w: [x @ w + y], device)
    for _ in range(4):
        x.add_(1.0)
        torch.testing.assert_close(run(x, y, w)[0], x @ w + y)
    assert [r.inputs.copied for r in run._recordings] == [[]] and device.replayed == 1
    xs = [torch.randn(3, 4) for _ in range(5)]
    for z in (*xs, x):
        torch.testing.assert_close(run(z, y, w)[0], z @ w + y)
    assert [r.inputs.copied for r in run._recordings] == [[], [0]] and device.replayed == 6
    for z in [torch.randn(3, 4) for _ in range(3)]:
        torch.testing.assert_close(run(x, z, w)[0], x @ w + z)
    assert [r.inputs.copied for r in run._recordings] == [[], [0], [0, 1]] and run.why_not == ""


def test_inputs_that_move_do_not_use_up_the_recordings_of_a_model() -> None:
    device, w = Replays(), owned(torch.randn(4, 4))
    graph = lambda *given: [sum(given[:-1]) @ given[-1]]  # noqa: E731
    run = Captured(graph, device, warm_up=1)
    still = [torch.randn(3, 4) for _ in range(2 * MOST)]
    run(*still, w)
    run(*still, w)
    moved = list(still)
    for i in range(2 * MOST):
        moved[i] = torch.randn(3, 4)
        torch.testing.assert_close(run(*moved, w)[0], sum(moved) @ w)  # type: ignore[arg-type,operator]
    assert run.why_not == "" and len(run._recordings) <= MOST


def test_a_buffer_that_the_graph_changes_stays_where_it_is() -> None:
    count = torch.zeros(2)
    count._dynamo_static_input_type = "unguarded"  # type: ignore[attr-defined]  # as Dynamo marks it

    def counts(x: Tensor, count: Tensor) -> list[Tensor]:
        count.add_(1.0)
        return [x + count]

    class Once(Replays):
        """A real recording runs nothing, so that no count is taken twice."""

        def record(self, *runs: Graph) -> list[tuple[Callable[[], None], Any]]:
            found = super().record(*runs)
            count.sub_(1.0)
            return found

    run = Captured(counts, Once(), changed=(1,), warm_up=1)
    for n in range(1, 6):
        assert run(torch.zeros(2), count)[0].tolist() == [n, n]
    assert count.tolist() == [5.0, 5.0] and run.why_not == ""


def _noise(x: Tensor, w: Tensor) -> list[Tensor]:
    return [x + torch.rand(4)]


def _writes(x: Tensor, w: Tensor) -> list[Tensor]:
    x.add_(1.0)
    return [x * 2.0]


def _hidden(x: Tensor, w: Tensor) -> list[Tensor]:
    x.detach().numpy()[:] += 1.0  # no version counts it
    return [x * 2.0]


REFUSED: dict[str, tuple[Graph, str]] = {
    "random numbers": (_noise, "random numbers"),
    "a written input": (_writes, "changes an input"),
    "an input written unseen": (_hidden, "changes an input"),
    "an input returned": (lambda x, w: [x], "returns an input"),
    "a view of a parameter": (lambda x, w: [w.t()], "returns an input"),
    "a tensor twice": (lambda x, w: [y := x + 1.0, y.view(-1)], "one tensor twice"),
    "elements that share memory": (lambda x, w: [(x.sum() + 0.0).expand(3)], "no plain tensor"),
    "a word": (lambda x, w: [x + 1.0, "word"], "returns a str"),
    "no list": (lambda x, w: x + 1.0, "returns a Tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_replay_would_do_otherwise_runs_as_it_is(name: str) -> None:
    graph, why = REFUSED[name]
    device = Replays()
    run = Captured(graph, device, warm_up=0)
    for _ in range(3):
        torch.manual_seed(0)
        x, w = torch.randn(3, 4), owned(torch.randn(4, 4))
        mine, generator = x.clone(), torch.get_rng_state()
        got = run(x, w)
        drawn = torch.get_rng_state()
        torch.set_rng_state(generator)
        expected = graph(mine, w)
        assert torch.equal(drawn, torch.get_rng_state()) and torch.equal(x, mine)
        for a, b in zip(got, expected, strict=True):
            assert a == b if isinstance(a, str) else torch.equal(a, b)
    assert why in run.why_not and device.replayed == 0


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (3, "an input is a int"),
        (torch.zeros(1, 4).expand(3, 4), "share memory"),
        (torch.zeros(3, 4), "changes an"),
    ],
)
def test_inputs_that_cannot_be_copied(given: Any, why: str) -> None:
    device, w = Replays(), owned(torch.ones(4, 4))
    run = Captured(lambda x, w: [w + x if isinstance(x, int) else x @ w], device, (0,) * ("changes" in why), 0)
    for _ in range(2):
        assert isinstance(run(given, w)[0], Tensor)
    assert why in run.why_not and device.recorded == 0


def test_inference_tensors_come_and_go() -> None:
    device = Replays()
    run = Captured(linear, device, warm_up=0)
    with torch.inference_mode():
        w, x = owned(torch.randn(4, 4)), torch.randn(3, 4)
        for _ in range(3):
            y = run(x, w)[0]
            torch.testing.assert_close(y, x @ w)
        assert y.is_inference() and device.replayed == 2
    with torch.no_grad():
        assert not run(torch.randn(3, 4), w)[0].is_inference()


def test_nothing_is_replayed_in_a_capture_of_the_users() -> None:
    device, w = Replays(), owned(torch.randn(4, 4))
    run = Captured(linear, device, warm_up=0)
    run(torch.randn(3, 4), w)
    device.is_in_capture = True
    run(torch.randn(3, 4), w)
    assert device.replayed == 0
    device.is_in_capture = False
    run(torch.randn(3, 4), w)
    assert device.replayed == 1


@pytest.mark.parametrize("replays", [0, 1])
def test_without_memory_it_runs_as_it_is(replays: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device, w, x = Replays(), owned(torch.randn(4, 4)), torch.randn(3, 4)
    run = Captured(linear, device, warm_up=0)
    for _ in range(2 * replays):
        run(x, w)

    def full(x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(captured, "like", full)
    monkeypatch.setattr(torch, "empty_like", full)
    torch.testing.assert_close(run(x, w)[0], x @ w)
    assert "out of memory" in run.why_not and device.replayed == replays
