#!/usr/bin/env bash
# Everything that needs one GPU, once: tests, a measured profile, and two models trained with eager, compiled and fused kernels.
#   bash tests/gpu/measure.sh OUTPUT_FOLDER
set -u
OUT=${1:?usage: measure.sh OUTPUT_FOLDER}
mkdir -p "$OUT"
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
stamp() { echo "== $(date +%H:%M:%S) $*"; }
for model in large small; do
  for kernels in eager compiled triton; do
    stamp "$model $kernels"
    timeout 55 python3 -m windtunnel train "examples/h200-llama-$model.yaml" --set "plan.kernels=$kernels" --output "/tmp/flight/$model-$kernels" 2>&1 | tail -3
    tail -1 "/tmp/flight/$model-$kernels/steps.jsonl"
  done
done
stamp tests
timeout 120 python3 -m pytest tests/gpu/test_one_gpu.py -m gpu -q -s --tb=short --timeout 200 -p no:cacheprovider 2>&1 | tail -90 | tee "$OUT/tests.txt"
[ "${SKIP_PROFILE:-}" ] || stamp profile
[ "${SKIP_PROFILE:-}" ] || timeout 190 python3 -m windtunnel calibrate --device cuda --base h200-published --output "$OUT/h200-measured.yaml" 2>&1 | tail -12
stamp forecasts
for model in large small; do
  python3 -m windtunnel forecast "examples/h200-llama-$model.yaml" --set "cluster.profile=$OUT/h200-measured.yaml" --json > "$OUT/forecast-$model.json"
  python3 -c "import json;d=json.load(open('$OUT/forecast-$model.json'));print('$model', d['step_time_s'], d['step_time_interval_s'], d['memory']['peak_allocated_gib'])"
done
tar -C /tmp -czf "$OUT/flights.tar.gz" flight
stamp done
