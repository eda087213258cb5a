#!/usr/bin/env bash
# Run the GPU tests, and the engine's other tests, with this machine's own python3, which has torch
# with CUDA, transformers, pytest (with timeout and xdist), hypothesis and scipy. Nothing is fetched:
# MIZZEN_WHEELS may name a folder of wheels for what that python3 lacks (msgspec, pyzmq, gguf; to serve
# also fastapi, starlette, uvicorn, httptools, pydantic, google-re2, opentelemetry-api); they are
# installed into a temporary folder.
#   tests/gpu/run.sh [kernels|gpu|engine|all] [pytest arguments]
#   tests/gpu/run.sh bench [flags of mizzen bench]
#   tests/gpu/run.sh tensor-parallel tests|times [parts]
# tensor-parallel: on two GPUs; see tests/gpu/tensor_parallel.py, and ``serve`` is one more part of its tests.
# bench: the workloads of docs/benchmarks.md, files in MIZZEN_OUT (out), and all beside peers and goals.
set -euo pipefail
cd "$(dirname "$0")/../.."
what=${1:-all}
shift || true
case $what in
  kernels | gpu | engine | bench | tensor-parallel | all) ;;
  *) echo "$what: no such part; give kernels, gpu, engine, bench, tensor-parallel or all" >&2; exit 2 ;;
esac
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
if [[ -n ${MIZZEN_WHEELS:-} ]]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$MIZZEN_WHEELS"/*.whl
fi
export PYTHONPATH=.:operator:worker:$site OMP_NUM_THREADS=1
python3 - <<'EOF'
import platform

import torch

print(f"Python {platform.python_version()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
print(f"GPU: {torch.cuda.get_device_name() if torch.cuda.is_available() else 'none'}")
EOF
if [[ $what == tensor-parallel ]]; then
  # What no machine may do by default: NVLink multicast can put GPUs that others share out of service.
  export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0} TORCH_SYMM_MEM_DISABLE_MULTICAST=${TORCH_SYMM_MEM_DISABLE_MULTICAST:-1}
  if [[ ${2:-} == serve ]]; then
    exec python3 -m pytest -q -p no:benchmark -x --timeout 240 -m gpu tests/gpu/test_serve_ranks.py
  fi
  exec python3 -m tests.gpu.tensor_parallel "$@"
fi
if [[ $what == bench ]]; then
  out=${MIZZEN_OUT:-out}
  bench=(python3 -m mizzen_worker bench --device cuda "$@")
  "${bench[@]}" decode prefill prefix offline --model llama8b --json "$out/llama8b.json"
  "${bench[@]}" decode offline --model qwen06b --json "$out/qwen06b.json"
  "${bench[@]}" offline --temperature 0.6 --model qwen06b --json "$out/qwen06b-t06.json"
  "${bench[@]}" decode offline --batches 1 --requests 128 --model qwen30b-a3b --json "$out/qwen30b.json"
  exec python3 -m tests.gpu.goals "$out"/{llama8b,qwen06b,qwen06b-t06,qwen30b}.json
fi
kernels=(tests/worker/kernels/gpu tests/worker/layers/gpu tests/worker/attention)
engine=(tests/worker/{attention,cache,kernels,memory,model_executor,sampler,scheduler})
status=0
# Kernels first: what they compute is checked before anything else stands on it. Compiling for other
# GPUs needs none and is left to machines without one.
if [[ $what == kernels || $what == all ]]; then
  python3 -m pytest -q -p no:benchmark -n 12 -k "not compile" "${kernels[@]}" "$@" || status=$?
fi
if [[ $what == kernels ]]; then exit "$status"; fi
if [[ $what != engine ]]; then
  python3 -m pytest -q -p no:benchmark -n 10 --dist loadgroup --timeout 240 -m gpu tests/gpu "${engine[@]}" "$@" || status=$?
fi
if [[ $what != gpu ]]; then
  python3 -m pytest -q -p no:benchmark -n 12 -m "not gpu and not model" "${engine[@]}" "$@" || status=$?
fi
exit "$status"
