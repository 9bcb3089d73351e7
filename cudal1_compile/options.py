"""What a user may set: the backend's own options, and Inductor's, which pass through.

    torch.compile(model, backend="cudal1", options={"on_miss": "background", "budget_s": 60})

Own options are checked here, once, into a frozen Options; a name that is neither ours nor Inductor's is an
OptionError with the valid ones. torch.compile validates nothing for custom backends, so the error comes at the
first call: InvalidOption is at once a ValueError and one of the few errors that Dynamo hands on unwrapped.
This module reads no environment (config.py does) and imports Inductor only to know its option names.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from sys import float_info
from typing import Any, Literal, get_args, get_origin

from torch._dynamo.exc import ShortenTraceback

from cudal1_compile.errors import OptionError
from cudal1_compile.generate.protocol import Generator
from cudal1_compile.judge.verdict import NumericsLabel as NumericsLabel

TargetChoice = Literal["auto", "host", "cuda"]
OnMiss = Literal["synthesize", "background", "fallback"]
Capture = Literal["auto", False]

DEFAULT_GRAPH_BUDGET_S = 20.0
DEFAULT_PROCESS_BUDGET_S = 120.0


class InvalidOption(OptionError, ShortenTraceback):
    """An OptionError that reaches the caller of the compiled function as it is."""

    def __init__(self, message: str) -> None:
        ShortenTraceback.__init__(self, message, first_useful_frame=None)


@dataclass(frozen=True)
class Options:
    """The backend's settings; `inductor` is what goes to Inductor's config as it is."""

    target: TargetChoice = "auto"  # auto: kernels for CUDA tensors, plain Inductor for CPU tensors
    on_miss: OnMiss = "synthesize"
    budget_s: float = DEFAULT_GRAPH_BUDGET_S  # seconds of synthesis that one graph may wait for
    process_budget_s: float = DEFAULT_PROCESS_BUDGET_S  # seconds of synthesis over all graphs of this process
    generator: str | Generator = "bundled"  # a name, a checkpoint's path, a server's URL, or an object
    cache_dir: Path | None = None  # None: CUDAL1_CACHE_DIR or the user's cache directory
    shadow: float = 0.0  # share of the calls whose kernels are compared with what they stand for (shadow.py)
    # the widest label that a kernel may carry, in the order of `NumericsLabel`; "exact": judge/oracle/numerics.py
    numerics: NumericsLabel = "f32_split"
    # whether convolutions and matrix products may become kernels, with what follows them; None: on a GPU
    products: bool | None = None
    # whether an inference may be recorded as a CUDA graph in default mode, where that is faster (captured.py)
    capture: Capture = "auto"
    inductor: Mapping[str, Any] = field(default_factory=dict)

    def has_products(self, target_kind: str) -> bool:
        """On the host target none wins by the declared cost."""
        return target_kind == "cuda" if self.products is None else self.products


OWN_NAMES = tuple(f.name for f in fields(Options) if f.name != "inductor")
_CHOICES: dict[str, tuple[str, ...]] = {
    "target": get_args(TargetChoice),
    "on_miss": get_args(OnMiss),
    "numerics": get_args(NumericsLabel),
}


def parse_options(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    """Checks what torch.compile handed over; a mode becomes the Inductor options that it stands for.

    Raises InvalidOption (a ValueError) that names what is valid.
    """
    own: dict[str, Any] = {}
    inductor = _mode_options(mode)
    known = _inductor_names()
    if not isinstance(options, Mapping | None):
        raise InvalidOption(f"options={options!r}: expected a dict of names and values")
    for name, value in (options or {}).items():
        if not isinstance(name, str):
            raise InvalidOption(f"option {name!r}: expected a name, a str")
        plain = name.replace("-", "_")
        if plain in OWN_NAMES:
            own[plain] = _checked(plain, value)
        elif plain in known:
            inductor[plain] = _checked_inductor(name, plain, value)
        else:
            raise InvalidOption(_unknown(name, known))
    return Options(**own, inductor=inductor)


def allows(widest: str, label: str) -> bool:
    """Whether a kernel of this numerics label may run where `widest` is the widest allowed."""
    order = get_args(NumericsLabel)
    return label in order and order.index(label) <= order.index(widest)


def _checked(name: str, value: Any) -> Any:
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise InvalidOption(f"option {name}={value!r}: expected one of {', '.join(_CHOICES[name])}")
        return value
    if name in ("budget_s", "process_budget_s"):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= float_info.max:
            raise InvalidOption(f"option {name}={value!r}: expected seconds, a number from 0")
        return float(value)
    if name == "shadow":
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise InvalidOption(f"option shadow={value!r}: expected the share of calls to check, from 0 to 1")
        return float(value)
    if name == "products":
        if value is not None and not isinstance(value, bool):
            raise InvalidOption(f"option products={value!r}: expected True or False, or None: True on a GPU")
        return value
    if name == "capture":
        if value is not False and value != "auto":
            raise InvalidOption(f"option capture={value!r}: expected 'auto' or False")
        return value
    if name == "cache_dir":
        if value is not None and (not isinstance(value, str | Path) or value == ""):
            raise InvalidOption(f"option cache_dir={value!r}: expected a path, or None for CUDAL1_CACHE_DIR")
        return None if value is None else Path(value).expanduser()
    assert name == "generator"
    if value == "" or not (isinstance(value, str) or _is_generator(value)):
        raise InvalidOption(
            f"option generator={value!r}: expected 'bundled', a checkpoint's path, a server's URL, "
            "or an object with name, budget_tokens and propose(prompts, n, seed)"
        )
    return value


def _is_generator(value: object) -> bool:
    return all(hasattr(value, name) for name in ("name", "budget_tokens")) and callable(
        getattr(value, "propose", None)
    )


def _checked_inductor(given: str, name: str, value: Any) -> Any:
    """As torch.compile checks the options of backend="inductor"."""
    from torch._inductor import config

    kind: Any = config.get_type(name)  # type: ignore[attr-defined]
    if get_origin(kind) is None and not isinstance(value, kind):
        raise InvalidOption(f"option {given}={value!r}: expected {kind.__name__}, it is Inductor's")
    return value


def _mode_options(mode: str | None) -> dict[str, Any]:
    from torch._inductor import list_mode_options

    if mode is None or mode == "default":
        return {}
    modes = list_mode_options()
    if mode not in modes:
        raise InvalidOption(f"mode={mode!r}: expected one of {', '.join(sorted(modes))}")
    return dict(modes[mode])


def _inductor_names() -> frozenset[str]:
    from torch._inductor import list_options

    return frozenset(list_options())


def _unknown(name: str, known: frozenset[str]) -> str:
    near = difflib.get_close_matches(name, [*OWN_NAMES, *known], n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return (
        f"unknown option {name!r}.{hint} Options of cudal1: {', '.join(OWN_NAMES)}; "
        "Inductor's own are passed through, torch._inductor.list_options() lists them"
    )
