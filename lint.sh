#!/usr/bin/env bash
# ./lint.sh check   reports: ruff, ruff format, mypy --strict, import-linter
# ./lint.sh fix     lets ruff repair what it can, then checks
set -uo pipefail
cd "$(dirname "$0")"

case "${1:-}" in
    fix)
        .venv/bin/ruff check --fix --quiet .
        .venv/bin/ruff format --quiet .
        ;;
    check) ;;
    *)
        echo "usage: ./lint.sh fix|check" >&2
        exit 2
        ;;
esac

failed=0
.venv/bin/ruff check . || failed=1
.venv/bin/ruff format --check . || failed=1
.venv/bin/mypy || failed=1
.venv/bin/lint-imports || failed=1
exit "$failed"
