// Timing of ops against their peers, with a check of the values first.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hotswap/cli/bench/cases.h"

namespace hotswap {

struct OpResult {
  std::string op, shape, dtype;
  int threads = 1;
  double microseconds = 0;                       // median
  std::optional<double> peer_microseconds = {};  // none without a peer
  double bytes_per_second = 0, memcpy_bytes_per_second = 0;
  double flops_per_second = 0;  // 0: memory is what the op costs
  double error = 0;             // relative L2 against the peer, the largest of the outputs
  double speedup() const { return peer_microseconds ? *peer_microseconds / microseconds : 0; }
  double memcpy_share() const { return bytes_per_second / memcpy_bytes_per_second; }
};

struct OpBenchOptions {
  bool with_peer = true;
  double seconds = 0.4;  // of measuring for each side, three runs at least
};

// Error where the values differ by more than the dtype's rounding explains: a wrong op has no speed.
OpResult bench_op(const OpCase& op_case, const OpBenchOptions& options);

// |got - want| / |want| in float64, of tensors of one shape on any device. Not a number where the shapes differ, or
// where got has an element that is none: no bound is kept by that, whichever way it is compared.
double relative_difference(const at::Tensor& got, const at::Tensor& want);

// The rate of copying so many bytes (half read, half written) with all threads, the best of several runs.
double memcpy_rate(int64_t bytes);

}  // namespace hotswap
