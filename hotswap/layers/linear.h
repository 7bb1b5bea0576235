// Linear and Embedding: thin, so that a kernel package may take over. What their weight is made of is their own
// business (weight.h): an encoded one has the slot PackedLinear instead of Linear, and no gradient.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/layers/row_adapters.h"
#include "hotswap/layers/slot.h"
#include "hotswap/layers/weight.h"

namespace hotswap {

// linear/1. x: [..., in], weight: [out, in], bias: [out] -> [..., out]
using LinearForward = Tensor(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);

// packed_linear/2: the same by an encoded weight, whose elements are not rounded to x's type; on a GPU they may be
// where x has more rows than its kernel takes (kernels/linear/CARD.md).
using PackedLinearForward = Tensor(const Tensor& x, const Weight& weight, const std::optional<Tensor>& bias);

// A role of linear/1 and packed_linear/2: the index of the maximum of each row of x [rows, n].
struct Argmax {
  static constexpr std::string_view kRole = "argmax";
  // Into out [rows] int64 and, where history is defined, into its row `row` too: [any, rows] int64, [1] int64.
  using Signature = void(const Tensor& out, const Tensor& x, const Tensor& history, const Tensor& row);
};

// A role of linear/1 and packed_linear/2: a token of each row of x [rows, ids], drawn by the settings of its row.
struct Sample {
  static constexpr std::string_view kRole = "sample";
  // settings: [rows, kSampleSettings] float64 on x's device: 1 / temperature, top_k (0: all), top_p, log(min_p), and a
  // number that is uniform in [0, 1) -> [rows] int64
  using Signature = Tensor(const Tensor& x, const Tensor& settings);
};
inline constexpr int64_t kSampleSettings = 5;

class Linear;

namespace stock {
LinearForward linear;
PackedLinearForward packed_linear;  // dequantises the whole weight
}  // namespace stock

// Puts plain weights of layers that read the same x one after another in memory; they stay the tensors that they were.
// Nothing where one is encoded, a shard, or of another type than the others. Waits for no device.
void join_weights(const std::vector<Linear*>& layers);

class Linear : public Module {
 public:
  Linear(int64_t in, int64_t out, bool with_bias, Init weight_init = Init::normal(),
         Init bias_init = Init::constant(0));
  // Its weight is another module's: an output head tied to the embedding. bias: as many rows as that has, 0 for none.
  explicit Linear(Weight& tied, int64_t bias_rows = 0);
  Tensor forward(const Tensor& x) const;  // [..., in] -> [..., out]
  Tensor without_bias(const Tensor& x) const;
  // Of layers that read the same x, what each one's forward() returns: views of one product where join_weights() has
  // put their weights and no gradient is needed. -> [..., out] each
  static std::vector<Tensor> products(const std::vector<const Linear*>& layers, const Tensor& x);
  // Of [rows, out], made of what forward() returned: the index of each row's maximum, [rows] int64.
  Tensor largest(const Tensor& x) const;
  // The same role as the kernel has it; and of the same x, a token of each row. Null where no kernel has the role.
  const std::function<Argmax::Signature>& argmax() const { return slot().op<Argmax>(); }
  const std::function<Sample::Signature>& sample() const { return slot().op<Sample>(); }
  bool bound() const { return forward_.bound() || packed_.bound(); }

  // May a fused op take data() and bias instead of this layer? A plain weight, all of it, and no adapter.
  bool plain() const { return weight.plain() && !adapter_ && !adapts_rows(); }
  // The same where the op takes encoded weights too (fused_products()).
  bool fuses() const { return !weight.shard && !adapter_; }
  const Tensor& data() const { return weight.data; }
  // Is what it does in training, whatever is bound, torch's own product with a weight of that type?
  bool trains_by_torch(at::ScalarType dtype) const {
    return plain() && data().scalar_type() == dtype && (!forward_.bound() || forward_.claims("torch_products"));
  }

  // Changes what forward() returns from now on; tensors_changed() of the model must follow, so that fused ops stay out.
  // Error where its shapes are not this layer's; nullopt removes it.
  void set_adapter(std::optional<Adapter> adapter);
  const std::optional<Adapter>& adapter() const { return adapter_; }
  // Beside those of other rows: forward() computes with it in the rows that have it (row_adapters.h), and in others as
  // without. It does not train.
  void set_row_adapter(int64_t index, Adapter adapter);
  bool has_row_adapters() const { return !row_adapters_.empty(); }
  // Has it adapters of rows, in a forward that has such rows? A fused op may run if not. Whose adapters these are plays
  // no part, so that a row's forward does not depend on the rows beside it.
  bool adapts_rows() const { return has_row_adapters() && RowAdapters::any(); }
  // The adapter becomes a part of the weight and the bias, which are new tensors then. Error (check_merge) where the
  // weight is encoded or a shard, or where the adapter has a bias and this layer none.
  void merge_adapter();
  void check_merge() const;
  void dequantise(at::ScalarType dtype);  // an encoded weight becomes a plain one that may learn
  // Of an adapter that trains: its tensors, as peft names them below the module ("lora_A.weight").
  void each_adapter_tensor(const std::function<void(const std::string& name, Tensor& tensor)>& visit);

 protected:
  void on_tensors_changed() override;  // the slot of the weight's format
  void on_moved(at::Device device) override {
    if (adapter_) adapter_->to(device);
    for (auto& [index, adapter] : row_adapters_) adapter.to(device);
  }

 private:
  Tensor product(const Tensor& x, const std::optional<Tensor>& with) const;  // by the weight, plus that bias
  friend class LinkedProjections;
  bool adapts_in_one_node() const;  // frozen_product() makes all of forward()
  // has_bias: y has this layer's bias in it
  Tensor with_adapters(const Tensor& y, const Tensor& x, bool has_bias) const;
  Tensor adapted(const Adapter& adapter, const Tensor& y, const Tensor& x, bool has_bias) const;
  const SlotBase& slot() const {  // of the weight's format
    if (weight.encoded()) return packed_;
    return forward_;
  }
  Weight own_weight_;
  std::optional<Adapter> adapter_;
  std::map<int64_t, Adapter> row_adapters_;  // by their number

 public:
  Weight& weight;
  Tensor bias;  // [out], or undefined

 private:
  Slot<LinearForward> forward_{this, "Linear", "linear/1", stock::linear};
  Slot<PackedLinearForward> packed_{this, "PackedLinear", "packed_linear/2", stock::packed_linear};
};

// What an op that fuses these layers checks, once a call.
bool all_plain(const std::vector<const Linear*>& layers);

// The same for an op that takes encoded weights, found when tensors change: may it run, and by which formats?
struct FusedProducts {
  bool fuse = true;     // each layer is its weight and nothing beside it
  std::string formats;  // of each layer's weight in order, "q8_0,plain"; empty: all plain
};
// Also writes them into the needs of the op's slot, of which a layer that does not fuse is a feature that no kernel
// has.
FusedProducts fused_products(const std::vector<const Linear*>& layers, SlotNeeds& needs);

class Embedding : public Module {
 public:
  Embedding(int64_t rows, int64_t dim) { own("weight", weight, {rows, dim}); }
  // [...] int64 -> [..., dim]; of an encoded table the rows that ids name are dequantised, to dtype
  Tensor forward(const Tensor& ids, at::ScalarType dtype) const;
  // May a fused op take data() instead of this layer? A plain weight, and no adapter.
  bool plain() const { return weight.plain() && !adapter_ && !adapts_rows(); }
  const Tensor& data() const { return weight.data; }
  void dequantise(at::ScalarType dtype);
  // As Linear's, of the table's transpose: a is [rank, rows], b [dim, rank]. No bias and no gain.
  void set_adapter(std::optional<Adapter> adapter);
  const std::optional<Adapter>& adapter() const { return adapter_; }
  void set_row_adapter(int64_t index, Adapter adapter);
  bool adapts_rows() const { return !row_adapters_.empty() && RowAdapters::any(); }
  void merge_adapter();
  void each_adapter_tensor(const std::function<void(const std::string& name, Tensor& tensor)>& visit);
  Weight weight;  // [rows, dim]

 protected:
  void on_moved(at::Device device) override {
    if (adapter_) adapter_->to(device);
    for (auto& [index, adapter] : row_adapters_) adapter.to(device);
  }

 private:
  Adapter checked(Adapter adapter) const;                         // that of a table, laid out for look-ups
  Tensor rows_of(const Tensor& ids, at::ScalarType dtype) const;  // without the adapter
  std::optional<Adapter> adapter_;
  std::map<int64_t, Adapter> row_adapters_;
};

}  // namespace hotswap
