// AdamW (Loshchilov and Hutter, 2019) over a list of tensors: one pass over parameters, gradients and states.
//
//   g = gradient / scale                                   nothing is written at all where scale is not finite
//   m = m + (1 - beta1) (g - m);   v = beta2 v + (1 - beta2) g^2
//   p = p (1 - lr decay) - lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)     t: the tensor's step, from 1
//
// Casting: all of it is float32, from states as they are stored. With a master p is the float32 master, and the
// parameter its rounding; without, p is the parameter, rounded once. m and v are rounded once to the states' type.
// Rounding is to nearest, or stochastic into bfloat16: up with the probability of what is cut off, so that an update
// smaller than half of the last bit counts in the mean. Its random bits are a function of (seed, step, index in the
// list, element) only: no matter how many threads run, or on which device.
//
// Each operation is rounded by itself, or is a fused multiply-add where the formulas here have one, so that a CPU with
// fused multiply-adds and a GPU give the same bits.
#pragma once
#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/common/dtype.h"

namespace optimizer {

using kernels::DType;

// A tensor of the list.
struct Item {
  void* parameter;                 // [size]
  const void* gradient;            // [size], in the parameter's type
  void *average, *average_square;  // [size], in the states' type
  float* master;                   // [size] or null
  const float* step;               // [1], how many updates there were, with this one
  int64_t size;
};

struct Rates {
  double learning_rate, beta1, beta2, eps, weight_decay;
};

struct Update {
  DType dtype, state;  // of parameters and gradients, of m and v
  bool has_master, stochastic;
  uint64_t seed;
  Rates rates;
  const float* scale;  // [1]
};

// What of the formulas is the same for all elements of a tensor.
struct Coefficients {
  float inverse_scale, decay, one_minus_beta1, beta2, one_minus_beta2, minus_step_size, inverse_root, eps;
};

// fn of the types that an update has: parameters and states of one type; parameters of 16 bits with a float32 master
// and float32 states; states of bfloat16 beside a float32 parameter, or beside a bfloat16 one with a master.
//   with_forms(update, [&]<typename T, typename State, bool kMaster>() { ... });
template <class Fn>
static inline void with_forms(const Update& u, Fn fn) {
  using kernels::BFloat16;
  kernels::with_dtype(u.dtype, [&]<typename T>() {
    if constexpr (sizeof(T) == 2) {
      if (u.state == DType::kFloat32) return fn.template operator()<T, float, true>();
    }
    if (u.state == u.dtype && !u.has_master) return fn.template operator()<T, T, false>();
    if constexpr (__is_same(T, float)) return fn.template operator()<T, BFloat16, false>();
    if constexpr (__is_same(T, BFloat16)) return fn.template operator()<T, BFloat16, true>();
  });
}

// Elements [begin, end) of an item, the index-th of its list.
struct Table {
  void (*adamw)(const Update&, const Coefficients&, const Item&, int64_t index, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace optimizer
