// Experts: many feed-forward parts of one shape, of which each token goes through a few.
//
//   Experts experts({.experts = 8, .dim = 64, .hidden = 96}, {.activation = "swiglu"});
//   Tensor y = experts.forward(x, router.route(x).routing);
#pragma once

#include <limits>
#include <string>

#include "hotswap/layers/slot.h"
#include "hotswap/layers/weight.h"

namespace hotswap {

// Where each token goes, and how much each of its experts counts.
struct Routing {
  Tensor index;    // [tokens, k] int64 or int32; below 0, or not below the number of experts: none, it adds nothing
  Tensor weights;  // [tokens, k], float32 or of the tokens' dtype
};

// n is 2 * hidden where the activation has a gate, else hidden. An expert gives down(activation(up(x))).
struct ExpertWeights {
  Tensor up;              // [experts, n, dim]; transposed: [experts, dim, n]
  Tensor up_bias = {};    // [experts, n], or undefined
  Tensor down;            // [experts, dim, hidden]; transposed: [experts, hidden, dim]
  Tensor down_bias = {};  // [experts, dim], or undefined
};

struct ExpertsOptions {
  // With g the gate's half of up(x) and u the other:
  //   swiglu silu(g) u   geglu_tanh, geglu, reglu: the same with tanh-gelu, gelu, relu
  //   swiglu_oai (u + 1) g sigmoid(alpha g), swiglu_clamped silu(g) u: both with g at most limit, u in [-limit, limit]
  //   relu2, silu, gelu_tanh, gelu: no gate
  std::string activation = "swiglu";
  double alpha = 1, limit = std::numeric_limits<double>::infinity();
  bool interleaved = false;  // gate and up in turns along n; else the gate first
  bool transposed = false;
  bool scale_input = false;  // a token's weight multiplies what its expert reads; else what it gives
};

// moe/1. x: [tokens, dim] -> [tokens, dim]
using ExpertsForward = Tensor(const Tensor& x, const Routing& routing, const ExpertWeights& weights,
                              const ExpertsOptions& options);

// The same of weights of which one or both are encoded, their rows always [n, dim] and [dim, hidden]. A plain one is as
// ExpertWeights has it.
struct PackedExpertWeights {
  Weight up;
  Tensor up_bias = {};
  Weight down;
  Tensor down_bias = {};
};

// packed_moe/1: elements of the weights are not rounded to x's type; of each expert up(x), its activation and what it
// gives are rounded once.
using PackedExpertsForward = Tensor(const Tensor& x, const Routing& routing, const PackedExpertWeights& weights,
                                    const ExpertsOptions& options);

namespace stock {
// One product for each expert that has tokens; it reads on the host how many each has.
ExpertsForward experts;
PackedExpertsForward packed_experts;  // dequantises the weights of one expert that has tokens, part by part
}  // namespace stock

// The activation of experts whose gate goes through this one ("silu": swiglu). Error naming the known ones when there
// is none; `where` says whose value it was.
std::string gated_by(const std::string& hidden_act, const std::string& where);

struct ExpertsShape {
  int64_t experts, dim, hidden;
  bool bias = false;
};

class Experts : public Module {
 public:
  // `layer`: the name in a kernel mapping.
  Experts(const ExpertsShape& shape, ExpertsOptions options, std::string layer = "Experts");
  Tensor forward(const Tensor& x, const Routing& routing) const;  // [tokens, dim] -> [tokens, dim]
  bool packed() const { return weights_.up.encoded() || weights_.down.encoded(); }
  const std::string& layer() const { return forward_.layer(); }  // of plain weights
  void dequantise(at::ScalarType dtype);                         // encoded weights become plain ones that may learn

 protected:
  void on_tensors_changed() override;  // the slot of the weights' formats

 private:
  ExpertsOptions options_;
  PackedExpertWeights weights_;
  Slot<ExpertsForward> forward_;
  Slot<PackedExpertsForward> packed_{this, "PackedExperts", "packed_moe/1", stock::packed_experts};
};

}  // namespace hotswap
