"""One table of several results of the ablation: the same first model, other seeds, on machines of their own.

    python -m benchmarks.ablation_pool RESULT... --out FILE

Every run was measured beside Inductor, so speedups of several machines stand side by side; figures are means over
seeds, programs those that all results have, intervals as in benchmarks/ablation_rows.py. detail.sources says where
each seed was run and by which recipe: what arms are held against each other is of one seed, and so of one of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ablation_rows import summarise
from benchmarks.result_file import command, commit
from benchmarks.trainer_ablation import STAGES

SOURCE = ("device", "versions", "command", "commit", "n")


def pool(results: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Rows of the programs that all results have, with the runs of all. Raises ValueError for a run in two."""
    runs_of = [{row["fingerprint"]: row["runs"] for row in result} for result in results]
    pooled = []
    for row in results[0]:
        found = [runs[row["fingerprint"]] for runs in runs_of if row["fingerprint"] in runs]
        if len({name for runs in found for name in runs}) < sum(map(len, found)):
            raise ValueError(f"{sorted(row['runs'])}: some are in two results; give results of different seeds")
        if len(found) == len(results):
            pooled.append(dict(row) | {"runs": {name: run for runs in found for name, run in runs.items()}})
    return pooled


def pool_results(results: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The body of a results file, from others with their names. Raises ValueError where first models differ."""
    details = [body["detail"] for _, body in results]
    if len(models := {detail["model"] for detail in details}) > 1:
        given = ", ".join(name for name, _ in results)
        raise ValueError(f"{len(models)} first models in {given}: give results of one model")
    rows = pool([detail["programs"] for detail in details])
    names = sorted({name for row in rows for name in row["runs"]})
    stages = {s: [name for name in names if name.rpartition(".")[0] == s] for s in STAGES}
    summary, intervals, detail = summarise(rows, {s: runs for s, runs in stages.items() if runs})
    del detail["programs"]  # they are in the sources
    detail |= {"model": details[0]["model"], "runs": {k: v for d in details for k, v in d["runs"].items()}}
    detail["sources"] = [
        {"file": name, "seeds": body["detail"]["seeds"], "recipe": body["detail"]["recipe"]}
        | {key: body[key] for key in SOURCE}
        for name, body in results
    ]
    return {
        "summary": summary,
        "device": ", ".join(body["device"] for _, body in results),
        "command": command(),
        "commit": commit(),
        "n": len(rows),
        "intervals": intervals,
        "detail": detail,
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="One table of several results of the ablation.")
    parser.add_argument(
        "results", type=Path, nargs="+", metavar="RESULT", help="of different seeds, one first model"
    )
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    a = parser.parse_args(argv)
    try:
        body = pool_results([(path.name, json.loads(path.read_text())) for path in a.results])
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"{error!r}: give results of benchmarks.trainer_ablation") from None
    rounded = json.loads(json.dumps(body), parse_float=lambda digits: round(float(digits), 5))
    a.out.write_text(json.dumps(rounded, indent=1) + "\n")
    for row in rounded["summary"]["stages"]:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
