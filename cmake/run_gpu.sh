#!/usr/bin/env bash
# What ./x gpu gathered, run on this machine with its own torch: bash run.sh [test] [sanitize] [bench]; default test.
#   test      every test program; the ops' on the CPU, on the GPU, and there under CUDA graph capture;
#             last line: N passed, N failed, N skipped
#   sanitize  compute-sanitizer's memcheck and racecheck over the ops' tests on the GPU, in as many processes as cores
#   bench     every op against torch's, GB/s and the share of a copy
# PYTHON names the Python that has torch (default python3); RESULTS the folder for logs (default results/ here).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
results=${RESULTS:-$here/results}
torch=$("$python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')
nvidia=$(dirname "$torch")/nvidia
export LD_LIBRARY_PATH=$here/lib:$torch/lib
for part in cu13 cudnn nccl cusparselt nvshmem; do LD_LIBRARY_PATH+=:$nvidia/$part/lib; done
export HOTSWAP_PACKAGES=$here/packages OMP_WAIT_POLICY=passive
# The programs know their packages and Python by the paths that they had where they were built.
if [[ ! -e @BUILD@ ]]; then
  mkdir -p "$(dirname @BUILD@)"
  ln -s "$here" @BUILD@
fi
if [[ ! -e @PYTHON@ ]]; then
  mkdir -p "$(dirname @PYTHON@)"
  printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v "$python")" >@PYTHON@
  chmod +x @PYTHON@
fi
mkdir -p "$results"
cuda=""
compgen -G "$here/packages/*/build/*-cu*" >/dev/null && cuda=1
ops=(activation linear loss mlp norm rotary)  # of these, what has CUDA kernels runs on the GPU too
has_cuda() { compgen -G "$here/packages/$1/build/*-cu*" >/dev/null; }

one() {  # one NAME PROGRAM FILTER: a test program, its outcome kept
  echo "== $1"
  "$2" --gtest_brief=1 --gtest_filter="$3" --gtest_output="xml:$results/$1.xml" || echo "$1: exit status $?" >>"$results/died"
}

run_test() {
  rm -f "$results"/*.xml "$results/died"
  local program name
  for program in "$here"/bin/*_test; do
    name=$(basename "$program" _test)
    one "$name" "$program" "-EveryDevice.*"
    if has_cuda "$name"; then
      HOTSWAP_TEST_DEVICE=cuda one "${name}_cuda" "$program" "-EveryDevice.*:EveryIsa.*"
      HOTSWAP_TEST_DEVICE=cuda HOTSWAP_TEST_GRAPH=1 one "${name}_graph" "$program" "-EveryDevice.*:EveryIsa.*"
    fi
  done
  if [[ -n $cuda ]]; then
    "$python" "$here/test_cuda.py" --packages "$here/packages" --large || echo "test_cuda.py: exit status $?" >>"$results/died"
  fi
  "$python" - "$here" "$results" <<'PY'
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from summary import cases

results, count = Path(sys.argv[2]), dict(passed=0, failed=0, skipped=0)
for file in sorted(results.glob("*.xml")):
    for name, outcome in cases(file):
        count[outcome] += 1
        if outcome != "passed":
            print(f"  {outcome}: {file.stem}: {name}")
died = results / "died"
print(died.read_text() if died.exists() else "", end="")
print("{passed} passed, {failed} failed, {skipped} skipped".format(**count))
sys.exit(died.exists() or count["failed"] > 0 or count["passed"] == 0)
PY
}

# How the names of a package's kernels begin. Only they are instrumented: torch's, which compute what is compared with,
# take most of the time.
kernels_of() {
  case $1 in
    norm) echo _ZN5norms ;;
    loss) echo _ZN4loss ;;
    rotary) echo _ZN6rotary ;;
    *) echo _ZN7kernels ;;
  esac
}

shard() {  # shard TOOL NAME INDEX COUNT
  local log=$results/$1_$2_$3.log filter="-EveryDevice.*:EveryIsa.*" fails=LinearCrossEntropy
  # racecheck itself fails inside cuBLAS in these.
  [[ $1_$2 == racecheck_loss ]] && filter+=":$fails.ForwardAndBackward*:$fails.Dweight*:$fails.PeakMemory*"
  GTEST_SHARD_INDEX=$3 GTEST_TOTAL_SHARDS=$4 HOTSWAP_TEST_DEVICE=cuda timeout "${SANITIZE_SECONDS:-3600}" \
    compute-sanitizer --tool "$1" --kernel-name kernel_substring="$(kernels_of "$2")" --error-exitcode 9 \
    "$here/bin/$2_test" --gtest_brief=1 --gtest_filter="$filter" >"$log" 2>&1 && return
  local code=$?
  # A test that never asks the GPU for anything leaves nothing to judge.
  grep -q "terminated before first instrumented" "$log" && grep -q "PASSED" "$log" && return
  echo "$1 $2 $3: exit status $code, see $log"
  return 1
}

run_sanitize() {
  local tool name index count list=()
  for tool in memcheck racecheck; do
    for name in "${ops[@]}"; do
      has_cuda "$name" || continue
      count=$(HOTSWAP_TEST_DEVICE=cuda "$here/bin/${name}_test" --gtest_list_tests | grep -c '^  ')
      for ((index = 0; index < count; index++)); do list+=("$tool $name $index $count"); done
    done
  done
  export -f shard kernels_of
  export results here
  local code=0
  printf '%s\n' "${list[@]}" | xargs -P "${JOBS:-$(nproc)}" -L 1 bash -c 'shard "$@"' _ || code=1
  echo "compute-sanitizer: ${#list[@]} runs, $(grep -lE 'SUMMARY: 0 ' "$results"/{memcheck,racecheck}_*.log | wc -l) clean, \
$(grep -l "terminated before first instrumented" "$results"/{memcheck,racecheck}_*.log | wc -l) without a GPU call"
  return "$code"
}

run_bench() {
  local program
  for program in "$here"/bin/cuda_bench "$here"/bin/*_bench; do
    [[ $program == */cuda_bench || -z $cuda ]] || continue
    echo "== ${program##*/}"
    "$program"
  done
}

# With CUDA kernels here, a test that finds no GPU fails.
[[ -z $cuda ]] || export HOTSWAP_REQUIRE_CUDA=1
(($#)) || set -- test
failed=0
for verb in "$@"; do
  case $verb in
    test | sanitize | bench) "run_$verb" || failed=1 ;;
    *) echo "wanted test, sanitize or bench; got $verb" >&2; exit 2 ;;
  esac
done
exit "$failed"
