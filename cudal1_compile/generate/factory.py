"""From the option `generator=` to a generator.

    bundled                                   the model that comes with the package, behind the schedule prior
    bundled:PATH                              another one of its form, behind the schedule prior too
    path/to/checkpoint                        a directory: the fast sampler where it fits, else transformers
    http://host:8000/v1#model=NAME&key=VAR    a server; VAR names the environment variable of its key
    vllm:path-or-name                         vLLM in this process (extra `vllm`)

Anything that is not text is taken to be a generator already.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urldefrag

from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.generate.model_files import MODEL_DIR, check_model_dir, model_digest
from cudal1_compile.generate.protocol import Generator

BUNDLED = "bundled:"


def make_generator(wanted: str | Generator, device: str = "cpu") -> Generator:
    """Raises GeneratorError (ModelMissing for a directory without a model) or ValueError for an unknown text."""
    if not isinstance(wanted, str):
        return wanted
    if wanted == "bundled" or wanted.startswith(BUNDLED):
        from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator

        return BundledGenerator(BundledConfig(_bundled(wanted), device, prior_first=True))
    if wanted.startswith(("http://", "https://")):
        return _make_client(wanted)
    if wanted.startswith("vllm:"):
        from cudal1_compile.generate.vllm_local import VllmConfig, VllmGenerator

        return VllmGenerator(VllmConfig(wanted.removeprefix("vllm:")))
    directory = Path(wanted).expanduser()
    if directory.is_dir():
        return _make_local(directory, device)
    raise ValueError(
        f"generator={wanted!r}: expected 'bundled', the directory of a checkpoint, bundled:PATH, "
        "http://host:port/v1#model=NAME, or vllm:PATH"
    )


def is_light(wanted: str | Generator) -> bool:
    """Whether it is the bundled model or one of its form: made in a moment, and in any thread."""
    return isinstance(wanted, str) and own_directory(wanted) is not None


def stored_name(wanted: str | Generator) -> str | None:
    """The generator's name as attempts and entries store it; None where only loading the model would tell."""
    if not isinstance(wanted, str):
        return wanted.name
    directory = own_directory(wanted)
    try:
        return f"bundled:{model_digest(check_model_dir(directory))[:12]}" if directory is not None else None
    except GeneratorError:  # making it says so, once it is needed
        return None


def own_directory(wanted: str) -> Path | None:
    """Of a model in the bundled form; None for every other generator."""
    if wanted == "bundled" or wanted.startswith(BUNDLED):
        return _bundled(wanted)
    directory = Path(wanted).expanduser()
    try:
        return directory if directory.is_dir() and is_own(directory) else None
    except GeneratorError:  # making it says so, once it is needed
        return None


def _bundled(wanted: str) -> Path:
    return MODEL_DIR if wanted == "bundled" else Path(wanted.removeprefix(BUNDLED)).expanduser()


def _make_client(wanted: str) -> Generator:
    from cudal1_compile.generate.openai_client import OpenAIConfig, OpenAIGenerator

    url, fragment = urldefrag(wanted)
    fields = {key: values[-1] for key, values in parse_qs(fragment).items()}
    unknown = sorted(set(fields) - {"model", "key"})
    if "model" not in fields or unknown:
        raise ValueError(f"generator={wanted!r}: expected URL#model=NAME or URL#model=NAME&key=VARIABLE")
    return OpenAIGenerator(OpenAIConfig(url, fields["model"], fields.get("key")))


def _make_local(directory: Path, device: str) -> Generator:
    if is_own(directory):
        from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator

        return BundledGenerator(BundledConfig(directory, device))
    from cudal1_compile.generate.transformers_local import TransformersConfig, TransformersGenerator

    return TransformersGenerator(TransformersConfig(directory, device))


def is_own(directory: Path) -> bool:
    """Whether this project's trainer wrote the checkpoint: a llama whose tokenizer has our special tokens."""
    from cudal1_compile.generate.tokens import SPECIAL_TOKENS

    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
        special = {t["content"]: t["id"] for t in tokenizer.get("added_tokens", [])}
        kind = config.get("model_type")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        if not (directory / "config.json").is_file():
            raise GeneratorError(f"{directory} holds no config.json: expected a checkpoint ({error})") from None
        return False
    return kind == "llama" and [special.get(t) for t in SPECIAL_TOKENS] == [0, 1, 2, 3]
