"""The sampler's threads: its own thread alone has fewer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from cudal1_compile.generate.threads import at_most


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def threads_of_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize(("count", "given"), [(1, 1), (2, 2), (64, 3)])
def test_fewer_threads_for_this_thread_alone_and_for_a_while(count: int, given: int) -> None:
    with at_most(count):
        assert (torch.get_num_threads(), threads_of_a_new_thread()) == (given, 3)
    assert (torch.get_num_threads(), threads_of_a_new_thread()) == (3, 3)


def test_what_raises_has_its_threads_again() -> None:
    with pytest.raises(ValueError), at_most(1):
        raise ValueError
    assert torch.get_num_threads() == 3
