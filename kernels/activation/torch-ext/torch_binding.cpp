// Schemas, checks and registrations: torch's stable ABI only. The formulas are in activation.h.
#include "kernels/activation/activation_cuda.h"
#include "kernels/common/cpu/nontemporal.h"
#include "kernels/common/torch/binding.h"

namespace {

using activation::Function;
using kernels::as_rows;
using kernels::check;
using kernels::check_same_shape;
using kernels::Device;
using kernels::device_of;
using kernels::DType;
using kernels::dtype_of;
using kernels::Rows;
using kernels::Tensor;
using kernels::wants_stream;

const activation::Table& table() {
  static const activation::Table& chosen = HOTSWAP_CHOOSE_TABLE(activation);
  return chosen;
}

constexpr int64_t kBlock = 4096;  // a contiguous tensor is walked in blocks, whatever its shape
constexpr int64_t kGrain = 8192;  // numbers a thread, at least: an exponential each

// ---- y = act(x)
Tensor unary(const char* op, const Tensor& x, const Tensor* dy, Function function) {
  const DType dtype = dtype_of(x, op);
  const Device device = device_of(x);
  if (dy != nullptr) {
    kernels::check_device(*dy, device, op);
    check_same_shape(x, *dy, op, "x", "dy");
    check(dtype_of(*dy, op) == dtype, op, ": wanted dy in x's dtype; got another; cast it");
  }
  Tensor out = kernels::empty_like(x, dtype);
  activation::Unary args{};
  args.out = out.data_ptr();
  args.function = function;
  args.dtype = dtype;
  args.numel = x.numel();
  args.stream = wants_stream(args.numel * kernels::size_of(dtype));
  const auto run = [&](int64_t rows) {
    const auto some = [&](int64_t begin, int64_t end) {
      if (dy != nullptr)
        table().backward(args, begin, end);
      else
        table().forward(args, begin, end);
    };
    kernels::run_on(
        device, [&](auto stream) { activation::cuda::unary(args, rows, stream); },
        [&] { kernels::parallel_rows(rows, args.cols, some, kGrain); });
  };
  if (x.is_contiguous() && (dy == nullptr || dy->is_contiguous())) {
    args.x = x.data_ptr();
    args.dy = dy != nullptr ? dy->data_ptr() : nullptr;
    args.cols = args.x_stride = args.dy_stride = device.is_cpu() ? kBlock : args.numel;
    run(args.numel == 0 ? 0 : kernels::divide_up(args.numel, args.cols));
    return out;
  }
  const Rows in = as_rows(x, op, device);
  const Rows grad = dy != nullptr ? as_rows(*dy, op, device) : in;
  args.x = in.data;
  args.dy = dy != nullptr ? grad.data : nullptr;
  args.cols = in.cols;
  args.x_stride = in.stride;
  args.dy_stride = grad.stride;
  run(in.rows);
  return out;
}

// ---- y = act(gate) * up, x = [gate | up]
Tensor and_mul(const char* op, const Tensor& x, const Tensor* dy, Function function) {
  const DType dtype = dtype_of(x, op);
  const Device device = device_of(x);
  const Rows in = as_rows(x, op, device);
  check(in.cols % 2 == 0, op, ": wanted an even last dimension, [gate | up]; got ", kernels::shape_of(x),
        "; concatenate gate and up along the last dimension");
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() /= 2;
  activation::AndMul args{};
  args.function = function;
  args.dtype = dtype;
  args.x = in.data;
  args.cols = in.cols / 2;
  args.x_stride = in.stride;
  if (dy == nullptr) {
    Tensor y = kernels::empty_like_shape(shape.data(), int64_t(shape.size()), kernels::torch_dtype(dtype), device);
    args.out = y.data_ptr();
    args.stream = wants_stream(in.rows * args.cols * kernels::size_of(dtype));
    kernels::run_on(
        device, [&](auto stream) { activation::cuda::and_mul(args, in.rows, stream); },
        [&] {
          kernels::parallel_rows(
              in.rows, args.cols, [&](int64_t begin, int64_t end) { table().and_mul_forward(args, begin, end); },
              kGrain);
        });
    return y;
  }
  bool same = dy->dim() == x.dim();
  for (int64_t d = 0; same && d < x.dim(); ++d) same = dy->size(d) == shape[size_t(d)];
  check(same, op, ": wanted dy in the shape of x with half the last dimension; got ", kernels::shape_of(*dy), " for ",
        kernels::shape_of(x), "; pass the gradient of the op's output");
  check(dtype_of(*dy, op) == dtype, op, ": wanted dy in x's dtype; got another; cast it");
  const Rows grad = as_rows(*dy, op, device);
  Tensor dx = kernels::empty_like(x, dtype);
  args.out = dx.data_ptr();
  args.dy = grad.data;
  args.dy_stride = grad.stride;
  args.stream = wants_stream(in.rows * in.cols * kernels::size_of(dtype));
  kernels::run_on(
      device, [&](auto stream) { activation::cuda::and_mul(args, in.rows, stream); },
      [&] {
        kernels::parallel_rows(
            in.rows, args.cols, [&](int64_t begin, int64_t end) { table().and_mul_backward(args, begin, end); },
            kGrain);
      });
  return dx;
}

// One row an op: the name is the schema's, too.
Tensor silu(const Tensor& x) { return unary("silu", x, nullptr, Function::kSilu); }
Tensor gelu(const Tensor& x) { return unary("gelu", x, nullptr, Function::kGelu); }
Tensor gelu_tanh(const Tensor& x) { return unary("gelu_tanh", x, nullptr, Function::kGeluTanh); }
Tensor gelu_new(const Tensor& x) { return unary("gelu_new", x, nullptr, Function::kGeluTanh); }
Tensor gelu_fast(const Tensor& x) { return unary("gelu_fast", x, nullptr, Function::kGeluTanh); }
Tensor gelu_quick(const Tensor& x) { return unary("gelu_quick", x, nullptr, Function::kGeluQuick); }
Tensor silu_bwd(const Tensor& dy, const Tensor& x) { return unary("silu_bwd", x, &dy, Function::kSilu); }
Tensor gelu_bwd(const Tensor& dy, const Tensor& x) { return unary("gelu_bwd", x, &dy, Function::kGelu); }
Tensor gelu_tanh_bwd(const Tensor& dy, const Tensor& x) { return unary("gelu_tanh_bwd", x, &dy, Function::kGeluTanh); }
Tensor gelu_new_bwd(const Tensor& dy, const Tensor& x) { return unary("gelu_new_bwd", x, &dy, Function::kGeluTanh); }
Tensor gelu_fast_bwd(const Tensor& dy, const Tensor& x) { return unary("gelu_fast_bwd", x, &dy, Function::kGeluTanh); }
Tensor gelu_quick_bwd(const Tensor& dy, const Tensor& x) {
  return unary("gelu_quick_bwd", x, &dy, Function::kGeluQuick);
}
Tensor silu_and_mul(const Tensor& x) { return and_mul("silu_and_mul", x, nullptr, Function::kSilu); }
Tensor gelu_and_mul(const Tensor& x) { return and_mul("gelu_and_mul", x, nullptr, Function::kGelu); }
Tensor gelu_tanh_and_mul(const Tensor& x) { return and_mul("gelu_tanh_and_mul", x, nullptr, Function::kGeluTanh); }
Tensor silu_and_mul_bwd(const Tensor& dy, const Tensor& x) {
  return and_mul("silu_and_mul_bwd", x, &dy, Function::kSilu);
}
Tensor gelu_and_mul_bwd(const Tensor& dy, const Tensor& x) {
  return and_mul("gelu_and_mul_bwd", x, &dy, Function::kGelu);
}
Tensor gelu_tanh_and_mul_bwd(const Tensor& dy, const Tensor& x) {
  return and_mul("gelu_tanh_and_mul_bwd", x, &dy, Function::kGeluTanh);
}

constexpr std::array kForward{
    kernels::op<&silu>("silu"),
    kernels::op<&gelu>("gelu"),
    kernels::op<&gelu_tanh>("gelu_tanh"),
    kernels::op<&gelu_new>("gelu_new"),
    kernels::op<&gelu_fast>("gelu_fast"),
    kernels::op<&gelu_quick>("gelu_quick"),
    kernels::op<&silu_and_mul>("silu_and_mul"),
    kernels::op<&gelu_and_mul>("gelu_and_mul"),
    kernels::op<&gelu_tanh_and_mul>("gelu_tanh_and_mul"),
};
constexpr std::array kBackward{
    kernels::op<&silu_bwd>("silu_bwd"),
    kernels::op<&gelu_bwd>("gelu_bwd"),
    kernels::op<&gelu_tanh_bwd>("gelu_tanh_bwd"),
    kernels::op<&gelu_new_bwd>("gelu_new_bwd"),
    kernels::op<&gelu_fast_bwd>("gelu_fast_bwd"),
    kernels::op<&gelu_quick_bwd>("gelu_quick_bwd"),
    kernels::op<&silu_and_mul_bwd>("silu_and_mul_bwd"),
    kernels::op<&gelu_and_mul_bwd>("gelu_and_mul_bwd"),
    kernels::op<&gelu_tanh_and_mul_bwd>("gelu_tanh_and_mul_bwd"),
};

int64_t call_count(std::string op) {
  std::vector<kernels::Op> all(kForward.begin(), kForward.end());
  all.insert(all.end(), kBackward.begin(), kBackward.end());
  return kernels::count_calls(all, op);
}

}  // namespace

HOTSWAP_LIBRARY(TORCH_EXTENSION_NAME, m) {
  for (const kernels::Op& op : kForward) m.def((std::string(op.name) + "(Tensor x) -> Tensor").c_str());
  for (const kernels::Op& op : kBackward) m.def((std::string(op.name) + "(Tensor dy, Tensor x) -> Tensor").c_str());
  HOTSWAP_COMMON_SCHEMAS(m);
}

HOTSWAP_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CPU, m) { kernels::implement(m, kForward, kBackward); }
HOTSWAP_IMPLEMENT_CUDA(kForward, kBackward)

HOTSWAP_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, m) {
  m.impl("call_count", TORCH_BOX(&call_count));
  m.impl("isa", TORCH_BOX(&kernels::isa));
}

HOTSWAP_PYTHON_MODULE
