"""Golden digests: what is made of 500 regions and of the graphs of 126 modules, and 500 verdicts.

    python -m tests.golden                 all regions and graphs against digests.json
    python -m tests.golden --verdicts      the kernels against verdicts.json, on the host target
    python -m tests.golden --show NAME     the texts behind the digests of one region or graph, to diff two trees
    python -m tests.golden --renew         writes the file anew (with --verdicts that one); the commit says why

Exit status 1 on a difference. A change that only moves or renames modules leaves every digest as it is. What may
be worded anew (words, reasons, a verdict's kind) has columns of its own.
"""

from pathlib import Path

DIGESTS = Path(__file__).parent / "digests.json"
VERDICTS = Path(__file__).parent / "verdicts.json"
