// The next tokens of many sequences in one draw, each with settings of its own, on the logits' device: nothing waits
// for the host, so that the drawn ids may feed the next step before the host has read them. A token is what RowSampler
// draws from the same logits on the host, but for the last bit of a GPU's exp: a function of the row's logits, its
// settings and its position, whatever else is in the batch. Weights are integers (row_sampler.h): sums of them do not
// depend on the order in which a device adds.
//
//   probability of id = w[id] / sum(w),  w = round(2^44 exp(s - max(s))) of the ids that top_k, top_p and min_p keep
//   s = (logits, penalised, + logit_bias; minus infinity where a constraint does not allow the id) / temperature
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "hotswap/engine/device_copy.h"
#include "hotswap/engine/row_sampler.h"
#include "hotswap/layers/linear.h"

namespace hotswap {

using at::Tensor;

// A sequence that gets a token.
struct DrawRow {
  int64_t sequence = 0;  // tokens are counted for its penalties until forget()
  const RowSampling* settings = nullptr;
  std::span<const int64_t> tokens;  // of the prompt and new ones, those that the host knows; at the first draw all
  int64_t prompt_length = 0;
  int64_t length = 0;        // tokens so far, with those that only the device knows
  bool constrained = false;  // whether BatchSampler::next() has words of it
};

// How often each sequence has had each token, on the device.
class TokenCounts {
 public:
  using Rows = std::vector<const DrawRow*>;
  // [rows, vocab] int32: twice the times that it is a new one, and 1 more where the prompt has it.
  Tensor of(const Rows& rows, int64_t vocab, at::Device device);
  void add(const Rows& rows, const Tensor& tokens);  // one new token each, [rows] int64
  void forget(int64_t sequence);

 private:
  int64_t slot(const DrawRow& row, int64_t vocab, at::Device device);
  void grow(int64_t vocab, at::Device device);
  Tensor slots(const Rows& rows) const;  // [rows] int64
  Tensor all_;                           // [slots, vocab] int32
  std::map<int64_t, int64_t> slot_of_;   // by sequence
  std::vector<int64_t> free_;
};

class BatchSampler {
 public:
  // head: of the model whose logits they are. Without one, or where its kernel does not draw, by torch's operations, of
  // which top_p needs many.
  explicit BatchSampler(const Linear* head = nullptr) : head_(head) {}  // which outlives it

  // Whether the device draws by these settings: else the host has to read the logits, to report from them.
  static bool draws_by(const RowSampling& settings) { return !settings.logprobs; }

  // logits: [rows, vocab] any floating type, left as they are. allowed: of each constrained row, in their order, the
  // words that its TokenConstraint wrote, [constrained rows, constraint_words(vocab)] int32 on the host, as staged()
  // has it. -> [rows] int64 on the logits' device
  Tensor next(const std::vector<DrawRow>& rows, const Tensor& logits, const Tensor& allowed = {});
  void forget(int64_t sequence) { counts_.forget(sequence); }

 private:
  const Linear* head_;
  CopyBeside copy_;
  Tensor allowed_scores(const std::vector<const DrawRow*>& rows, const Tensor& scores, const Tensor& allowed);
  TokenCounts counts_;   // of those with penalties
  Tensor bits_of_byte_;  // [256] int64 on the logits' device: of each byte its bits as eight bool, lowest first
};

}  // namespace hotswap
