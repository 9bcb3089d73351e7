# For a GPU machine that has torch, but neither this package nor a network. Source it; what follows runs in the tree.
#     source bare_machine.sh TREE WHEELS COMMIT
# TREE: of `git archive COMMIT | xz`. WHEELS: a folder with what torch does not bring, on 2026-11-29: click,
# click-default-group, platformdirs, sqlite-fts4, sqlite-utils, tenacity (pip download --no-deps).
# Writes /tmp/tree and /tmp/site; the package's entry points are there as if it were installed.

mkdir -p /tmp/tree /tmp/site/cudal1-0.1.0.dist-info
python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target /tmp/site "$2"/*.whl
tar xJf "$1" -C /tmp/tree
python3 - <<'P'
import tomllib
from pathlib import Path

project = tomllib.loads(Path("/tmp/tree/pyproject.toml").read_text())["project"]
found = project["entry-points"] | {"console_scripts": project["scripts"]}
lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in found.items()]
folder = Path("/tmp/site/cudal1-0.1.0.dist-info")
(folder / "entry_points.txt").write_text("\n".join(lines))
(folder / "METADATA").write_text("Metadata-Version: 2.1\nName: cudal1\nVersion: 0.1.0\n")
P
export CUDAL1_COMMIT=$3 PYTHONPATH=/tmp/site:/tmp/tree:/tmp/tree/fx_passes:/tmp/tree/cache:/tmp/tree/trainer
unset PYTHONDONTWRITEBYTECODE # without compiled sources each process compiles them anew
cd /tmp/tree && python3 -m compileall -q -j 0 cudal1_compile fx_passes cache trainer benchmarks tests > /dev/null
