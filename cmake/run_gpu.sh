#!/usr/bin/env bash
# What ./x gpu gathered, run on this machine with its own torch: bash run.sh [test] [second] [sanitize] [bench]; default test.
#   test      every test program; the ops' on the CPU, on the GPU, and there under CUDA graph capture; where there are
#             two GPUs, what `second` does too; last line: N passed, N failed, N skipped
#   second    the tests of a GPU on the second one, while the first is the current one
#   sanitize  compute-sanitizer's memcheck and racecheck over the ops' tests on the GPU, in as many processes as cores
#   bench     every op against torch's, GB/s and the share of a copy
# PYTHON names the Python that has torch (default python3; tests that compare with transformers are skipped where it has
# none); RESULTS the folder for logs (default results/ here); FILTER is gtest's, of the tests that run.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$(command -v "${PYTHON:-python3}")
results=${RESULTS:-$here/results}
[[ -d $here/packages ]] || tar -C "$here" -xJf "$here/packed.tar.xz"
torch=$("$python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')
nvidia=$(dirname "$torch")/nvidia
export LD_LIBRARY_PATH=$here/lib:$torch/lib
for part in cu13 cudnn nccl cusparselt nvshmem; do LD_LIBRARY_PATH+=:$nvidia/$part/lib; done
export HOTSWAP_PACKAGES=$here/packages HOTSWAP_TEST_SOURCE=$here/source HOTSWAP_TEST_PYTHON=$python OMP_WAIT_POLICY=passive
mkdir -p "$results"
cuda=""
declare -A kernels_of fails_racecheck  # of each package with CUDA kernels, as cmake/gather_gpu.py says
while read -r name namespaces fails; do
  cuda=1 kernels_of[$name]=$namespaces fails_racecheck[$name]=$fails
done <"$here/cuda_packages"

one() {  # one NAME PROGRAM LEFT_OUT: a test program, its outcome kept
  echo "== $1"
  "$2" --gtest_brief=1 --gtest_filter="${FILTER:-}-$3" --gtest_output="xml:$results/$1.xml" || echo "$1: exit status $?" >>"$results/died"
}

ops_on() {  # ops_on DEVICE: the packages' tests there
  local name program
  for name in "${!kernels_of[@]}"; do
    program=$here/bin/${name}_test
    HOTSWAP_TEST_DEVICE=$1 one "${name}_${1/:/}" "$program" "EveryDevice.*:EveryIsa.*"
    HOTSWAP_TEST_DEVICE=$1 HOTSWAP_TEST_GRAPH=1 one "${name}_${1/:/}_graph" "$program" "EveryDevice.*:EveryIsa.*"
  done
}

on_the_second() {
  ops_on cuda:1
  HOTSWAP_TEST_DEVICE=cuda:1 FILTER=${FILTER:-*OnGpu*} one generation_cuda1 "$here/bin/generation_test" ""
}

test_cuda() {  # test_cuda OPTION...: the ops through Python
  "$python" "$here/source/kernels/common/tests/test_cuda.py" --packages "$here/packages" "$@" || echo "test_cuda.py: exit status $?" >>"$results/died"
}

gpus() { "$python" -c 'import torch; print(torch.cuda.device_count())'; }

run_second() {
  if [[ -z $cuda || $(gpus) -lt 2 ]]; then
    echo "expected two GPUs and packages with CUDA kernels; got $(gpus) GPUs" >&2
    return 1
  fi
  rm -f "$results"/*.xml "$results/died"
  on_the_second
  test_cuda
  outcome
}

run_test() {
  rm -f "$results"/*.xml "$results/died"
  local program name
  for program in "$here"/bin/*_test; do
    name=$(basename "$program" _test)
    one "$name" "$program" "EveryDevice.*"
  done
  if [[ -n $cuda ]]; then
    ops_on cuda
    [[ $(gpus) -lt 2 ]] || on_the_second
    test_cuda --large
  fi
  outcome
}

outcome() {
  "$python" - "$here" "$results" <<'PY'
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from summary import cases

results, count = Path(sys.argv[2]), dict(passed=0, failed=0, skipped=0)
for file in sorted(results.glob("*.xml")):
    for case in cases(file):
        count[case.outcome] += 1
        if case.outcome != "passed":
            print(f"  {case.outcome}: {file.stem}: {case.name} {case.why}")
died = results / "died"
print(died.read_text() if died.exists() else "", end="")
print("{passed} passed, {failed} failed, {skipped} skipped".format(**count))
sys.exit(died.exists() or count["failed"] > 0 or count["passed"] == 0)
PY
}

shard() {  # shard TOOL NAME INDEX COUNT KERNELS FAILS
  local log=$results/$1_$2_$3.log filter="-EveryDevice.*:EveryIsa.*" namespace kernels=()
  for namespace in ${5//,/ }; do kernels+=(--kernel-name "kernel_substring=$namespace"); done
  [[ $1 == racecheck && -n ${6:-} ]] && filter+=":$6"
  GTEST_SHARD_INDEX=$3 GTEST_TOTAL_SHARDS=$4 HOTSWAP_TEST_DEVICE=cuda timeout "${SANITIZE_SECONDS:-3600}" \
    compute-sanitizer --tool "$1" "${kernels[@]}" --error-exitcode 9 \
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
    for name in "${!kernels_of[@]}"; do
      count=$(HOTSWAP_TEST_DEVICE=cuda "$here/bin/${name}_test" --gtest_list_tests | grep -c '^  ')
      for ((index = 0; index < count; index++)); do list+=("$tool $name $index $count ${kernels_of[$name]}${fails_racecheck[$name]:+ ${fails_racecheck[$name]}}"); done
    done
  done
  export -f shard
  export results here
  local code=0
  printf '%s\n' "${list[@]}" | xargs -P "${JOBS:-$(nproc)}" -L 1 bash -c 'shard "$@"' _ || code=1
  echo "compute-sanitizer: ${#list[@]} runs, $(grep -lE 'SUMMARY: 0 ' "$results"/{memcheck,racecheck}_*.log | wc -l) clean, \
$(grep -l "terminated before first instrumented" "$results"/{memcheck,racecheck}_*.log | wc -l) without a GPU call"
  return "$code"
}

run_bench() {  # with CUDA kernels here, theirs alone
  local program
  for program in "$here"/bin/*_bench; do
    [[ -z $cuda || $program == *_cuda_bench ]] || continue
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
    test | second | sanitize | bench) "run_$verb" || failed=1 ;;
    *) echo "expected test, second, sanitize or bench; got $verb" >&2; exit 2 ;;
  esac
done
exit "$failed"
