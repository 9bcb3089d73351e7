"""Recipes: every number of a training run, read from one YAML file.

`load_recipe("h100")` reads `recipes/h100.yaml` beside this file; a path to a file works as well. `extends: h100`
at a file's top takes over what it does not say itself. A key that no field has is an error, so that a misspelt one
cannot pass unseen. Nothing is trained here.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

RECIPES = Path(__file__).parent / "recipes"
ARMS = ("buckets", "random", "plain")
BASELINES = ("group", "leave_one_out")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TokenizerRecipe:
    vocab: int = 2048
    programs: int = 2000  # tasks whose prompts and replies it is trained on


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    hidden: int = 384
    layers: int = 8
    heads: int = 6
    kv_heads: int = 2
    mlp: int = 1024
    max_positions: int = 4096
    lora: int = 0  # rank of the adapters that are trained on a foreign checkpoint; 0 trains all its weights

    def __post_init__(self) -> None:
        """Raises ValueError."""
        for name in ("hidden", "layers", "heads", "kv_heads", "mlp", "max_positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")


@dataclass(frozen=True, slots=True)
class DataRecipe:
    max_tokens: int = 4096  # of one pair, prompt and reply together; longer ones are left out and counted
    contrastive: float = 0.38  # share of pairs that show measured variants; none without a score file
    predicted: float = 0.0  # where no programs are measured: share of pairs that show the schedule prior's times
    scored_plain: float = 0.15  # share of plain pairs whose target is among the measured fastest
    structures: float = 0.55  # share of the other fresh programs cut from random small models, if there are any
    hard: float = 0.0  # of these, share cut from models of forms that a model failed on, if there are any
    products: float = 0.0  # share of fresh programs cut with a sum of products, if there are any
    written: float = 0.0  # share of fresh programs cut from modules as people write them, if there are any
    gathered: float = 0.0  # share of fresh programs whose product gathers for a reduction, if there are any
    several: float = 2.0  # weight of a structure that reduces over several sets of axes, against the others' 1
    placed: float = 1.0  # weight of a structure that computes with positions or reads elsewhere, likewise
    rare: float = 1.0  # weight of a structure with a scan, or with a window along some of its places, likewise
    solid: float = 1.0  # weight of a structure with a product of a rarer kind (SOLID in corpus.py), likewise
    last: float = 1.0  # weight of a structure with windows of a channels-last image (LAST in corpus.py), likewise
    varied: float = 0.6  # share of the structures drawn that are changed first (vary.py)
    widened: float = 0.65  # share of fresh tasks that are made as wide as regions of models (widen.py)
    family: str = ""  # where not empty, every fresh program is one of `pool` small tasks of it at a new size
    pool: int = 8
    variants_per_task: int = 2  # pairs made of one unmeasured task
    edited: float = 0.0  # share of fresh replies with one to three random edits: the form, not what they gain
    rank_decay: float = 0.25  # of the weight of a schedule with its rank in the templates' own order
    prior_tau: float = 0.06  # log time by which a schedule's weight falls to 1/e, where a prior is fitted
    fast_within: float = 1.1  # a variant this close to the fastest is a plain target
    good_share: float = 0.9  # of the measured plain targets are among the fastest; the rest are any right one
    min_gap: float = 1.05  # a contrastive target is faster than each variant shown by this factor
    chunk_tokens: int = 600_000  # of one unit of work of a producer process
    ahead: int = 0  # chunks that are made before training (chunks.py); where 0, producers make them meanwhile
    workers: int = 14  # at most; fewer where there are fewer cores. Nothing that is learned depends on it

    def __post_init__(self) -> None:
        """Raises ValueError."""
        for name, least in (("max_tokens", 256), ("chunk_tokens", 256), ("pool", 1), ("variants_per_task", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least {least}")

    @property
    def draws_measured(self) -> bool:
        """Whether measured programs are drawn, which take minutes to write out."""
        return self.contrastive > 0 or self.scored_plain > 0


@dataclass(frozen=True, slots=True)
class TrainRecipe:
    minutes: float = 9.0  # of the loop; the schedule follows the clock
    steps: int = 0  # where not 0, this many steps instead, whatever time they take
    tokens_per_step: int = 49_152
    lr: float = 2e-3
    min_lr: float = 0.02  # of lr, at the end of the cosine
    warmup_steps: int = 150
    weight_decay: float = 0.05
    muon: bool = False  # for the matrices of the layers, instead of AdamW
    clip: float = 1.0
    checkpoint_s: float = 60.0
    compile: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError."""
        for name in ("tokens_per_step", "warmup_steps", "lr", "clip"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be over 0")
        _check_length(self.steps, self.minutes)


@dataclass(frozen=True, slots=True)
class ScoreRecipe:
    programs: int = 4000
    variants: int = 12  # of one program, at most
    seconds: float = 480.0


@dataclass(frozen=True, slots=True)
class StageRecipe:
    """Stage 2 or 3. What CUDA-L1 does not publish is this project's choice."""

    minutes: float = 9.0  # of the loop
    steps: int = 0  # where not 0, this many steps instead
    arm: str = "buckets"  # of stage 3: which variants a prompt shows; or random, or plain for none
    tasks: int = 256  # programs practised on, all processes together
    least_mib: float = 0.0  # of a program's tensors, on a GPU
    most_mib: float = 8.0
    products: float = -1.0  # share of programs with a sum of products; below 0 as stage 1's
    at_once: int = 0  # of these: where the replies to one are alike, another takes its place; 0: all
    prompts: int = 32  # a step, all processes together
    group: int = 12  # replies of one prompt
    max_new: int = 1536  # tokens of a reply
    temperature: float = 1.0
    ahead: int = 1  # batches sampled while an older one is at the judge; 0 is on policy
    updates: int = 2  # optimiser steps a batch
    tokens_per_pass: int = 49_152  # padded tokens in one forward and backward
    lr: float = 1e-4
    warmup_steps: int = 5
    grad_clip: float = 1.0
    ratio_clip: float = 0.2
    kl: float = 0.02  # weight of the distance to the checkpoint that the stage began with
    baseline: str = "group"  # or leave_one_out
    window: int = 64  # scores of right replies to a task, behind their rolling mean and deviation
    islands: int = 1  # populations of exemplars that do not see each other
    migrate_steps: int = 20  # between two replacements of the worst island by the best variant
    shown: int = 16  # designs in a prompt of stage 3, at most
    width: float = 0.1  # of a score bucket
    tau: float = 0.25  # of the softmax over buckets
    checkpoint_s: float = 60.0
    silence_s: float = 180.0  # of the judge, after which it is killed
    probe_tasks: int = 64  # held-out programs that are tried before and after
    probe_samples: int = 4  # of each
    server: str = ""  # command that serves a foreign model for rollouts (served.py)

    def __post_init__(self) -> None:
        """Raises ValueError."""
        for name, known in (("arm", ARMS), ("baseline", BASELINES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be one of {', '.join(known)}")
        for name in (
            "tasks",
            "prompts",
            "group",
            "max_new",
            "shown",
            "updates",
            "warmup_steps",
            "islands",
            "migrate_steps",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("temperature", "lr", "grad_clip", "ratio_clip", "width", "tau"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be over 0")
        if self.at_once < 0:
            raise ValueError(f"at_once={self.at_once}: must be at least 0")
        if not 0 <= self.least_mib < self.most_mib:
            raise ValueError(f"least_mib={self.least_mib}, most_mib={self.most_mib}: must be in order, from 0 on")
        if self.products > 1:
            raise ValueError(f"products={self.products}: must be at most 1")
        _check_length(self.steps, self.minutes)


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str
    seed: int = 1
    tokenizer: TokenizerRecipe = field(default_factory=TokenizerRecipe)
    model: ModelRecipe = field(default_factory=ModelRecipe)
    data: DataRecipe = field(default_factory=DataRecipe)
    train: TrainRecipe = field(default_factory=TrainRecipe)
    scores: ScoreRecipe = field(default_factory=ScoreRecipe)
    self_supervised: StageRecipe = field(default_factory=StageRecipe)
    contrastive: StageRecipe = field(default_factory=StageRecipe)

    def __post_init__(self) -> None:
        """Raises ValueError: runs lie in a folder of this name."""
        if not isinstance(self.name, str) or not re.fullmatch(r"\w[\w.-]*", self.name):
            raise ValueError(f"name={self.name!r}: expected letters, digits, dots and dashes")

    @property
    def digest(self) -> str:
        """sha256 over all numbers but that of the producers; a checkpoint of another recipe is refused."""
        numbers = asdict(self)
        del numbers["data"]["workers"]
        return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()


def _check_length(steps: int, minutes: float) -> None:
    if steps < 0 or (steps == 0 and not 0 < minutes < math.inf):
        raise ValueError(f"steps={steps}, minutes={minutes}: one of them must be over 0")


_PARTS: dict[str, type[Any]] = {
    "tokenizer": TokenizerRecipe,
    "model": ModelRecipe,
    "data": DataRecipe,
    "train": TrainRecipe,
    "scores": ScoreRecipe,
    "self_supervised": StageRecipe,
    "contrastive": StageRecipe,
}


def load_recipe(name: str) -> Recipe:
    """Raises ValueError for an unknown name, key or type of value."""
    path, raw = _read(name)
    if "extends" in raw:
        base = _read(str(raw.pop("extends")))[1]
        if "extends" in base:
            raise ValueError(f"recipe {path.name}: extends a recipe that extends another; name that one")
        raw = base | {k: base[k] | v if _are_dicts(v, base.get(k)) else v for k, v in raw.items()}
    given = {key: {} if (found := raw.pop(key, None)) is None else found for key in _PARTS}
    parts = {key: _part(cls, given[key], f"{path.name}: {key}") for key, cls in _PARTS.items()}
    return _part(Recipe, {"name": path.stem} | raw | parts, path.name)


class _Loader(yaml.SafeLoader):
    """A key that stands there twice is an error: YAML's own rule, which the library does not keep."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [k.value for k, _ in node.value if k.tag != "tag:yaml.org,2002:merge"]
        if twice := sorted({k for k in keys if keys.count(k) > 1}):
            raise yaml.constructor.ConstructorError(None, None, f"{', '.join(twice)} twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _are_dicts(*values: object) -> bool:
    return all(isinstance(v, dict) for v in values)


def _read(name: str) -> tuple[Path, dict[str, Any]]:
    path = Path(name) if name.endswith((".yaml", ".yml")) else RECIPES / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in RECIPES.glob("*.yaml")))
        raise ValueError(f"recipe {name!r}: no such file; the built-in recipes are {known}")
    try:
        raw = yaml.load(path.read_text(), _Loader)  # noqa: S506  a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {path.name} is no YAML: {error}") from None
    if not isinstance(raw, dict):
        raise ValueError(f"recipe {path.name}: expected keys and values at the top level")
    return path, raw


def _part(cls: type[T], raw: Mapping[str, Any], where: str) -> T:
    if not isinstance(raw, dict):
        raise ValueError(f"{where}: got {raw!r}, expected keys and values")
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(str(key) for key in raw if key not in known)
    if unknown:
        raise ValueError(f"{where}: unknown key {', '.join(unknown)}; known are {', '.join(known)}")
    for key, value in raw.items():
        default = known[key].default
        if default is not MISSING and not _fits(value, default):
            raise ValueError(f"{where}.{key}={value!r}: expected a {type(default).__name__}{_hint(value)}")
    try:
        return cls(**raw)
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from None


def _hint(value: object) -> str:
    """For 1e-4, a number everywhere else."""
    return "; YAML's numbers need a point: 1.0e-4" if isinstance(value, str) and _is_number(value) else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, float):
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, type(default))
