"""All that the golden digests take from the project: the one place to change where modules are moved."""

# ruff: noqa: F401  (what is imported here is for the modules beside this one)
from __future__ import annotations

from benchmarks.zoo import ZOO
from benchmarks.zoo import build as build_zoo
from benchmarks.zoo_cnn import CNNS
from benchmarks.zoo_modules import MODULES
from cudal1_compile import graph_key as graph_key_module
from cudal1_compile.candidate import Candidate, parse_candidate
from cudal1_compile.collect import SeenGraph, collect
from cudal1_compile.generate.bundled import MODEL_DIR
from cudal1_compile.generate.instructions import instruction_block
from cudal1_compile.generate.prompt import Exemplar, build_prompt
from cudal1_compile.generate.tokens import Codec, load_codec
from cudal1_compile.judge.audit.suite import suite
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.verdict import Accepted, Rejected, Verdict
from cudal1_compile.runtime.plan import plan as plan_launches
from cudal1_compile.runtime.source import HEADER_DIR, PARTS, assemble, header_text
from cudal1_compile.runtime.target import HOST, Target
from cudal1_fx_passes.canonical import canonicalise, fingerprint, relative
from cudal1_fx_passes.program import Program
from cudal1_fx_passes.text import parse_program, print_program
from cudal1_fx_passes.to_aten import to_aten
from cudal1_trainer.architectures import make_model
from cudal1_trainer.audit.corpus import HAND_WRITTEN, retype, subjects
from cudal1_trainer.audit.mutate import mutants
from cudal1_trainer.hard_models import make_hard_model
from cudal1_trainer.image_models import make_image_model
from cudal1_trainer.place_models import make_place_model
from cudal1_trainer.product_models import make_product_model
from cudal1_trainer.published import make_published
from cudal1_trainer.structures import read_structures, resize
from cudal1_trainer.tasks import FAMILIES, generate_task
from cudal1_trainer.teachers import variants, write_reply
from cudal1_trainer.variants import WIDE_SEED, make_task, print_schedule
from cudal1_trainer.written import modules as written_modules
