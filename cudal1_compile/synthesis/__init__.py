"""Regions without a kernel become entries: rounds of proposals, verdicts and finalists under a budget."""

from cudal1_compile.synthesis.budget import Budget, ProcessBudget
from cudal1_compile.synthesis.outcome import Outcome, Unfinished, Unprofitable, Won
from cudal1_compile.synthesis.progress import Progress, silent
from cudal1_compile.synthesis.rounds import synthesize, synthesize_all

__all__ = [
    "Budget",
    "Unprofitable",
    "Outcome",
    "ProcessBudget",
    "Progress",
    "Unfinished",
    "Won",
    "silent",
    "synthesize",
    "synthesize_all",
]
