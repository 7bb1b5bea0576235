// decoder_layer/1: inference alone. At most 16 rows, and of a layer with such weights what the kernel's op `rows` says;
// positions are read from the device when the op runs, never earlier. A kernel takes one position for all rows; one
// that claims row_positions also takes one for each.
#include "hotswap/layers/decoder_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include "hotswap/kernelize/bind/bind_impl.h"
#include "hotswap/kernelize/bind/example.h"
#include "hotswap/kernelize/bind/fields.h"

namespace hotswap::binding {
namespace {

struct DecoderOps {
  explicit DecoderOps(const LayerOps& layer) : forward(handle(layer.op("forward"))) {
    const std::string op = layer.op("packed");
    if (!op.empty()) packed = handle(op);
  }
  static c10::OperatorHandle handle(const std::string& op) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), "");
  }
  c10::OperatorHandle forward;
  std::optional<c10::OperatorHandle> packed;  // takes the weights' formats
};

const Fields<DecoderLayerParts>& fields() {
  using P = DecoderLayerParts;
  static const Fields<P> all = {{"Tensor input_norm", &P::input_norm},
                                {"Tensor q", &P::q},
                                {"Tensor? q_bias", &P::q_bias},
                                {"Tensor k", &P::k},
                                {"Tensor? k_bias", &P::k_bias},
                                {"Tensor v", &P::v},
                                {"Tensor? v_bias", &P::v_bias},
                                {"Tensor? q_norm", &P::q_norm},
                                {"Tensor? k_norm", &P::k_norm},
                                {"Tensor cos", &P::cos},
                                {"Tensor sin", &P::sin},
                                {"Tensor(a!) k_cache", &P::k_cache},
                                {"Tensor(b!) v_cache", &P::v_cache},
                                {"Tensor position", &P::position},
                                {"Tensor o", &P::o},
                                {"Tensor? o_bias", &P::o_bias},
                                {"Tensor post_norm", &P::post_norm},
                                {"Tensor gate", &P::gate},
                                {"Tensor? gate_bias", &P::gate_bias},
                                {"Tensor up", &P::up},
                                {"Tensor? up_bias", &P::up_bias},
                                {"Tensor down", &P::down},
                                {"Tensor? down_bias", &P::down_bias},
                                {"float eps", &P::eps},
                                {"float head_eps", &P::head_eps},
                                {"float scale", &P::scale},
                                {"int window", &P::window},
                                {"str activation", &P::activation}};
  return all;
}

// prefetch: whether the kernel may read weights before what ran on the device right before it has ended. formats: for
// the op that takes them.
Values arguments_of(const Tensor& x, const DecoderLayerParts& parts, bool prefetch, bool formats = false) {
  Values values;
  values.reserve(fields().size() + 3);
  values.emplace_back(x);
  push_fields(values, parts, fields());
  if (formats) values.emplace_back(parts.formats);
  values.emplace_back(prefetch);
  return values;
}

// arguments_of()'s other way round, for examples, whose tensors may be in another dtype by then.
DecoderLayerParts parts_of(const Values& values) {
  DecoderLayerParts parts;
  size_t next = 1;
  take_fields(values, next, parts, fields());
  parts.k_cache = parts.k_cache.clone();  // an example may run again
  parts.v_cache = parts.v_cache.clone();
  return parts;
}

// So many rows are the kernel's; more go through the layer's parts.
int64_t max_rows(const LayerOps& layer, const DecoderLayerParts& p) {
  using T = const Tensor&;
  if (!p.formats.empty()) {
    const auto op = typed_op<int64_t(T, T, T, T, T, T, T, T, T, std::string)>(layer, "packed_rows");
    if (op) return below_autograd(*op, p.input_norm, p.q, p.k, p.v, p.o, p.post_norm, p.gate, p.up, p.down, p.formats);
  }
  const auto op = typed_op<int64_t(T, T, T, T, T, T, T, T, T)>(layer, "rows");
  if (!op) return kMaxDecoderRows;
  return below_autograd(*op, p.input_norm, p.q, p.k, p.v, p.o, p.post_norm, p.gate, p.up, p.down);
}

Result<std::string> rows_served(const SlotBase& slot, const LayerOps& layer) {
  const auto* in_layer = dynamic_cast<const DecoderLayerSlot*>(&slot);
  if (in_layer == nullptr) return std::string();
  const int64_t rows = max_rows(layer, in_layer->weights());
  if (rows < 1) return Reason{"serves no batch with weights of these widths and dtypes"};
  return cat("up to ", rows, " rows, more by its parts");
}

void bind_decoder_layer(SlotBase& slot, const LayerOps& layer) {
  // In a model nothing of a forward writes weights, and before the first layer something of it ran: the embedding. The
  // weights of an example may be new.
  auto* in_layer = dynamic_cast<DecoderLayerSlot*>(&slot);
  const bool prefetch = in_layer != nullptr;
  if (in_layer != nullptr) {
    in_layer->set_max_rows(max_rows(layer, in_layer->weights()));
    in_layer->set_row_positions(layer.claims("row_positions"));
    using T = const Tensor&;
    if (const auto op = typed_op<std::tuple<Tensor, Tensor, Tensor>(T, T, T, T)>(layer, "inputs")) {
      in_layer->inputs = [op = *op](T ids, T embedding, T rope, T position) {
        auto [x, row, before] = below_autograd(op, ids, embedding, rope, position);
        return DecoderInputs{std::move(x), std::move(row), std::move(before)};
      };
    }
    using Opt = const OptTensor&;
    if (const auto op = typed_op<Tensor(T, T, T, Opt, Opt, T, T, T, T, T, double)>(layer, "heads")) {
      in_layer->heads = [op = *op](const DecoderHeads& h) {
        const auto norm = [](const Tensor& t) { return t.defined() ? OptTensor(t) : std::nullopt; };
        return below_autograd(op, h.q, h.k, h.v, norm(h.q_norm), norm(h.k_norm), h.cos, h.sin, h.k_cache, h.v_cache,
                              h.position, h.head_eps);
      };
    }
  }
  const auto* ops = ops_of<DecoderOps>(layer);
  bind_slot<DecoderLayerForward>(slot, [ops, prefetch](const Tensor& x, const DecoderLayerParts& parts) {
    const bool named = !parts.formats.empty() && ops->packed.has_value();
    Values stack = arguments_of(x, parts, prefetch, named);
    const at::AutoDispatchBelowADInplaceOrView guard;
    (named ? *ops->packed : ops->forward).callBoxed(&stack);
    return stack[0].toTensor();
  });
}

// A layer with four query heads a key head, in the middle of its cache.
Result<Example> decoder_example(const std::string&, const ExampleSize& size) {
  constexpr int64_t kHeadDim = 64, kCapacity = 128;
  const int64_t rows = std::min(size.rows, kMaxDecoderRows), hidden = size.dim, ffn = 3 * hidden;
  const int64_t kv_heads = std::max<int64_t>(1, hidden / kHeadDim / 4), heads = 4 * kv_heads;
  const auto weight = [](int64_t out, int64_t in) { return random({out, in}) * std::pow(double(in), -0.5); };
  const Tensor half = random({1, 1, kHeadDim / 2}), angle = at::cat({half, half}, -1);
  const DecoderLayerParts parts{.input_norm = random({hidden}),
                                .q = weight(heads * kHeadDim, hidden),
                                .k = weight(kv_heads * kHeadDim, hidden),
                                .v = weight(kv_heads * kHeadDim, hidden),
                                .cos = angle.cos(),
                                .sin = angle.sin(),
                                .k_cache = random({rows, kCapacity, kv_heads, kHeadDim}),
                                .v_cache = random({rows, kCapacity, kv_heads, kHeadDim}),
                                .position = at::full({1}, kCapacity / 2, at::kLong),
                                .o = weight(hidden, heads * kHeadDim),
                                .post_norm = random({hidden}),
                                .gate = weight(ffn, hidden),
                                .up = weight(ffn, hidden),
                                .down = weight(hidden, ffn),
                                .scale = 0.125};
  Example example;
  example.shape = cat(rows, "x", hidden, ", ", heads, "+", kv_heads, "x", kHeadDim, ", ", ffn);
  example.arguments = arguments_of(random({rows, 1, hidden}), parts, /*prefetch=*/false);
  example.stock = [](const Values& a) { return Tensors{stock::decoder_layer(a[0].toTensor(), parts_of(a))}; };
  example.exact = example.stock;
  example.bound = [](const LayerOps& layer) -> ExampleForward {
    const auto module = std::make_shared<BoundLayer<DecoderLayerForward>>(layer, stock::decoder_layer);
    return [module](const Values& a) { return Tensors{module->slot(a[0].toTensor(), parts_of(a))}; };
  };
  return example;
}

}  // namespace

std::vector<Contract> decoder_layer_contracts() {
  return {
      {"decoder_layer/1",
       {{"forward", "(Tensor x, " + schema_of(fields()) + ", bool weights_are_old=False) -> Tensor"},
        {"inputs",
         "(Tensor ids, Tensor embedding, Tensor rope, Tensor(a!) length) -> (Tensor x, Tensor row, Tensor place)"},
        {"heads",
         "(Tensor q, Tensor k, Tensor v, Tensor? q_norm, Tensor? k_norm, Tensor cos, Tensor sin, Tensor(a!) k_cache, "
         "Tensor(b!) v_cache, Tensor position, float head_eps) -> Tensor"},
        {"rows",
         "(Tensor input_norm, Tensor q, Tensor k, Tensor v, Tensor o, Tensor post_norm, Tensor gate, Tensor up, "
         "Tensor down) -> int"},
        {"packed",
         optional_role("(Tensor x, " + schema_of(fields()) + ", str formats, bool weights_are_old=False) -> Tensor")},
        {"packed_rows",
         optional_role("(Tensor input_norm, Tensor q, Tensor k, Tensor v, Tensor o, Tensor post_norm, Tensor gate, "
                       "Tensor up, Tensor down, str formats) -> int")}},
       bind_decoder_layer,
       decoder_example,
       {.rows = 1, .dim = 512},
       {.rows = 1, .dim = 4096},
       {"bias", "gelu_tanh", "packed", "qk_norm", "row_positions", "silu", "window"},
       {"head_dims", "group_sizes"},
       /*optional=*/true,
       rows_served}};
}

}  // namespace hotswap::binding
