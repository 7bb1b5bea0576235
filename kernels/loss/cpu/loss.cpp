// Cross-entropy on the CPU. Compiled once per ISA.
#include "kernels/loss/loss.h"

#include "kernels/common/cpu/math.h"
#include "kernels/common/cpu/nontemporal.h"

namespace loss::HOTSWAP_ISA {
using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

// Logits looked at together: read from memory once for their maximum, and again from L1 for their exponentials.
constexpr int64_t kBlock = 2048;
constexpr float kInf = __builtin_inff();

// u as the loss sees it.
struct Plain {
  float cap;
  template <class V>
  __attribute__((always_inline)) V u(V z) const {
    return z;
  }
  template <class V>
  __attribute__((always_inline)) V slope(V) const {  // du/dz at u
    return splat<V>(1.f);
  }
};
struct Capped {
  float cap;
  template <class V>
  __attribute__((always_inline)) V u(V z) const {
    return cap * tanh(z * (1.f / cap));
  }
  template <class V>
  __attribute__((always_inline)) V slope(V u) const {
    const V t = u * (1.f / cap);
    return 1.f - t * t;
  }
};

// log sum e^u = max + log_sum; apart, neither is lost to the other's rounding.
struct Lse {
  float max, log_sum;
  float value() const { return max + log_sum; }
};
struct RowSums {
  Lse lse;
  float sum;  // of w (u - pivot), where labels are smoothed
};

// Near which u is summed: a row whose logits have an offset in common would lose their differences to its rounding.
template <class Cap>
static float pivot_of(Cap cap, float zt) {
  const float u = cap.u(zt);
  return u - u == 0.f ? u : 0.f;  // an infinite target's would make the sum NaN
}

template <class Cap, class T>
static RowSums row_sums(const LossRows& a, Cap cap, const T* z, float pivot) {
  float top = -kInf, total = 0.f;
  double sum = 0;
  float buffer[kBlock];
  for (int64_t first = 0; first < a.vocab; first += kBlock) {
    const int64_t n = a.vocab - first < kBlock ? a.vocab - first : kBlock, padded = (n + kLanes - 1) / kLanes * kLanes;
    const float* u = buffer;
    F most = splat<F>(-kInf);
    if constexpr (__is_same(T, float) && __is_same(Cap, Plain)) {
      if (n == padded) u = z + first;
    }
    if (u == buffer) {
      sweep(n,
            [&](int64_t i, auto count) HOTSWAP_LAMBDA { store(buffer + i, cap.u(load(z + first + i, count)), count); });
      for (int64_t i = n; i < padded; ++i) buffer[i] = -kInf;  // adds nothing to a maximum or a sum of exponentials
    }
    sweep(padded, [&](int64_t i, auto) HOTSWAP_LAMBDA { most = max(load(u + i), most); });
    if (a.label_smoothing != 0.f && a.class_weight == nullptr) {
      sum +=
          sweep_sum(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA { return keep(load(u + i, count) - pivot, count); });
    } else if (a.label_smoothing != 0.f) {
      const float* w = a.class_weight + first;
      sum += sweep_sum(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
        return keep(load(w + i, count) * (load(u + i, count) - pivot), count);
      });
    }
    const float highest = max_lane(most), next = top > highest ? top : highest;
    if (next == -kInf) continue;  // nothing but -inf so far: e^u = 0
    const float exps = sweep_sum(padded, [&](int64_t i, auto) HOTSWAP_LAMBDA { return exp(load(u + i) - next); });
    total = total * exp(top - next) + exps;
    top = next;
  }
  return {{top, __builtin_logf(total)}, static_cast<float>(sum)};
}

// What the parts of a row's loss are multiplied by.
struct Parts {
  float target, mean;  // lse - u_t; lse, where labels are smoothed
  float all;           // p in the gradient
};
static Parts parts_of(const LossRows& a, int64_t t) {
  const float eps = a.label_smoothing;
  if (a.class_weight == nullptr) return {1.f - eps, 1.f, 1.f};
  const float target = (1.f - eps) * a.class_weight[t], mean = eps != 0.f ? *a.class_sum / a.vocab : 0.f;
  return {target, mean, target + eps * mean};
}

// What turns a logit into its gradient, but for the target's own term.
struct Gradient {
  Lse lse;  // dz = (weight e^(u - lse) - shift) slope(u)
  float weight;

  template <class Cap, class V, class Shift>
  __attribute__((always_inline)) V operator()(Cap cap, V z, Shift shift) const {
    const V u = cap.u(z);
    return (weight * exp((u - lse.max) - lse.log_sum) - shift) * cap.slope(u);
  }
};

template <bool kStream, class Cap, class T>
static void rows_typed(const LossRows& a, Cap cap, int64_t begin, int64_t end) {
  const float eps = a.label_smoothing;
  for (int64_t row = begin; row < end; ++row) {
    const T* z = static_cast<const T*>(a.logits) + row * a.logits_stride;
    T* dz = a.dlogits == nullptr ? nullptr : static_cast<T*>(a.dlogits) + row * a.dlogits_stride;
    const int64_t t = a.target[row];
    if (t == a.ignore_index) {
      if (a.loss != nullptr) a.loss[row] = 0.f;
      if (a.lse != nullptr && !a.lse_known) a.lse[2 * row] = a.lse[2 * row + 1] = 0.f;
      if (dz != nullptr) __builtin_memset(dz, 0, sizeof(T) * a.vocab);
      continue;
    }
    const float zt = to_float(z[t]);  // z may be dz: read before it is written
    const Parts parts = parts_of(a, t);
    Lse lse = a.lse_known ? Lse{a.lse[2 * row], a.lse[2 * row + 1]} : Lse{};
    float loss = 0.f;
    if (!a.lse_known) {
      const float pivot = pivot_of(cap, zt);
      const RowSums sums = row_sums(a, cap, z, pivot);
      lse = sums.lse;
      loss = parts.target * ((lse.max - cap.u(zt)) + lse.log_sum) + a.z_loss * lse.value() * lse.value();
      // one -inf makes the mean infinite: only where asked
      if (eps != 0.f) loss += eps * ((parts.mean * (lse.max - pivot) - sums.sum / a.vocab) + parts.mean * lse.log_sum);
    }
    const float scaling = a.token_scaling ? exp((cap.u(zt) - lse.max) - lse.log_sum) : 1.f;
    if (!a.lse_known && a.lse != nullptr) {
      a.lse[2 * row] = lse.max;
      a.lse[2 * row + 1] = lse.log_sum;
    }
    if (!a.lse_known && a.loss != nullptr) a.loss[row] = scaling * loss;
    if (dz == nullptr) continue;
    const float g = scaling * a.grad_scale * (a.dloss == nullptr ? 1.f : a.dloss[row]), shift = g * eps / a.vocab;
    const Gradient gradient{lse, g * (parts.all + 2.f * a.z_loss * lse.value())};
    const float* w = eps != 0.f ? a.class_weight : nullptr;
    if (w == nullptr) {
      sweep(a.vocab, [&](int64_t i, auto count)
                         HOTSWAP_LAMBDA { write<kStream>(dz + i, gradient(cap, load(z + i, count), shift), count); });
    } else {
      sweep(a.vocab, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
        write<kStream>(dz + i, gradient(cap, load(z + i, count), shift * load(w + i, count)), count);
      });
    }
    if (kStream) stream_fence();  // the target's element is written a second time, after the first
    dz[t] = from_float<T>(gradient(cap, zt, (w == nullptr ? shift : shift * w[t]) + g * parts.target));
  }
}

// Gradients larger than the cache go around it, unless they replace their logits, which are in it.
template <class T>
static bool streams(const LossRows& a) {
  return a.dlogits != nullptr && a.dlogits != a.logits && can_stream(static_cast<T*>(a.dlogits)) &&
         (a.rows == 1 || a.dlogits_stride % kLanes == 0) && wants_stream(a.rows * a.vocab * int64_t{sizeof(T)});
}

template <class Cap, class T>
static void stream_or_store(const LossRows& a, int64_t begin, int64_t end) {
  const Cap cap{a.softcap};
  streams<T>(a) ? rows_typed<true, Cap, T>(a, cap, begin, end) : rows_typed<false, Cap, T>(a, cap, begin, end);
}

static void rows(const LossRows& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() {
    a.softcap > 0.f ? stream_or_store<Capped, T>(a, begin, end) : stream_or_store<Plain, T>(a, begin, end);
  });
}

static void column_sum(const ColumnSum& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() {
    for (int64_t row = 0; row < a.rows; ++row) {
      const T* x = static_cast<const T*>(a.x) + row * a.stride + begin;
      sweep(end - begin, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
        store(a.sum + begin + i, load(a.sum + begin + i, count) + a.scale * load(x + i, count), count);
      });
    }
  });
}

static void accumulate(const Accumulate& a, int64_t begin, int64_t end) {
  const F scale = splat<F>(a.scale);
  with_dtype(a.dtype, [&]<typename T>() {
    const T* x = static_cast<const T*>(a.x) + begin;
    sweep(end - begin, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
      const F v = scale * load(x + i, count);
      store(a.sum + begin + i, a.first ? v : load(a.sum + begin + i, count) + v, count);
    });
  });
}

const Table kTable = {rows, column_sum, accumulate};

}  // namespace loss::HOTSWAP_ISA
