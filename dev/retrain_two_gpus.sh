#!/usr/bin/env bash
# Teaches the bundled model further on one GPU of a machine and measures what came of it on two, unattended:
#     setsid bash dev/retrain_two_gpus.sh CHUNKS OUT [RECIPE] &
# CHUNKS: made ahead by `python -m cudal1_trainer.data.chunks` with the same recipe and data (more may come while it runs).
# OUT/model is whole, with its checksums, as soon as OUT/model/SHA256SUMS is there: bring it home before anything else.
# Then OUT/fresh (replies only), OUT/generator and OUT/families grow. No step ends another; OUT/*.log tell.
set -uo pipefail
cd "$(dirname "$0")/.."

chunks=$1 out=$2 recipe=${3:-further} data=${DATA:-trainer/data} python=${PYTHON:-python3}
export PYTHONPATH=$PWD:$PWD/fx_passes:$PWD/cache:$PWD/trainer${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1
mkdir -p "$out"

step() { # step GPU NAME COMMAND...: output in OUT/NAME.log
    local gpu=$1 name=$2
    shift 2
    echo "$(date +%T) $name begins" >> "$out/progress.log"
    CUDA_VISIBLE_DEVICES=$gpu "$@" > "$out/$name.log" 2>&1 < /dev/null
    echo "$(date +%T) $name ended with $?" >> "$out/progress.log"
}

# killed, the same command goes on from its last checkpoint
step 0 sft "$python" -m cudal1_trainer.sft.supervised --recipe "$recipe" --data "$data" --chunks "$chunks" \
    --model cudal1_compile/generate/model --out "$out/sft"
[ -f "$out/sft/report.json" ] || exit 1
rm -rf "$out/model"
cp -r "$out/sft/model" "$out/model"
(cd "$out/model" && sha256sum ./*.safetensors ./*.json > SHA256SUMS.part && mv SHA256SUMS.part SHA256SUMS)

{
    step 0 fresh "$python" -m benchmarks.fresh --model "$out/model" --out "$out/fresh" --sample-only
    step 0 generator "$python" -m benchmarks.generator --model "$out/model" --data "$data" \
        --out "$out/generator" --seconds "${GENERATOR_S:-200}"
} &
step 1 families "$python" -m benchmarks.families --model "$out/model" --data "$data" \
    --out "$out/families" --seconds "${FAMILIES_S:-210}"
wait
