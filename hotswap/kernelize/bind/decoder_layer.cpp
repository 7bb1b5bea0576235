// decoder_layer/1: inference alone. At most 16 rows, and of a layer with such weights what the kernel's op `rows` says;
// positions are read from the device when the op runs, never earlier. A kernel takes one position for all rows; one
// that claims row_positions also takes one for each.
#include "hotswap/layers/decoder_layer.h"

#include "hotswap/kernelize/bind/bind_impl.h"
#include "hotswap/kernelize/contract/arguments.h"

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

// How many rows the kernel serves of a layer with these weights; more go through the layer's parts.
int64_t max_rows(const LayerOps& layer, const SlotBase& slot) {
  using T = const Tensor&;
  const auto op = typed_op<int64_t(T, T, T, T, T, T, T, T, T)>(layer, "rows");
  if (!op || !slot.has_weights()) return kMaxDecoderRows;
  const auto w = slot.weights();
  const auto packed = typed_op<int64_t(T, T, T, T, T, T, T, T, T, std::string)>(layer, "packed_rows");
  if (packed && !w.formats.empty()) {
    return below_autograd(*packed, w.at("input_norm"), w.at("q"), w.at("k"), w.at("v"), w.at("o"), w.at("post_norm"),
                          w.at("gate"), w.at("up"), w.at("down"), w.formats);
  }
  return below_autograd(*op, w.at("input_norm"), w.at("q"), w.at("k"), w.at("v"), w.at("o"), w.at("post_norm"),
                        w.at("gate"), w.at("up"), w.at("down"));
}

Result<std::string> rows_served(const SlotBase& slot, const LayerOps& layer) {
  if (!slot.has_weights()) return std::string();
  const int64_t rows = max_rows(layer, slot);
  if (rows < 1) return Reason{"serves no batch with weights of these widths and dtypes"};
  return cat("up to ", rows, " rows, more by its parts");
}

void bind_roles(SlotBase& slot, const LayerOps& layer) {
  using T = const Tensor&;
  using Opt = const OptTensor&;
  slot.bind_op<ServedRows>([rows = max_rows(layer, slot)] { return rows; });
  if (layer.claims(kRowPositions)) slot.set_claims({kRowPositions});
  if (const auto op = typed_op<std::tuple<Tensor, Tensor, Tensor>(T, T, T, T)>(layer, "inputs")) {
    slot.bind_op<BeginStep>([op = *op](T ids, T embedding, T rope, T position) {
      auto [x, row, before] = below_autograd(op, ids, embedding, rope, position);
      return DecoderInputs{std::move(x), std::move(row), std::move(before)};
    });
  }
  if (const auto op = typed_op<Tensor(T, T, T, Opt, Opt, T, T, T, T, T, double)>(layer, "heads")) {
    slot.bind_op<WriteHeads>([op = *op](const DecoderHeads& h) {
      return below_autograd(op, h.q, h.k, h.v, given(h.q_norm), given(h.k_norm), h.cos, h.sin, h.k_cache, h.v_cache,
                            h.position, h.head_eps);
    });
  }
}

void bind_decoder_layer(SlotBase& slot, const LayerOps& layer) {
  // Whether the kernel may read weights before what ran on the device right before it has ended. In a model no forward
  // writes weights, and before the first layer another op of it ran: the embedding. The weights of an example may be
  // new.
  const bool prefetch = slot.has_weights();
  const auto* ops = ops_of<DecoderOps>(layer);
  bind_slot<DecoderLayerForward>(slot, [ops, prefetch](const Tensor& x, const DecoderLayerParts& parts) {
    const bool named = !parts.formats.empty() && ops->packed.has_value();
    Values stack;
    stack.reserve(decoder_layer_fields().size() + 3);
    stack.emplace_back(x);
    push(stack, parts);
    if (named) stack.emplace_back(parts.formats);
    stack.emplace_back(prefetch);
    const at::AutoDispatchBelowADInplaceOrView guard;
    (named ? *ops->packed : ops->forward).callBoxed(&stack);
    return stack[0].toTensor();
  });
  bind_roles(slot, layer);
}

}  // namespace

std::vector<Contract> decoder_layer_contracts() {
  return {
      {"decoder_layer/1",
       {{"forward", "(Tensor x, " + schema_of(decoder_layer_fields()) + ", bool weights_are_old=False) -> Tensor"},
        {"inputs",
         "(Tensor ids, Tensor embedding, Tensor rope, Tensor(a!) length) -> (Tensor x, Tensor row, Tensor place)"},
        {"heads",
         "(Tensor q, Tensor k, Tensor v, Tensor? q_norm, Tensor? k_norm, Tensor cos, Tensor sin, Tensor(a!) k_cache, "
         "Tensor(b!) v_cache, Tensor position, float head_eps) -> Tensor"},
        {"rows",
         "(Tensor input_norm, Tensor q, Tensor k, Tensor v, Tensor o, Tensor post_norm, Tensor gate, Tensor up, "
         "Tensor down) -> int"},
        {"packed", optional_role("(Tensor x, " + schema_of(decoder_layer_fields()) +
                                 ", str formats, bool prefetch_weights=False) -> Tensor")},
        {"packed_rows",
         optional_role("(Tensor input_norm, Tensor q, Tensor k, Tensor v, Tensor o, Tensor post_norm, Tensor gate, "
                       "Tensor up, Tensor down, str formats) -> int")}},
       bind_decoder_layer,
       {"bias", "gelu_tanh", "packed", "qk_norm", "row_positions", "silu", "window"},
       {"head_dims", "group_sizes"},
       /*optional=*/true,
       rows_served}};
}

}  // namespace hotswap::binding
