#include "hotswap/layers/linear.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <set>
#include <utility>

#include "hotswap/base/error.h"
#include "hotswap/layers/adapter.h"

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

Linear::Linear(int64_t in, int64_t out, bool with_bias, Init weight_init, Init bias_init) : weight(own_weight_) {
  own("weight", weight, {out, in}, std::move(weight_init));
  if (with_bias) own("bias", bias, {out}, std::move(bias_init));
  packed_.set_in_use(false);
}

Linear::Linear(Weight& tied, int64_t bias_rows) : weight(tied) {
  share("weight", weight);
  if (bias_rows > 0) own("bias", bias, {bias_rows}, Init::constant(0));
  packed_.set_in_use(false);
}

Tensor Linear::forward(const Tensor& x) const {
  const std::optional<Tensor> with = bias.defined() ? std::optional(bias) : std::nullopt;
  if (adapts_in_one_node()) return frozen_product(x, {weight, with, &*adapter_, training()}).first;
  const Tensor y = product(x, with);
  return with_adapters(y, x, /*has_bias=*/true);
}

Tensor Linear::without_bias(const Tensor& x) const {
  const Tensor y = weight.encoded() ? product(x, std::nullopt) : at::matmul(x, weight.data.transpose(0, 1));
  return with_adapters(y, x, /*has_bias=*/false);
}

Tensor Linear::product(const Tensor& x, const std::optional<Tensor>& with) const {
  const bool learns = at::GradMode::is_enabled() && (training() || x.requires_grad());
  if (weight.encoded()) {
    return learns ? frozen_product(x, {weight, with, nullptr, false}).first : packed_(x, weight, with);
  }
  // A kernel's backward makes the weight's gradient; of a frozen weight it has no reader.
  const bool by_torch = learns && !data().requires_grad() && forward_.bound() && forward_.claims("torch_products");
  return by_torch ? stock::linear(x, data(), with) : forward_(x, data(), with);
}

bool Linear::adapts_in_one_node() const {
  return at::GradMode::is_enabled() && adapter_ && adapter_->trains() && !adapter_->is_dora() &&
         !adapter_->bias.defined() && !weight.shard && (weight.encoded() || !data().requires_grad()) &&
         (!forward_.bound() || forward_.claims("torch_products"));
}

static std::vector<int64_t> keys_of(const std::map<int64_t, Adapter>& adapters) {
  std::vector<int64_t> keys;
  for (const auto& [number, adapter] : adapters) keys.push_back(number);
  return keys;
}

Tensor Linear::with_adapters(const Tensor& y, const Tensor& x, bool has_bias) const {
  if (adapter_) return adapted(*adapter_, y, x, has_bias);
  if (!adapts_rows()) return y;
  return RowAdapters::apply(y, x, keys_of(row_adapters_), [&](int64_t index, const Tensor& own_y, const Tensor& own_x) {
    return adapted(row_adapters_.at(index), own_y, own_x, has_bias);
  });
}

// Of [rows, tokens, in] on a CPU each row is a product of its own: its bits do not depend on the others. A library
// chooses how it adds up by the number of products in a batch, and by where an input begins: copies begin alike.
static Tensor thin_product(const Tensor& x, const Tensor& weight, bool by_row) {
  if (!by_row || x.numel() == 0) return at::linear(x, weight);
  std::vector<Tensor> rows;
  for (int64_t row = 0; row < x.size(0); ++row) rows.push_back(at::linear(x.select(0, row).clone(), weight));
  return at::stack(rows);
}

// In the wider of the two types, rounded once: adapters are float32 beside bfloat16 weights.
Tensor Linear::adapted(const Adapter& adapter, const Tensor& y, const Tensor& x, bool has_bias) const {
  const Adapter with = adapter.magnitude.defined() ? adapter.with_gain(weight) : adapter;
  const bool by_row = adapts_rows() && x.dim() == 3 && x.device().is_cpu();
  const at::ScalarType wide = c10::promoteTypes(y.scalar_type(), with.a.scalar_type());
  const bool drops = training() && with.dropout;
  const Tensor read = dropped(x.to(wide), with, drops);
  const Tensor low = thin_product(read, with.a.to(wide), by_row);    // [..., rank]
  const Tensor change = thin_product(low, with.b.to(wide), by_row);  // [..., out]
  if (with.gain.defined() && drops) {  // as peft: what the gain adds to the base's product is of the dropped x, too
    const Tensor base = at::linear(read, weight.dequantised(wide)), gain = with.gain.to(wide);
    const Tensor scaled = at::add(at::mul(base, at::sub(gain, 1)), at::mul(change, gain), with.scale);
    return at::add(y.to(wide), scaled).to(y.scalar_type());
  }
  const bool subtracts = with.gain.defined() && has_bias && bias.defined();
  Tensor sum = at::add(subtracts ? at::sub(y.to(wide), bias) : y.to(wide), change, with.scale);
  if (with.gain.defined()) sum = at::mul(sum, with.gain.to(wide));
  if (subtracts) sum = at::add(sum, bias);
  if (with.bias.defined()) sum = at::add(sum, with.bias.to(wide));
  return sum.to(y.scalar_type());
}

// `out` and `in`: of the layer.
static void check_shapes(const Adapter& adapter, int64_t out, int64_t in) {
  const Tensor &a = adapter.a, &b = adapter.b;
  const auto fits = [&](const Tensor& t) { return !t.defined() || (t.dim() == 1 && t.size(0) == out); };
  if (a.dim() == 2 && b.dim() == 2 && a.size(1) == in && b.size(0) == out && a.size(0) == b.size(1) &&
      fits(adapter.bias) && fits(adapter.gain)) {
    return;
  }
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("a LoRA adapter with lora_A [rank, ", in, "] and lora_B [", out, ", rank]"),
               .got = cat("lora_A [", join(a.sizes()), "] and lora_B [", join(b.sizes()), "]"),
               .next = "take the adapter that was trained for this layer"});
}

static void check_plain(const Weight& weight, const char* layer) {
  if (weight.plain()) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("an unquantised weight, and all of it, in the ", layer, " that an adapter is merged into"),
               .got = weight.encoded() ? cat("a weight quantised as ", name_of(weight.format)) : std::string("a shard"),
               .next = "dequantise the model with unpack() first"});
}

// A new tensor: the old one may be shared, or be the file's memory.
static Tensor replaced(const Tensor& old, const Tensor& fresh) {
  Tensor tensor = fresh.to(old.scalar_type()).contiguous();
  tensor.set_requires_grad(old.requires_grad());
  return tensor;
}

void Linear::set_adapter(std::optional<Adapter> adapter) {
  if (adapter) check_shapes(*adapter, weight.rows(), weight.columns());
  adapter_ = std::move(adapter);
}

void Linear::set_row_adapter(int64_t index, Adapter adapter) {
  check_shapes(adapter, weight.rows(), weight.columns());
  row_adapters_.insert_or_assign(index, adapter.with_gain(weight));
}

void Linear::check_merge() const {
  if (!adapter_) return;
  check_plain(weight, "Linear");
  if (!adapter_->bias.defined() || bias.defined()) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "a layer with a bias for an adapter with one (lora_bias) to be merged into",
               .got = "a layer without",
               .next = "use the adapter beside the model (--adapter) instead of merging it"});
}

void Linear::merge_adapter() {
  if (!adapter_) return;
  check_merge();
  const at::NoGradGuard no_grad;
  weight.data = replaced(weight.data, adapter_->with_gain(weight).merged(weight.data));
  if (adapter_->bias.defined()) bias = replaced(bias, at::add(bias, adapter_->bias));
  adapter_.reset();
}

void Linear::each_adapter_tensor(const std::function<void(const std::string& name, Tensor& tensor)>& visit) {
  if (!adapter_ || !adapter_->trains()) return;
  visit("lora_A.weight", adapter_->a);
  visit("lora_B.weight", adapter_->b);
  if (adapter_->magnitude.defined()) visit("lora_magnitude_vector", adapter_->magnitude);
}

void Embedding::each_adapter_tensor(const std::function<void(const std::string& name, Tensor& tensor)>& visit) {
  if (!adapter_ || !adapter_->trains()) return;
  visit("lora_embedding_A", adapter_->a);
  visit("lora_embedding_B", adapter_->b);
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

Tensor Linear::largest(const Tensor& x) const {
  if (!argmax()) return at::argmax(x, -1);
  Tensor out = at::empty({x.size(0)}, x.options().dtype(at::kLong));
  argmax()(out, x, {}, {});
  return out;
}

void Linear::on_tensors_changed() {
  forward_.set_in_use(!weight.encoded());
  packed_.set_in_use(weight.encoded());
  packed_.set_needs({.weights = {name_of(weight.format)}});
}

bool all_plain(const std::vector<const Linear*>& layers) {
  return std::all_of(layers.begin(), layers.end(), [](const Linear* layer) { return layer->plain(); });
}

FusedProducts fused_products(const std::vector<const Linear*>& layers, SlotNeeds& needs) {
  constexpr const char* kMoreThanWeights = "products with a LoRA adapter or of a shard";
  FusedProducts found;
  std::set<std::string> encoded;
  for (const Linear* layer : layers) {
    found.fuse = found.fuse && layer->fuses();
    if (layer->weight.encoded()) encoded.insert(name_of(layer->weight.format));
  }
  needs.weights.assign(encoded.begin(), encoded.end());
  std::erase(needs.features, kMoreThanWeights);
  if (!found.fuse) needs.features.emplace_back(kMoreThanWeights);
  for (const Linear* layer : layers) {
    if (!encoded.empty()) found.formats += cat(found.formats.empty() ? "" : ",", name_of(layer->weight.format));
  }
  return found;
}

Tensor Embedding::forward(const Tensor& ids, at::ScalarType dtype) const {
  const Tensor y = rows_of(ids, dtype);
  const auto adapted = [&](const Adapter& adapter, const Tensor& own_y, const Tensor& own_ids, bool by_row) {
    const at::ScalarType wide = c10::promoteTypes(y.scalar_type(), adapter.a.scalar_type());
    const Tensor low = at::embedding(adapter.a.t(), own_ids).to(wide);  // [..., rank]
    return at::add(own_y.to(wide), thin_product(low, adapter.b.to(wide), by_row), adapter.scale).to(y.scalar_type());
  };
  if (adapter_) return adapted(*adapter_, y, ids, /*by_row=*/false);
  if (!adapts_rows()) return y;
  return RowAdapters::apply(y, ids, keys_of(row_adapters_),
                            [&](int64_t index, const Tensor& own_y, const Tensor& own_ids) {
                              return adapted(row_adapters_.at(index), own_y, own_ids, y.device().is_cpu());
                            });
}

Adapter Embedding::checked(Adapter adapter) const {
  check_shapes(adapter, weight.columns(), weight.rows());
  if (adapter.bias.defined() || adapter.is_dora()) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "an adapter of an embedding without bias and magnitude",
                 .got = adapter.is_dora() ? "a magnitude (DoRA)" : "a bias (lora_bias)",
                 .next = "merge the adapter in Python: merge_and_unload() of peft"});
  }
  const bool trains = adapter.trains();
  adapter.a = adapter.a.detach().t().contiguous().t();  // a row's elements side by side: they are looked up
  adapter.a.set_requires_grad(trains);
  return adapter;
}

void Embedding::set_adapter(std::optional<Adapter> adapter) {
  if (adapter) adapter = checked(std::move(*adapter));
  adapter_ = std::move(adapter);
}

void Embedding::set_row_adapter(int64_t index, Adapter adapter) {
  row_adapters_.insert_or_assign(index, checked(std::move(adapter)));
}

void Embedding::merge_adapter() {
  if (!adapter_) return;
  check_plain(weight, "Embedding");
  const at::NoGradGuard no_grad;
  weight.data = replaced(weight.data, adapter_->merged(weight.data.t()).t());
  adapter_.reset();
}

Tensor Embedding::rows_of(const Tensor& ids, at::ScalarType dtype) const {
  if (!weight.encoded()) return at::embedding(weight.data, ids);
  const Tensor flat = ids.reshape({-1});
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(weight.columns());
  const auto rows = weight.with_rows([&](const Tensor& part) { return part.index_select(0, flat); });
  return (rows ? rows->dequantised(dtype) : weight.dequantised(dtype).index_select(0, flat)).view(shape);
}

void Embedding::dequantise(at::ScalarType dtype) { make_plain(weight, dtype); }

}  // namespace hotswap
