#include "hotswap/layers/linear.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <set>
#include <utility>

#include "hotswap/base/error.h"

namespace hotswap {

Tensor stock::linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return at::linear(x, weight, bias);
}

// With more of float32 than x has, as kernels multiply: in x's own type only where that is float64.
Tensor stock::packed_linear(const Tensor& x, const Weight& weight, const std::optional<Tensor>& bias) {
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const std::optional<Tensor> wide_bias = bias && bias->defined() ? std::optional(bias->to(wide)) : std::nullopt;
  return at::linear(x.to(wide), weight.dequantised(wide), wide_bias).to(x.scalar_type());
}

Tensor stock::largest(const Tensor& x, const Choice& to) {
  if (!to.place.defined()) return at::argmax(x, -1);
  Tensor place = to.place;
  at::argmax_out(place, x, -1);
  if (to.said.defined()) to.said.index_copy_(0, to.at, place.unsqueeze(0));
  return place;
}

// Plain from now on, and trained; nothing where it is plain already.
static void make_plain(Weight& weight, at::ScalarType dtype) {
  if (!weight.encoded()) return;
  weight = {.data = weight.dequantised(dtype), .shard = weight.shard};
  weight.data.set_requires_grad(true);
}

Linear::Linear(int64_t in, int64_t out, bool with_bias, Init weight_init, Init bias_init) : weight(own_weight_) {
  own("weight", weight, {out, in}, std::move(weight_init));
  if (with_bias) own("bias", bias, {out}, std::move(bias_init));
  packed_.set_in_use(false);
}

Linear::Linear(Weight& tied) : weight(tied) {
  share("weight", weight);
  packed_.set_in_use(false);
}

Tensor Linear::forward(const Tensor& x) const {
  const std::optional<Tensor> with = bias.defined() ? std::optional(bias) : std::nullopt;
  Tensor y = weight.encoded() ? packed_(x, weight, with) : forward_(x, weight.data, with);
  return adapter_ ? adapted(std::move(y), x) : y;
}

Tensor Linear::without_bias(const Tensor& x) const {
  Tensor y = weight.encoded() ? packed_(x, weight, std::nullopt) : at::matmul(x, weight.data.transpose(0, 1));
  return adapter_ ? adapted(std::move(y), x) : y;
}

// In the wider of the two types, rounded once: adapters are float32 beside bfloat16 weights.
Tensor Linear::adapted(Tensor y, const Tensor& x) const {
  const at::ScalarType wide = c10::promoteTypes(y.scalar_type(), adapter_->a.scalar_type());
  const Tensor low = at::linear(x.to(wide), adapter_->a.to(wide));  // [..., rank]
  return at::add(y.to(wide), at::linear(low, adapter_->b.to(wide)), adapter_->scale).to(y.scalar_type());
}

void Linear::set_adapter(std::optional<Adapter> adapter) {
  if (adapter) {
    const Tensor &a = adapter->a, &b = adapter->b;
    if (a.dim() != 2 || b.dim() != 2 || a.size(1) != weight.columns() || b.size(0) != weight.rows() ||
        a.size(0) != b.size(1)) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("an adapter a [rank, ", weight.columns(), "], b [", weight.rows(), ", rank]"),
                   .got = cat("a [", join(a.sizes()), "], b [", join(b.sizes()), "]"),
                   .next = "take the adapter that was trained for this layer"});
    }
  }
  adapter_ = std::move(adapter);
}

// Whether `next` begins in memory where `t` ends.
static bool follows(const Tensor& t, const Tensor& next) {
  return t.is_contiguous() && next.is_contiguous() && next.is_alias_of(t) && t.scalar_type() == next.scalar_type() &&
         t.size(1) == next.size(1) &&
         static_cast<const char*>(t.const_data_ptr()) + t.nbytes() == next.const_data_ptr();
}

std::vector<Tensor> Linear::products(const std::vector<const Linear*>& layers, const Tensor& x) {
  bool joint = !at::GradMode::is_enabled() && all_plain(layers);
  int64_t outs = 0;
  for (size_t i = 0; i < layers.size() && joint; ++i) {
    joint = !layers[i]->bias.defined() && (i == 0 || follows(layers[i - 1]->data(), layers[i]->data()));
    outs += layers[i]->data().size(0);
  }
  std::vector<Tensor> made;
  if (!joint) {
    for (const Linear* layer : layers) made.push_back(layer->forward(x));
    return made;
  }
  const Tensor& first = layers.front()->data();
  const Tensor y =
      layers.front()->forward_(x, first.as_strided({outs, first.size(1)}, {first.size(1), 1}), std::nullopt);
  int64_t begin = 0;
  for (const Linear* layer : layers) {
    made.push_back(y.narrow(-1, begin, layer->data().size(0)));
    begin += layer->data().size(0);
  }
  return made;
}

void join_weights(const std::vector<Linear*>& layers) {
  std::vector<Tensor> weights;
  bool joined = true;
  for (const Linear* layer : layers) {
    if (!layer->weight.plain() || layer->data().scalar_type() != layers.front()->data().scalar_type()) return;
    joined = joined && (weights.empty() || follows(weights.back(), layer->data()));
    weights.push_back(layer->data());
  }
  if (joined) return;
  const at::NoGradGuard no_grad;
  const Tensor all = at::cat(weights, 0);
  int64_t begin = 0;
  for (Tensor& weight : weights) {
    const int64_t rows = weight.size(0);
    weight.set_data(all.narrow(0, begin, rows));
    begin += rows;
  }
}

void Linear::dequantise(at::ScalarType dtype) { make_plain(weight, dtype); }

Tensor Linear::largest(const Tensor& x, Choice to) const {
  const auto& argmax = forward_.op<Argmax>();
  if (!argmax) return stock::largest(x, to);
  if (!to.place.defined()) to.place = at::empty({x.size(0)}, x.options().dtype(at::kLong));
  argmax(to, x);
  return to.place;
}

void Linear::on_tensors_changed() {
  forward_.set_in_use(!weight.encoded());
  packed_.set_in_use(weight.encoded());
  packed_.set_needs({.weights = {name_of(weight.format)}});
}

bool all_plain(const std::vector<const Linear*>& layers) {
  return std::all_of(layers.begin(), layers.end(), [](const Linear* layer) { return layer->plain(); });
}

bool all_fuse(const std::vector<const Linear*>& layers) {
  return std::all_of(layers.begin(), layers.end(), [](const Linear* layer) { return layer->fuses(); });
}

std::vector<std::string> formats_of(const std::vector<const Linear*>& layers) {
  std::set<std::string> formats;
  for (const Linear* layer : layers) {
    if (layer->weight.encoded()) formats.insert(name_of(layer->weight.format));
  }
  return {formats.begin(), formats.end()};
}

Tensor Embedding::forward(const Tensor& ids, at::ScalarType dtype) const {
  if (!weight.encoded()) return at::embedding(weight.data, ids);
  const Tensor flat = ids.reshape({-1});
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(weight.columns());
  const auto rows = weight.with_rows([&](const Tensor& part) { return part.index_select(0, flat); });
  return (rows ? rows->dequantised(dtype) : weight.dequantised(dtype).index_select(0, flat)).view(shape);
}

void Embedding::dequantise(at::ScalarType dtype) { make_plain(weight, dtype); }

}  // namespace hotswap
