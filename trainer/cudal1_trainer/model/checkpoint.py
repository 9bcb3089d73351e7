"""State files of a run with one or several processes: a kill at any moment leaves a whole state.

rank0.40.pt  rank1.40.pt     what each process knows by itself, written first
state.pt                     what all share; it names the step, and so commits the files above
rank0.lock   rank1.lock      held as long as a run writes here
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import IO
from zipfile import BadZipFile, ZipFile

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from torch import nn

from cudal1_trainer.model.ranks import all_agree
from cudal1_trainer.model.sharding import State, place, whole

log = logging.getLogger(__name__)

NO_ROOM = (OSError, RuntimeError)  # torch's own writer raises the second where a disk is full


class Checkpoints:
    """Those of one process in one folder. Raises ValueError where another run writes there."""

    def __init__(self, folder: Path, accelerator: Accelerator) -> None:
        self.folder, self.rank, self._accelerator = folder, accelerator.process_index, accelerator
        self._lock = _lock(folder, self.rank)

    def save(self, step: int, shared: State | None, own: State) -> bool:
        """`shared` on rank 0. A disk without room leaves the last state as it is and is told."""
        if not all_agree(self._accelerator, _write(self._own(step), own)):
            self._own(step).unlink(missing_ok=True)
            return False
        written = _write(self.folder / "state.pt", {"step": step} | shared) if shared is not None else True
        if not all_agree(self._accelerator, written):
            return False
        for old in self.folder.glob(f"rank{self.rank}.*.pt"):
            if old != self._own(step):
                old.unlink()
        return True

    def load(self, device: torch.device) -> tuple[State, State] | None:
        """(shared, own) of the last whole state, or None at the beginning."""
        path = self.folder / "state.pt"
        if not path.is_file():
            return None
        place = device if device.type == "cuda" else torch.device("cpu")  # several processes have cpu:0, cpu:1
        shared = _read(path, place)
        own = self._own(shared["step"])
        begun, now = len(list(self.folder.glob(f"rank*.{shared['step']}.pt"))), self._accelerator.num_processes
        if begun != now or not own.is_file():  # each has its own part of the data
            raise ValueError(
                f"{self.folder} holds a run of {begun} processes, these are {now}: resume with as many"
            )
        return shared, _read(own, torch.device("cpu"))

    def _own(self, step: int) -> Path:
        return self.folder / f"rank{self.rank}.{step}.pt"


def _read(path: Path, place: torch.device) -> State:
    """Raises ValueError where the file is damaged: torch itself checks no checksum."""
    try:
        with ZipFile(path) as parts:
            damaged = parts.testzip()
        if damaged is not None:
            raise BadZipFile(f"{damaged} has changed")
        state: State = torch.load(path, map_location=place, weights_only=True)
    except (RuntimeError, EOFError, UnpicklingError, BadZipFile) as error:
        raise ValueError(f"{path} is damaged ({error}): begin anew with another --out") from None
    return state


def forget(folder: Path) -> None:
    """A run that comes begins anew. Raises ValueError where one writes there now."""
    if folder.is_dir():
        with _lock(folder, 0):
            (folder / "state.pt").unlink(missing_ok=True)
            for own in folder.glob("rank*.*.pt"):  # of more processes than now, perhaps
                own.unlink()


def _lock(folder: Path, rank: int) -> IO[str]:
    """Held until it is closed. Raises ValueError."""
    file = (folder / f"rank{rank}.lock").open("w")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this process, not of its children
    except OSError:
        file.close()
        raise ValueError(f"another run writes in {folder}: wait for its end, or give another --out") from None
    return file


def trained_state(module: nn.Module) -> State:
    """Without the frozen weights of a model whose adapters are trained. All processes ask together."""
    frozen = _frozen(module)
    return {name: whole(value) for name, value in module.state_dict().items() if name not in frozen}


def load_trained(module: nn.Module, state: State) -> None:
    likes = module.state_dict()
    parts = {name: place(value, likes[name]) for name, value in state.items()}
    module.load_state_dict(parts, strict=not _frozen(module))


def no_room(what: str, folder: Path) -> str:
    return f"no room for the {what} in {folder}: make room, give the same command again"


@contextmanager
def room_for_the_end(folder: Path) -> Iterator[None]:
    """Around what is written when all is learnt and saved: where that fails, the same command only writes it."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise OSError(f"{no_room('model or its report', folder)} ({error})") from error


def _frozen(module: nn.Module) -> set[str]:
    return {n for n, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}


def _write(path: Path, state: State) -> bool:
    temporary = path.with_suffix(".tmp")
    try:
        torch.save(state, temporary)
        os.replace(temporary, path)
    except NO_ROOM as error:
        temporary.unlink(missing_ok=True)
        log.warning("no checkpoint was written, the last one stays: %s", str(error).splitlines()[0])
        return False
    return True
