"""Writes the red team's kernels as digests, for the trainer: what it must not learn, without the kernels.

python -m benchmarks.redteam.known_hacks
"""

from __future__ import annotations

from benchmarks.redteam.attacks import ATTACKS
from benchmarks.redteam.blind import BLIND
from cudal1_trainer.rl.form import KNOWN_HACKS, form_digest


def digests() -> list[str]:
    """Sorted, each once."""
    return sorted({form_digest(attack.code) for attack in (*ATTACKS, *BLIND)})


def main() -> None:
    KNOWN_HACKS.write_text("\n".join(digests()) + "\n")


if __name__ == "__main__":
    main()
