#!/usr/bin/env bash
# What replaying a step saves the host: a 1.2 B Llama on two GPUs (examples/h200-llama-two.yaml), tensor-parallel, each kind
# of kernels issued one by one and as a graph; then the same for a pipeline and for data parallelism. Losses must agree.
#   bash tests/gpu/measure_graph.sh OUTPUT_FOLDER [PROFILE]
set -u
OUT=${1:?usage: measure_graph.sh OUTPUT_FOLDER [PROFILE]}
PROFILE=${2:-h200}
mkdir -p "$OUT"
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
whole="--set plan.tensor_parallel=1 --set plan.sequence_parallel=false --set plan.kernels=compiled"
declare -A LAYOUTS=(
  [tp2-compiled]="--set plan.kernels=compiled" [tp2-triton]="--set plan.kernels=triton"
  [pp2-compiled]="$whole --set plan.pipeline_parallel=2" [dp2-compiled]="$whole --set plan.data_parallel=2"
)
for layout in tp2-compiled tp2-triton pp2-compiled dp2-compiled; do
  for graph in false true; do
    name="$layout-graph-$graph"
    echo "== $(date +%H:%M:%S) $name"
    # shellcheck disable=SC2086
    timeout 90 python3 -m windtunnel train examples/h200-llama-two.yaml ${LAYOUTS[$layout]} --set plan.cuda_graph=$graph \
      --set train.steps=16 --output "/tmp/flight/$name" 2>&1 | tail -4
    python3 - "/tmp/flight/$name/steps.jsonl" <<'PYTHON'
import json, statistics, sys
steps = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
times = {kind: [s["step_time_s"] * 1e3 for s in steps[4:] if s["recorded"] is kind] for kind in (False, True)}
print(f"loss {steps[0]['loss']:.4f} to {steps[-1]['loss']:.4f}, ms a step:", *(
    f"{name} median {statistics.median(found):.1f} ({min(found):.1f} to {max(found):.1f})"
    for name, found in (("plain", times[False]), ("recorded", times[True])) if found))
PYTHON
    timeout 60 python3 -m windtunnel compare "/tmp/flight/$name" --profile "$PROFILE" --top 8 2>&1 | tee "$OUT/compare-$name.txt" | head -20
  done
done
tar -C /tmp -czf "$OUT/flights-graph.tar.gz" flight
