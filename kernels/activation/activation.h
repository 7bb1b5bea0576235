// Activations, alone and multiplied: y = act(x), and y = act(gate) * up with x = [gate | up] side by side in a row.
//
//   silu        x * sigmoid(x)
//   gelu        x * Phi(x), Phi the integral of the normal density phi
//   gelu_tanh   x * sigmoid(2 u), u = sqrt(2/pi) * (x + 0.044715 x^3), which is 0.5 x (1 + tanh u)
//   gelu_new    as gelu_tanh (transformers' NewGELU)
//   gelu_fast   as gelu_tanh with transformers' 0.7978845608 for sqrt(2/pi): the same float32 number
//   gelu_quick  x * sigmoid(1.702 x)
//   relu_squared  max(x, 0)^2
//   backward    dx = dy * act'(x);   dgate = dy * up * act'(gate), dup = dy * act(gate)
//
// Casting: x is read, y rounded once to x's type; all between in float32. (torch's eager way of the multiplied form
// rounds act(gate) to 16 bits first.) Deterministic: no sums.
#pragma once

#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/common/dtype.h"

namespace activation {

using kernels::DType;

// Each has its formulas under this name in kernels/common/cpu/activations.h and kernels/common/gpu/activations.cuh; the
// number kName stands for it.
#define ACTIVATION_FUNCTIONS(each) each(Silu) each(Gelu) each(GeluTanh) each(GeluQuick) each(ReluSquared)

#define ACTIVATION_NUMBER(Name) k##Name,
enum class Function : uint8_t { ACTIVATION_FUNCTIONS(ACTIVATION_NUMBER) };
#undef ACTIVATION_NUMBER

// The ops: NAME(x) -> y and NAME_bwd(dy, x) -> dx, of act(x) or, and_mul, of act(gate) * up.
struct Act {
  const char* name;
  Function function;
  bool and_mul = false;
};
constexpr Act kActs[] = {
    {"silu", Function::kSilu},
    {"gelu", Function::kGelu},
    {"gelu_tanh", Function::kGeluTanh},
    {"gelu_new", Function::kGeluTanh},
    {"gelu_fast", Function::kGeluTanh},
    {"gelu_quick", Function::kGeluQuick},
    {"relu_squared", Function::kReluSquared},
    {"silu_and_mul", Function::kSilu, true},
    {"gelu_and_mul", Function::kGelu, true},
    {"gelu_tanh_and_mul", Function::kGeluTanh, true},
};

struct Unary {
  void* out;                                 // [rows, cols]: y, or dx
  const void* x;                             // [rows, cols], rows x_stride apart
  const void* dy;                            // [rows, cols], rows dy_stride apart; backward only
  int64_t cols, numel, x_stride, dy_stride;  // row r holds min(cols, numel - r * cols) numbers
  Function function;
  DType dtype;
  bool stream;
};

struct AndMul {
  void* out;       // forward: y [rows, cols]; backward: dx [rows, 2 cols]
  const void* x;   // [rows, 2 cols], rows x_stride apart
  const void* dy;  // [rows, cols], rows dy_stride apart; backward only
  int64_t cols, x_stride, dy_stride;
  Function function;
  DType dtype;
  bool stream;
};

// Each works on rows [begin, end).
struct Table {
  void (*forward)(const Unary&, int64_t begin, int64_t end);
  void (*backward)(const Unary&, int64_t begin, int64_t end);
  void (*and_mul_forward)(const AndMul&, int64_t begin, int64_t end);
  void (*and_mul_backward)(const AndMul&, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace activation
