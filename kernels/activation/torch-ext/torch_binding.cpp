// Schemas, checks and registrations: torch's stable ABI only. The formulas are in activation.h.
#include "kernels/activation/cuda/activation.h"
#include "kernels/common/cpu/nontemporal.h"
#include "kernels/common/torch/ops.h"

namespace {

using activation::Function;
using activation::kActs;
using kernels::as_rows;
using kernels::check_same_dtype;
using kernels::check_same_shape;
using kernels::check_tensor;
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
Tensor unary(const Tensor& x, const Tensor* dy, Function function) {
  const DType dtype = dtype_of(x);
  const Device device = device_of(x);
  if (dy != nullptr) {
    kernels::check_device(*dy, device);
    check_same_shape(x, *dy, "x");
    check_same_dtype(*dy, dtype, "x");
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
  const Rows in = as_rows(x, device);
  const Rows grad = dy != nullptr ? as_rows(*dy, device) : in;
  args.x = in.data;
  args.dy = dy != nullptr ? grad.data : nullptr;
  args.cols = in.cols;
  args.x_stride = in.stride;
  args.dy_stride = grad.stride;
  run(in.rows);
  return out;
}

// ---- y = act(gate) * up, x = [gate | up]
Tensor and_mul(const Tensor& x, const Tensor* dy, Function function) {
  const DType dtype = dtype_of(x);
  const Device device = device_of(x);
  const Rows in = as_rows(x, device);
  check_tensor(in.cols % 2 == 0, x, "with an even last dimension, [gate | up]; got ", kernels::shape_of(x),
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
  check_tensor(same, *dy, "in the shape of x with half the last dimension; got ", kernels::shape_of(*dy), " for ",
               kernels::shape_of(x), "; pass the gradient of the op's output");
  check_same_dtype(*dy, dtype, "x");
  const Rows grad = as_rows(*dy, device);
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

Tensor run(const activation::Act& act, const Tensor& x, const Tensor* dy) {
  return (act.and_mul ? and_mul : unary)(x, dy, act.function);
}
template <size_t kRow>
Tensor forward(const Tensor& x) {
  return run(kActs[kRow], x, nullptr);
}
template <size_t kRow>
constexpr auto kBackward = [] {
  constexpr std::string_view kName = kActs[kRow].name;
  char name[kName.size() + 1]{};
  std::copy(kName.begin(), kName.end(), name);
  return kernels::Name(name) + "_bwd";
}();
template <size_t kRow>
Tensor backward(const Tensor& dy, const Tensor& x) {
  return run(kActs[kRow], x, &dy);
}

template <size_t... kRows>
constexpr auto ops_of(std::index_sequence<kRows...>) {
  return kernels::join(
      std::array{kernels::op<&forward<kRows>>(kActs[kRows].name, "(Tensor x) -> Tensor"),
                 kernels::op<&backward<kRows>>(kBackward<kRows>.text, "(Tensor dy, Tensor x) -> Tensor")}...);
}
constexpr auto kOps = ops_of(std::make_index_sequence<std::size(kActs)>{});
const kernels::Library<kOps> library;

}  // namespace
