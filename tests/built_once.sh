#!/usr/bin/env bash
# The C++ compiler of one run of the tests: what was built in it from the same files with the same flags is copied.
#   built_once.sh COMPILER FOLDER ARGUMENT...
# Kept are successes only. Where a file lies makes no difference; what sources include does not change during a run.
set -u
compiler=$1 folder=$2
shift 2

output="" before="" words=() sources=()
for word in "$@"; do
    if [ "$before" = -o ]; then
        output=$word
    elif [[ $word = -* || ! -f $word ]]; then
        words+=("$word")
    elif [ "$before" = -include ]; then
        words+=("${word#"${word%/*/*}"}") # a precompiled header; its name or its folder's tells what is in it
    else
        words+=("${word##*/}")
        sources+=("$word")
    fi
    before=$word
done
[ -n "$output" ] && [ ${#sources[@]} -gt 0 ] || exec "$compiler" "$@"

key=$({ printf '%s\0' "$compiler" "${words[@]}"; cat "${sources[@]}"; } | sha256sum)
kept=$folder/${key%% *}
[ -f "$kept" ] && exec cp "$kept" "$output"
"$compiler" "$@" || exit
cp "$output" "$kept.$$" 2>/dev/null && mv "$kept.$$" "$kept" 2>/dev/null
exit 0
