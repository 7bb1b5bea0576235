#include "hotswap/cli/bench/ops.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "hotswap/base/error.h"
#include "hotswap/cli/bench/timing.h"
#include "hotswap/layers/parallel.h"

namespace hotswap {
namespace {

using at::Tensor;

std::vector<Tensor> call_op(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments) {
  std::vector<c10::IValue> stack = arguments;
  op.callBoxed(&stack);
  std::vector<Tensor> outputs;
  for (const c10::IValue& value : stack) outputs.push_back(value.toTensor());
  return outputs;
}

double difference(const std::vector<Tensor>& ours, const std::vector<Tensor>& peers) {
  double worst = 0;
  size_t next = 0;
  for (const Tensor& peer : peers) {
    // What an op saves for backward (rstd, lse) stands between results: the peer has no such output.
    while (next < ours.size() && ours[next].sizes() != peer.sizes()) ++next;
    if (next == ours.size()) return NAN;
    const double off = relative_difference(ours[next++], peer);
    if (std::isnan(off)) return off;
    worst = std::max(worst, off);
  }
  return worst;
}

// Read and written once each: what the op cannot avoid to move.
int64_t bytes_of(const std::vector<c10::IValue>& arguments, const std::vector<Tensor>& outputs) {
  int64_t bytes = 0;
  for (const c10::IValue& value : arguments)
    bytes += value.isTensor() ? static_cast<int64_t>(value.toTensor().nbytes()) : 0;
  for (const Tensor& tensor : outputs) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Short calls are timed in groups, so that the clock's own cost does not show.
template <typename F>
double timed(const F& f, int64_t count) {
  const auto start = Clock::now();
  for (int64_t i = 0; i < count; ++i) f();
  return seconds_since(start) / static_cast<double>(count);
}

template <typename F>
int64_t group_size(const F& f) {
  return std::clamp<int64_t>(static_cast<int64_t>(1e-3 / std::max(1e-9, timed(f, 1))), 1, 1000);
}

}  // namespace

double relative_difference(const Tensor& got, const Tensor& want) {
  if (got.sizes() != want.sizes()) return NAN;
  const Tensor a = got.detach().cpu().to(at::kDouble), b = want.detach().cpu().to(at::kDouble);
  const double size = at::linalg_vector_norm(b).item<double>(),
               off = at::linalg_vector_norm(at::sub(a, b)).item<double>();
  return std::isfinite(off) ? off / (size > 0 ? size : 1) : NAN;
}

double memcpy_rate(int64_t bytes) {
  const int64_t half = std::max<int64_t>(bytes / 2, 64);
  std::vector<char> from(half, 1), to(half, 2);
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    const int64_t rounds = std::clamp<int64_t>((32 << 20) / half, 1, 1000);
    const auto start = Clock::now();
    for (int64_t i = 0; i < rounds; ++i) {
      parallel_for(0, half, 64 << 10, [&](int64_t begin, int64_t end) {
        std::memcpy(to.data() + begin, from.data() + begin, end - begin);
      });
    }
    best = std::max(best, static_cast<double>(2 * half * rounds) / seconds_since(start));
  }
  return best;
}

OpResult bench_op(const OpCase& op_case, const OpBenchOptions& options) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(op_case.qualified.c_str(), "");
  const auto ours = [&] {
    const at::NoGradGuard no_grad;
    return call_op(op, op_case.arguments);
  };
  OpResult result{.op = op_case.op, .shape = op_case.shape, .dtype = op_case.dtype, .threads = at::get_num_threads()};

  // bfloat16 and float16: torch rounds after every step, the ops once
  const double tolerance = op_case.dtype == "float32" ? 1e-4 : 2e-2;
  const std::vector<Tensor> outputs = ours();
  result.error = difference(outputs, op_case.peer());
  if (!(result.error <= tolerance)) {
    throw Error({.kind = ErrorKind::kInternal,
                 .wanted = cat(op_case.op, " ", op_case.shape, " ", op_case.dtype, " within ", tolerance, " of torch"),
                 .got = cat("a relative difference of ", result.error),
                 .next = "do not use this kernel: its op is wrong; run the package's tests, or tell its publisher"});
  }

  std::vector<double> our_times, peer_times;
  const int64_t our_group = group_size(ours), peer_group = options.with_peer ? group_size(op_case.peer) : 1;
  double our_total = 0, peer_total = 0;
  // The two sides take turns: what else the machine does meets both.
  while (our_times.size() < 3 || (our_total < options.seconds && peer_total < options.seconds)) {
    our_times.push_back(timed(ours, our_group));
    our_total += our_times.back() * static_cast<double>(our_group);
    if (!options.with_peer) continue;
    peer_times.push_back(timed(op_case.peer, peer_group));
    peer_total += peer_times.back() * static_cast<double>(peer_group);
  }
  result.microseconds = median(our_times) * 1e6;
  if (options.with_peer) result.peer_microseconds = median(peer_times) * 1e6;
  const int64_t bytes = bytes_of(op_case.arguments, outputs);
  result.bytes_per_second = static_cast<double>(bytes) / (result.microseconds / 1e6);
  result.memcpy_bytes_per_second = memcpy_rate(bytes);
  result.flops_per_second = op_case.flops / (result.microseconds / 1e6);
  return result;
}

}  // namespace hotswap
