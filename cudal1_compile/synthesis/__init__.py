"""Regions without a kernel become entries: rounds of proposals, verdicts and finalists under a budget."""
