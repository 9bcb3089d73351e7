"""All that the golden digests take from the project: the one place to change where modules are moved."""

# ruff: noqa: F401  (what is imported here is for the modules beside this one)
from __future__ import annotations

from benchmarks.redteam.mutate import mutants
from benchmarks.redteam.subjects import HAND_WRITTEN, retype, subjects
from benchmarks.redteam.suite import attack_suite
from benchmarks.zoo import ZOO
from benchmarks.zoo import build as build_zoo
from benchmarks.zoo_cnn import CNNS
from benchmarks.zoo_modules import MODULES
from cudal1_compile.codegen.stages.schedule import print_schedule
from cudal1_compile.codegen.templates import variants, write_reply
from cudal1_compile.generate.instructions import instruction_block
from cudal1_compile.generate.model_files import MODEL_DIR
from cudal1_compile.generate.prompt import build_prompt
from cudal1_compile.generate.tokens import Codec, load_codec
from cudal1_compile.inductor import graph_key as graph_key_module
from cudal1_compile.inductor.collect import SeenGraph, collect
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.verdict import Accepted, Rejected, Verdict
from cudal1_compile.kernel.candidate import Candidate, Exemplar, parse_candidate
from cudal1_compile.runtime.launch_plan import plan as plan_launches
from cudal1_compile.runtime.source import HEADER_DIR, PARTS, assemble, header_text
from cudal1_compile.runtime.target import HOST, Target
from cudal1_fx_passes.program.canonical import canonicalise, fingerprint, shape_agnostic_fingerprint
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_fx_passes.program.to_aten import to_aten
from cudal1_trainer.tasks import FAMILIES, generate_task
from cudal1_trainer.tasks.structures import read_structures, resize
from cudal1_trainer.tasks.variants import WIDE_SEED, make_task
