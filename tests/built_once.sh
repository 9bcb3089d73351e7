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
# linking one object takes less than looking for what was linked
[ -n "$output" ] && [ ${#sources[@]} -gt 0 ] && [[ ${sources[0]} != *.o ]] || exec "$compiler" "$@"

found=$(sha256sum - "${sources[@]}" <<<"$compiler ${words[*]@Q}")
kept=$folder/
while read -r hash _; do kept+=${hash:0:32}; done <<<"$found"
# what takes seconds, one builds and the others wait for: headers compiled ahead, programs of several sources
if [[ ${#sources[@]} -gt 1 || " ${words[*]} " = *" c++-header "* ]] && command -v flock >/dev/null; then
    exec 9>"$kept.lock" && flock 9
fi
[ -f "$kept" ] && exec cp "$kept" "$output"
"$compiler" "$@" || exit
cp "$output" "$kept.$$" 2>/dev/null && exec mv "$kept.$$" "$kept" 2>/dev/null
exit 0
