"""The judge: candidates in, verdicts out, through judge.py alone.

static/ (by the text) -> bench/ (on a GPU or the host: builds, worker processes)
  each candidate: checks/ (cases, guarded memory) with inputs/ and the oracle/ -> timing/
  sandbox/: processes that can be killed, what they may not do, the device's lock
"""
