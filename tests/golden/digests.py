"""From a region or a graph to the texts that must stay, and to their digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from functools import cache
from typing import Any
from unittest import mock

import torch

from . import project
from .subjects import Subject, collected, graphs, regions

REPLIES = 6  # of a region, spread over its templates
BUDGET_TOKENS = 2048  # at which some regions have room for one exemplar or none
H100 = project.Target("cuda", "NVIDIA H100 80GB HBM3", "sm_90a", 132, 227 * 1024, 50 * 1024 * 1024)
FACTS = {"cuda": H100, "host": project.HOST}
REGION_COLUMNS = (
    *("drawn", "canonical", "names", "prompt", "exemplars", "aten", "schedules", "words", "plans"),
    *FACTS,
)
GRAPH_COLUMNS = ("key", "graphs", "regions", "anchors", "outside", "reasons")
Texts = dict[str, str]  # by column, in order


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def region_texts(drawn: project.Program) -> Texts:
    """Columns: of the region, of all its replies together, then the code of each.

    words: analysis and design, which may be worded anew without another kernel.
    """
    program = project.canonicalise(drawn)
    text = project.print_program(program)
    schedules = project.variants(program)
    chosen = schedules[:: -(-len(schedules) // REPLIES)] if schedules else []
    replies = [r for s in chosen if (r := project.write_reply(program, s)) is not None]
    shown = [project.Exemplar(r.code, 0.94 + 0.26 * i) for i, r in enumerate(replies[:2])]
    candidates = [project.parse_candidate(r.code, program) for r in replies]
    return {
        "drawn": project.print_program(drawn),
        "canonical": text,
        "names": f"{project.fingerprint(drawn)} {project.shape_agnostic_fingerprint(drawn)}",
        "prompt": _prompt(text, []),
        "exemplars": _prompt(text, shown),
        "aten": "" if program.is_symbolic else project.to_aten(program).code,
        "schedules": _joined(map(project.print_schedule, schedules)),
        "words": _joined(f"{r.analysis}\n{r.design}" for r in replies),
        "plans": _joined(json.dumps(astuple(project.plan_launches(program, c))) for c in candidates),
        **{kind: _joined(_source(program, c, kind) for c in candidates) for kind in FACTS},
        **{f"code {i}": r.code for i, r in enumerate(replies)},
    }


def _joined(texts: Iterable[str]) -> str:
    return "\n\0\n".join(texts)


def _prompt(text: str, exemplars: list[project.Exemplar]) -> str:
    """For both targets, counted in the bundled model's tokens."""
    count = _codec().count
    return "".join(project.build_prompt(t.facts(), text, exemplars, BUDGET_TOKENS, count) for t in FACTS.values())


@cache
def _codec() -> project.Codec:
    return project.load_codec(str(project.MODEL_DIR / "tokenizer.json"))


def _source(program: project.Program, candidate: project.Candidate, kind: str) -> str:
    """The header's files by their names: each has a digest of its own."""
    source = project.assemble(program, candidate, FACTS[kind])
    for name in HEADERS:
        source = source.replace(project.header_text(name), f"<{name}>")
    return source


HEADERS = ("cudal1.cuh", *project.PARTS)


def other_texts() -> Texts:
    """What is not of one region."""
    headers = {path.name: path.read_text() for path in sorted(project.HEADER_DIR.iterdir()) if path.is_file()}
    keys = {f"key of the {kind} target": target.key for kind, target in FACTS.items()}
    return headers | keys | {"instructions": project.instruction_block()}


BUILD = f"{torch.__version__.partition('+')[0]}+cpu"  # of this torch: which one is installed is of no account


def graph_texts(subject: Subject) -> Texts:
    """Columns, each over all graphs of the module. reasons: may be worded anew; graphs: what torch made."""
    found: dict[str, list[str]] = {name: [] for name in GRAPH_COLUMNS}
    same = mock.patch.object(torch, "__version__", torch.torch_version.TorchVersion(BUILD))
    with same, mock.patch.object(project.graph_key_module, "code_version", str):
        for key, graphs in collected(subject):
            found["key"].append(key)
            for graph in graphs:
                _add(found, graph)
    return {name: "\n".join(lines) for name, lines in found.items()}


def _add(found: Mapping[str, list[str]], graph: project.SeenGraph) -> None:
    partition = graph.partition
    found["graphs"].append(f"{graph.phase} {graph.is_channels_last}\n{graph.code}")
    found["regions"] += [f"{r.fingerprint} {r.nodes}" for r in partition.regions]
    found["anchors"] += [repr(a.fingerprints) for a in partition.anchors]
    found["outside"] += [str(name) for name in partition.refused]
    found["reasons"] += [f"{name}: {why}" for name, why in partition.refused.items()]


@dataclass(frozen=True)
class Kind:
    """Subjects that are digested in one way. further: what columns beyond the fixed ones hold."""

    columns: tuple[str, ...]
    further: str
    make: Callable[[], Mapping[str, Any]]
    texts: Callable[[Any], Texts]


KINDS = {
    "regions": Kind(REGION_COLUMNS, "code", regions, lambda make: region_texts(make())),
    "graphs": Kind(GRAPH_COLUMNS, "column", graphs, graph_texts),
    "others": Kind(("text",), "column", other_texts, lambda text: {"text": text}),
}


@cache
def _subjects(kind: str) -> Mapping[str, Any]:
    return KINDS[kind].make()


def texts_of(kind: str, name: str) -> Texts:
    try:
        return KINDS[kind].texts(_subjects(kind)[name])
    except Exception as error:
        error.add_note(f"in the golden digests of {kind}: {name}")
        raise


def row_of(kind: str, name: str) -> str:
    """A digest a column."""
    return " ".join(map(digest, texts_of(kind, name).values()))
