// Schemas, checks and registrations: torch's stable ABI only. The formulas are in optimizer.h.
#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/common/torch/ops.h"
#include "kernels/optimizer/coefficients.h"
#include "kernels/optimizer/cuda/optimizer.h"

namespace optimizer {
namespace {

using kernels::check;
using kernels::check_tensor;
using kernels::Device;
using kernels::device_of;
using kernels::dtype_of;
using kernels::Tensor;
using Tensors = std::vector<Tensor>;

constexpr auto kOp = "adamw_";

const Table& table() {
  static const Table& chosen = HOTSWAP_CHOOSE_TABLE(optimizer);
  return chosen;
}

// Every tensor of a list: as many, as large and of the same type as the parameters' and contiguous, since the update
// is in-place.
void check_list(const Tensors& list, const char* name, const Tensors& parameters, const Device& device) {
  check(list.size() == parameters.size(), kOp, ": expected as many ", name, " as parameters, ", parameters.size(),
        "; got ", list.size(), "; pass the lists in one order");
  for (size_t i = 0; i < list.size(); ++i) {
    kernels::check_device(list[i], device);
    check_tensor(list[i].numel() == parameters[i].numel(), list[i], "with the ", parameters[i].numel(),
                 " elements of its parameter; got ", kernels::shape_of(list[i]), "; make it as the parameter is");
    check_tensor(list[i].scalar_type() == list[0].scalar_type(), list[i], "in the dtype of the list's first, ",
                 kernels::dtype_name(list[0]), "; got ", kernels::dtype_name(list[i]), "; call the op for each dtype");
    check_tensor(list[i].is_contiguous(), list[i],
                 "contiguous; got it with gaps or in another order; make it contiguous before");
  }
}

void check_scalar(const Tensor& t, const Device& device) {
  kernels::check_device(t, device);
  check_tensor(t.numel() == 1 && t.scalar_type() == kernels::ScalarType::Float, t, "as one float32; got ",
               kernels::shape_of(t), " of ", kernels::dtype_name(t), "; make it so");
}

// The types that with_forms() has.
void check_forms(const Update& u) {
  const bool wide = u.dtype == DType::kFloat32, wide_state = u.state == DType::kFloat32;
  const bool needs_master = !wide && (wide_state || (u.has_master && u.state == DType::kBFloat16));
  const bool known = u.state == u.dtype || wide_state || (wide && u.state == DType::kBFloat16);
  check(known, kOp, ": expected averages in the parameters' dtype or float32, or bfloat16 beside float32; got ",
        kernels::dtype_name(u.state), " beside ", kernels::dtype_name(u.dtype), "; cast the states");
  check(u.has_master == needs_master, kOp, ": expected masters ", needs_master ? "of" : "for none but",
        " parameters of 16 bits whose averages are float32, or bfloat16 where both are; got ",
        u.has_master ? "masters" : "none", " of parameters in ", kernels::dtype_name(u.dtype), " and averages in ",
        kernels::dtype_name(u.state), "; make them in float32, or pass an empty list");
  check(!u.stochastic || u.state == DType::kBFloat16, kOp,
        ": expected bfloat16 averages with a seed, which rounds them stochastically; got averages in ",
        kernels::dtype_name(u.state), "; cast them, or pass no seed");
}

struct Lists {
  Tensors parameters, gradients, averages, average_squares, masters, steps;
};

std::vector<Item> items_of(const Lists& lists) {
  std::vector<Item> items(lists.parameters.size());
  for (size_t i = 0; i < items.size(); ++i) {
    items[i] = {.parameter = lists.parameters[i].data_ptr(),
                .gradient = lists.gradients[i].data_ptr(),
                .average = lists.averages[i].data_ptr(),
                .average_square = lists.average_squares[i].data_ptr(),
                .master = lists.masters.empty() ? nullptr : static_cast<float*>(lists.masters[i].data_ptr()),
                .step = static_cast<const float*>(lists.steps[i].data_ptr()),
                .size = lists.parameters[i].numel()};
  }
  return items;
}

// Pieces of a fixed size, shared by the threads: small tensors are many, large ones few.
void on_cpu(const Update& u, const std::vector<Item>& items) {
  constexpr int64_t kPiece = int64_t{1} << 15;
  if (!std::isfinite(*u.scale)) return;
  std::vector<Coefficients> coefficients_of;
  std::vector<int64_t> first;  // piece of each item
  int64_t pieces = 0;
  for (const Item& item : items) {
    coefficients_of.push_back(coefficients(u.rates, *item.step, *u.scale));
    first.push_back(pieces);
    pieces += (item.size + kPiece - 1) / kPiece;
  }
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const size_t i = size_t(std::upper_bound(first.begin(), first.end(), piece) - first.begin()) - 1;
      const int64_t from = (piece - first[i]) * kPiece, to = std::min(from + kPiece, items[i].size);
      table().adamw(u, coefficients_of[i], items[i], int64_t(i), from, to);
    }
  };
  kernels::parallel_rows(pieces, kPiece, run);
}

void check_lists(const Lists& lists, const Device& device) {
  check_list(lists.parameters, "parameters", lists.parameters, device);
  check_list(lists.gradients, "gradients", lists.parameters, device);
  check_list(lists.averages, "averages", lists.parameters, device);
  check_list(lists.average_squares, "average_squares", lists.parameters, device);
  if (!lists.masters.empty()) check_list(lists.masters, "masters", lists.parameters, device);
  check(lists.steps.size() == lists.parameters.size(), kOp, ": expected as many steps as parameters, ",
        lists.parameters.size(), "; got ", lists.steps.size());
  for (const Tensor& step : lists.steps) check_scalar(step, device);
  dtype_of(lists.parameters[0]), dtype_of(lists.averages[0]);
  const auto same = [](const Tensor& a, const Tensor& b, const char* other) {
    check_tensor(a.scalar_type() == b.scalar_type(), a, "in the dtype of ", other, ", ", kernels::dtype_name(b),
                 "; got ", kernels::dtype_name(a), "; cast them");
  };
  same(lists.gradients[0], lists.parameters[0], "parameters");
  same(lists.average_squares[0], lists.averages[0], "averages");
  if (!lists.masters.empty()) kernels::check_dtype(lists.masters[0], kernels::ScalarType::Float);
}

void adamw(const Tensor& scale, Tensors parameters, Tensors gradients, Tensors averages, Tensors average_squares,
           Tensors masters, Tensors steps, double learning_rate, double beta1, double beta2, double eps,
           double weight_decay, std::optional<int64_t> seed) {
  const Device device = device_of(scale);
  check_scalar(scale, device);
  if (parameters.empty()) return;
  const Lists lists{.parameters = std::move(parameters),
                    .gradients = std::move(gradients),
                    .averages = std::move(averages),
                    .average_squares = std::move(average_squares),
                    .masters = std::move(masters),
                    .steps = std::move(steps)};
  check_lists(lists, device);
  const Update u{.dtype = dtype_of(lists.parameters[0]),
                 .state = dtype_of(lists.averages[0]),
                 .has_master = !lists.masters.empty(),
                 .stochastic = seed.has_value(),
                 .seed = uint64_t(seed.value_or(0)),
                 .rates = {learning_rate, beta1, beta2, eps, weight_decay},
                 .scale = static_cast<const float*>(scale.data_ptr())};
  check_forms(u);
  const std::vector<Item> items = items_of(lists);
  kernels::run_on(
      device, [&](auto stream) { cuda::adamw(u, items.data(), int64_t(items.size()), stream); },
      [&] { on_cpu(u, items); });
}

constexpr std::array kOps{
    kernels::op<&adamw>("adamw_(Tensor scale, Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] averages, "
                        "Tensor(c!)[] average_squares, Tensor(d!)[] masters, Tensor[] steps, float learning_rate, "
                        "float beta1, float beta2, float eps, float weight_decay, int? seed) -> ()"),
};
const kernels::Library<kOps> library;

}  // namespace
}  // namespace optimizer
