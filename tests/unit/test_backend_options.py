"""Options: what is taken, what is refused, and that a refusal reaches the user as a plain ValueError."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cudal1_compile.options import OWN_NAMES, InvalidOption, allows, parse_options


class Writes:
    name = "test"
    budget_tokens = 1

    def propose(self, prompts: Any, n: int, seed: int) -> list[list[str]]:
        return [[] for _ in prompts]


def test_own_options_and_inductors() -> None:
    generator = Writes()
    given = {"on_miss": "fallback", "budget-s": 3, "cache_dir": "/x", "generator": generator, "max_fusion_size": 8}
    options = parse_options(None, given)
    for given_as, on_a_gpu, on_the_host in ((True, True, True), (False, False, False), (None, True, False)):
        found = parse_options(None, {"products": given_as})
        assert (found.has_products("cuda"), found.has_products("host")) == (on_a_gpu, on_the_host)
    assert parse_options(None, {}).products is None
    assert (options.on_miss, options.budget_s, options.cache_dir) == ("fallback", 3.0, Path("/x"))
    assert parse_options(None, {"cache_dir": "~/x"}).cache_dir == Path.home() / "x"
    assert options.generator is generator
    assert dict(options.inductor) == {"max_fusion_size": 8}


def test_a_mode_becomes_its_options() -> None:
    assert parse_options("reduce-overhead", None).inductor == {"triton.cudagraphs": True}
    assert parse_options("default", None).inductor == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"on_mis": "fallback"}, "Did you mean on_miss"),
        ({"target": "gpu"}, "auto, host, cuda"),
        ({"on_miss": "wait"}, "synthesize, background, fallback"),
        ({"budget_s": -1}, "seconds"),
        ({"budget_s": True}, "seconds"),
        ({"budget_s": 10**400}, "seconds"),
        ({1: "host"}, "a str"),
        ([("target", "host")], "expected a dict"),
        ("host", "expected a dict"),
        ({"shadow": 1.5}, "from 0 to 1"),
        ({"shadow": True}, "from 0 to 1"),
        ({"products": 1}, "True or False"),
        ({"numerics": "fast"}, "exact, reassociates, f32_split, assumes_finite"),
        ({"generator": 3}, "propose"),
        ({"generator": SimpleNamespace(propose=print)}, "budget_tokens"),
        ({"cache_dir": 3}, "path"),
        ({"cache_dir": ""}, "path"),
        ({"generator": ""}, "propose"),
        ({"epilogue-fusion": "yes"}, "epilogue-fusion='yes': expected bool"),
    ],
)
def test_refusals_name_what_is_valid(given: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_options(None, given)


def test_an_unknown_option_lists_all_of_ours() -> None:
    with pytest.raises(InvalidOption) as caught:
        parse_options(None, {"nonsense": 1})
    assert all(name in str(caught.value) for name in OWN_NAMES)


@pytest.mark.parametrize("settings", [{"options": {"nonsense": 1}}, {"mode": "fastest"}])
def test_the_first_call_raises_it_unwrapped(settings: dict[str, Any]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1, backend="cudal1", **settings)
    with pytest.raises(ValueError) as caught:
        compiled(torch.ones(3))
    assert type(caught.value) is InvalidOption


def test_labels_are_ordered() -> None:
    assert allows("f32_split", "exact") and allows("f32_split", "f32_split")
    assert not allows("exact", "reassociates") and not allows("assumes_finite", "unheard of")
