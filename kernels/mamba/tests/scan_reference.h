// The selective scan's inputs for tests, and the scan itself in plain float64 loops: scan.h's formulas, a number at a
// time.
#pragma once

#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include "kernels/common/testing/testing.h"

namespace mamba_test {

using at::Tensor;
using kernels::testing::Tensors;

enum Input { kU, kDelta, kA, kB, kC, kD, kZ, kBias, kInitial, kInputs };

struct Scan {
  int64_t batch, channels, length, states, groups = 1;
  int b_dims = 4, c_dims = 4;  // 4: [batch, groups, states, length]; 3: one group; 2: [channels, states]
  bool skip = true, gate = true, bias = true, initial = true, softplus = true;
  Tensor seq_idx = {};
  double rate = 1, step = 0;  // A in -rate [0, 1]; delta around step
};

inline Tensor coefficients(const Scan& s, int dims, at::ScalarType dtype) {
  using kernels::testing::random_tensor;
  return dims == 4   ? random_tensor({s.batch, s.groups, s.states, s.length}, dtype)
         : dims == 3 ? random_tensor({s.batch, s.states, s.length}, dtype)
                     : random_tensor({s.channels, s.states}, dtype);
}

// The inputs; undefined ones are not given. A, D, the bias and states are float32.
inline Tensors scan_inputs(const Scan& s, at::ScalarType dtype) {
  using kernels::testing::device;
  using kernels::testing::generator;
  using kernels::testing::random_tensor;
  Tensors in(kInputs);
  const std::vector<int64_t> shape{s.batch, s.channels, s.length};
  in[kU] = random_tensor(shape, dtype);
  // Without softplus Δ is delta itself, which is positive.
  in[kDelta] = s.softplus ? (random_tensor(shape, at::kFloat, 0.5) + s.step).to(dtype)
                          : at::rand(shape, generator(), at::kFloat).mul(0.3).to(dtype).to(device());
  in[kA] = (at::rand({s.channels, s.states}, generator(), at::kFloat) * -s.rate).to(device());
  in[kB] = coefficients(s, s.b_dims, dtype);
  in[kC] = coefficients(s, s.c_dims, dtype);
  if (s.skip) in[kD] = random_tensor({s.channels}, at::kFloat);
  if (s.gate) in[kZ] = random_tensor(shape, dtype);
  if (s.bias) in[kBias] = (at::rand({s.channels}, generator(), at::kFloat) * 0.2).to(device());
  if (s.initial) in[kInitial] = random_tensor({s.batch, s.channels, s.states}, at::kFloat);
  return in;
}

// y, last_state, then the gradients of the inputs (undefined where there is none), for the gradients dy and dlast.
// sizes: in the same order, of the gradients that are sums over tokens or channels the same sums of absolute values.
inline Tensors scan_reference(const Scan& s, const Tensors& given, const Tensor& dy_given, const Tensor& dlast,
                              Tensors* sizes = nullptr) {
  Tensors in(kInputs), d(kInputs), all(kInputs);
  for (int i = 0; i < kInputs; ++i) {
    if (!given[i].defined()) continue;
    in[i] = given[i].cpu().to(at::kDouble).contiguous();
    d[i] = at::zeros(in[i].sizes(), at::kDouble);
    all[i] = at::zeros(in[i].sizes(), at::kDouble);
  }
  const auto at_of = [](Tensors& t, int i) { return t[i].defined() ? t[i].data_ptr<double>() : nullptr; };
  const double *u = at_of(in, kU), *delta = at_of(in, kDelta), *A = at_of(in, kA), *B = at_of(in, kB),
               *C = at_of(in, kC), *D = at_of(in, kD), *z = at_of(in, kZ), *bias = at_of(in, kBias),
               *initial = at_of(in, kInitial);
  double *du = at_of(d, kU), *ddelta = at_of(d, kDelta), *dz = at_of(d, kZ), *dinitial = at_of(d, kInitial);
  const auto add = [&](int input, int64_t place, double term) {
    d[size_t(input)].data_ptr<double>()[place] += term;
    all[size_t(input)].data_ptr<double>()[place] += std::abs(term);
  };
  const int64_t L = s.length, N = s.states;
  Tensor y = at::zeros({s.batch, s.channels, L}, at::kDouble), last = at::zeros({s.batch, s.channels, N}, at::kDouble);
  const Tensor dy_wide = dy_given.cpu().to(at::kDouble).contiguous(),
               dlast_wide = dlast.cpu().to(at::kDouble).contiguous();
  const int32_t* sequence = s.seq_idx.defined() ? s.seq_idx.data_ptr<int32_t>() : nullptr;
  const Tensor memory = at::zeros({(2 * L + 2) * N + 2 * L}, at::kDouble);
  double *h = memory.data_ptr<double>(), *a = h + (L + 1) * N, *dh = a + L * N, *step = dh + N, *slope = step + L;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t c = 0; c < s.channels; ++c) {
      const int64_t row = (b * s.channels + c) * L, state = (b * s.channels + c) * N;
      const auto place = [&](int dims, int64_t n, int64_t t) {
        const int64_t group = dims == 4 ? c / (s.channels / s.groups) : 0, groups = dims == 4 ? s.groups : 1;
        return dims == 2 ? c * N + n : ((b * groups + group) * N + n) * L + t;
      };
      int32_t current = -1;
      for (int64_t n = 0; n < N; ++n) h[n] = initial != nullptr ? initial[state + n] : 0;
      for (int64_t t = 0; t < L; ++t) {
        const double raw = delta[row + t] + (bias != nullptr ? bias[c] : 0);
        const bool linear = !s.softplus || raw > 20;
        const int32_t own = sequence != nullptr ? sequence[b * L + t] : 0;
        const bool starts = own >= 0 && current >= 0 && own != current, padding = own < 0;
        if (own >= 0) current = own;
        step[t] = padding ? 0 : linear ? raw : std::log1p(std::exp(raw));
        slope[t] = padding ? 0 : linear ? 1 : 1 / (1 + std::exp(-raw));
        double sum = D != nullptr && !padding ? D[c] * u[row + t] : 0;
        for (int64_t n = 0; n < N; ++n) {
          const int64_t i = t * N + n;
          a[i] = starts ? 0 : padding ? 1 : std::exp(step[t] * A[c * N + n]);
          h[i + N] = a[i] * h[i];
          if (padding) continue;
          h[i + N] += step[t] * u[row + t] * B[place(s.b_dims, n, t)];
          sum += C[place(s.c_dims, n, t)] * h[i + N];
        }
        const double gate = z != nullptr && !padding ? z[row + t] / (1 + std::exp(-z[row + t])) : 1;
        y.data_ptr<double>()[row + t] = sum * gate;
      }
      for (int64_t n = 0; n < N; ++n) {
        last.data_ptr<double>()[state + n] = h[L * N + n];
        dh[n] = dlast_wide.data_ptr<double>()[state + n];
      }
      for (int64_t t = L - 1; t >= 0; --t) {
        const bool padding = sequence != nullptr && sequence[b * L + t] < 0;
        if (padding) continue;  // the state stays, and so does its gradient
        double dy = dy_wide.data_ptr<double>()[row + t], by_b = 0, dstep = 0;
        if (z != nullptr) {
          const double v = z[row + t], sigma = 1 / (1 + std::exp(-v));
          double before = D != nullptr ? D[c] * u[row + t] : 0;
          for (int64_t n = 0; n < N; ++n) before += C[place(s.c_dims, n, t)] * h[(t + 1) * N + n];
          dz[row + t] = dy * before * sigma * (1 + v * (1 - sigma));
          dy *= v * sigma;
        }
        if (D != nullptr) {
          du[row + t] += D[c] * dy;
          add(kD, c, dy * u[row + t]);
        }
        for (int64_t n = 0; n < N; ++n) {
          const int64_t i = t * N + n;
          add(kC, place(s.c_dims, n, t), dy * h[i + N]);
          dh[n] += C[place(s.c_dims, n, t)] * dy;
          const double q = dh[n] * a[i] * h[i];
          by_b += dh[n] * B[place(s.b_dims, n, t)];
          add(kB, place(s.b_dims, n, t), dh[n] * step[t] * u[row + t]);
          dstep += A[c * N + n] * q;
          add(kA, c * N + n, step[t] * q);
          dh[n] *= a[i];
        }
        du[row + t] += step[t] * by_b;
        ddelta[row + t] = (dstep + u[row + t] * by_b) * slope[t];
        if (bias != nullptr) add(kBias, c, ddelta[row + t]);
      }
      if (initial != nullptr) {
        for (int64_t n = 0; n < N; ++n) dinitial[state + n] = dh[n];
      }
    }
  }
  if (sizes != nullptr) {
    for (const int i : {kU, kDelta, kZ, kInitial}) all[size_t(i)] = Tensor();
    *sizes = {Tensor(), Tensor()};
    sizes->insert(sizes->end(), all.begin(), all.end());
  }
  Tensors results{y, last};
  results.insert(results.end(), d.begin(), d.end());
  for (Tensors* made : {&results, sizes}) {
    if (made == nullptr) continue;
    for (Tensor& t : *made) {
      if (t.defined()) t = t.to(kernels::testing::device());
    }
  }
  return results;
}

}  // namespace mamba_test
