// The router of a mixture of experts: which experts a token goes to, and with what weight.
#pragma once

#include "hotswap/layers/experts.h"
#include "hotswap/layers/linear.h"

namespace hotswap {

// What becomes of the logits, and whether before the choice or after it. kSparseMixer: sparse_mixer.h, of two experts a
// token; of the options below it reads only `nearness`.
enum class Scoring { kSoftmax, kSigmoid, kSoftmaxOfChosen, kSigmoidOfChosen, kSparseMixer };

struct RouterOptions {
  int64_t dim, experts, top_k;
  Scoring scoring = Scoring::kSoftmax;
  bool bias = false;                   // a parameter "bias", added to the logits
  bool correction = false;             // a buffer "e_score_correction_bias", added to the scores for the choice alone
  int64_t groups = 1, top_groups = 1;  // only experts of the best groups
  int64_t group_votes = 2;             // n: a group's score is the sum of its n best
  bool sorted = true;                  // the experts of a token, by their scores: in that order they are added up
  bool renormalize = false;            // weights / (their sum + eps)
  double eps = 0, scale = 1;           // scale: of the weights, at the end
  bool float32_logits = false;         // else in the tokens' dtype
  bool widens_logits = false;          // made in the tokens' dtype, then float32
  bool float32_weights = false;        // else in the dtype in which logits are made
  double nearness = 0;                 // see sparse_mixer()
};

class Router : public Module {
 public:
  explicit Router(const RouterOptions& options);
  struct Result {
    Routing routing;
    Tensor logits;  // [tokens, experts]
  };
  Result route(const Tensor& x) const;  // [tokens, dim]

 private:
  Tensor chosen(const Tensor& scores) const;  // [tokens, experts] -> [tokens, top_k] int64
  RouterOptions options_;
  Tensor weight_, bias_;    // [experts, dim], [experts] or undefined
  Tensor correction_bias_;  // [experts], or undefined
  Slot<LinearForward> linear_{this, "Linear", "linear/1", stock::linear};
};

// How unevenly tokens are spread over experts, 1 where they are even and top_k is 1; added to the loss in training.
// logits: [batch * time, experts] of each layer; attention_mask: [batch, time], or undefined. -> scalar float32
Tensor load_balancing_loss(const std::vector<Tensor>& logits, int64_t top_k, const Tensor& attention_mask);

}  // namespace hotswap
