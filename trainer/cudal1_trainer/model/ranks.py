"""What the processes of one run tell each other: the time, and whether all of them are well.

Every function is to be called equally often by all of them. One process is asked nothing.
"""

from __future__ import annotations

import time

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast

STANDS_S = 1.0  # about as long an answer may serve
MOST_READS = 20  # that share one


def count_ranks(accelerator: Accelerator, mine: bool) -> int:
    """Of how many processes it is true."""
    flag = torch.tensor([float(mine)], device=accelerator.device)
    return round(float(accelerator.reduce(flag, "sum")[0]))


def all_agree(accelerator: Accelerator, mine: bool) -> bool:
    return bool(count_ranks(accelerator, mine) == accelerator.num_processes)


class SharedClock:
    """Seconds of a run, rank 0's on every rank: all use one learning rate, save and stop together.

    An answer waits for the device, so readings in quick succession share one.
    """

    def __init__(self, accelerator: Accelerator, before_s: float) -> None:
        """`before_s`: what earlier processes of this run took."""
        self._accelerator, self._start = accelerator, time.monotonic() - before_s
        self._agreed_s, self._reads, self._left = before_s, 1, 0

    def read(self) -> float:
        own_s = time.monotonic() - self._start
        if self._accelerator.num_processes == 1:
            return own_s
        if self._left == 0:
            agreed_s = float(broadcast(torch.tensor([own_s], device=self._accelerator.device))[0])
            self._reads = min(MOST_READS, 2 * self._reads) if agreed_s - self._agreed_s < STANDS_S else 1
            self._agreed_s, self._left = agreed_s, self._reads
        self._left -= 1
        return self._agreed_s
