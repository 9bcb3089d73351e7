"""The warden's own process. Reads `+NAME` and `-NAME`; when the pipe closes it ends what is left. See warden.py.

It imports nothing that takes time, and nothing of this package.
"""

import os
import signal
import sys

GRACE_S = 0.2  # for what was killed to be gone before its folder goes


def main() -> None:
    """Serves until the pipe closes."""
    held: set[str] = set()
    for line in sys.stdin.buffer:
        name = os.fsdecode(line[1:].rstrip(b"\n"))
        (held.add if line[:1] == b"+" else held.discard)(name)
    if held:
        _clear_up(held)


def _clear_up(held: set[str]) -> None:
    import shutil
    import time

    for name in held:
        if name.isdigit():
            try:
                os.killpg(int(name), signal.SIGKILL)
            except OSError:  # it has ended by itself
                continue
    time.sleep(GRACE_S)
    for name in held:
        if not name.isdigit():
            shutil.rmtree(name, ignore_errors=True)


if __name__ == "__main__":
    main()
