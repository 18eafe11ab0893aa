#!/usr/bin/env bash
# Two GPUs, four layouts of a 1.2 B Llama (examples/h200-llama-two.yaml): trained, and compared with the forecast.
#   bash tests/gpu/measure_two.sh OUTPUT_FOLDER [PROFILE]
set -u
OUT=${1:?usage: measure_two.sh OUTPUT_FOLDER [PROFILE]}
PROFILE=${2:-h200}
mkdir -p "$OUT"
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
whole="--set plan.tensor_parallel=1 --set plan.sequence_parallel=false"
declare -A LAYOUTS=(
  [tp2-sp]="" [pp2]="$whole --set plan.pipeline_parallel=2" [dp2]="$whole --set plan.data_parallel=2"
  [tp2-sp-compiled]="--set plan.kernels=compiled" [tp2-sp-triton]="--set plan.kernels=triton"
)
for layout in tp2-sp pp2 dp2 tp2-sp-compiled tp2-sp-triton; do
  echo "== $(date +%H:%M:%S) $layout"
  # shellcheck disable=SC2086
  timeout 80 python3 -m windtunnel train examples/h200-llama-two.yaml ${LAYOUTS[$layout]} --output "/tmp/flight/$layout" 2>&1 | tail -4
  tail -1 "/tmp/flight/$layout/steps.jsonl"
  timeout 60 python3 -m windtunnel compare "/tmp/flight/$layout" --profile "$PROFILE" --top 8 2>&1 | tee "$OUT/compare-$layout.txt" | head -45
done
tar -C /tmp -czf "$OUT/flights-two.tar.gz" flight
