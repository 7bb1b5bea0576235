// Steps of one sequence with guessed tokens, whose logits decide as those of single steps do.
//
// Several rows in one forward may be summed up in another order than one, and two tokens that are about equally
// probable are then swapped. Of each number of rows the first steps are run twice, in one forward and token by token:
// where the bits are the same, later ones are trusted. Where they are not even for two rows (torch's own products),
// logits of several rows are near ones, and repeat() makes the right ones where a choice is too close: it goes back to
// the last token whose keys are right, and runs what follows token by token. No token is repeated twice, so that the
// worst that wrong guesses and close choices cost is a forward each.
#pragma once

#include <map>
#include <vector>

#include "hotswap/engine/kv_pool.h"
#include "hotswap/models/causal_lm.h"

namespace hotswap {

class VerifiedSteps {
 public:
  // capacity: of steps of static shape, in which single tokens then run (engine/uniform_step.h); 0: they are not.
  VerifiedSteps(CausalLM& model, KvPool& pool, int64_t capacity = 0);

  struct Logits {
    Tensor rows;  // [rows, vocab]: after each of the tokens, or after the first ones, where the others did not run
    bool exact;   // the bits of single steps
  };
  // All tokens of a text, from its beginning on; what was there is forgotten. -> logits after the last one
  Logits begin(const std::vector<int64_t>& text);
  // tokens: the last one that is certain, and guesses after it; at most max_rows().
  Logits run(const std::vector<int64_t>& tokens);
  // Of a step with as many rows as that or fewer: those that are to be had with the right bits, if there are any.
  int64_t max_rows(int64_t tokens) const;
  void keep(int64_t length);  // forgets the tokens from `length` on
  // text: all tokens. -> the exact logits after its last one, [1, vocab]
  Tensor repeat(const std::vector<int64_t>& text);
  // How far near logits may be off, as a share of the greatest: chosen with room above a few roundings, not proved
  // (docs/determinism.md).
  static double rounding(at::ScalarType dtype);

  int64_t forwards() const { return forwards_; }
  int64_t repeated_tokens() const { return repeated_; }

 private:
  enum class Rows : uint8_t { kUnknown, kExact, kNear };
  Tensor in_one_forward(const std::vector<int64_t>& tokens);
  Tensor single(int64_t token);
  Logits compared(const std::vector<int64_t>& tokens);
  Rows known(int64_t rows) const;

  CausalLM& model_;
  KvPool& pool_;
  int64_t capacity_, sequence_;
  int64_t exact_ = 0;  // tokens whose keys and values have the bits of single steps
  std::map<int64_t, Rows> known_;
  int64_t forwards_ = 0, repeated_ = 0;
};

}  // namespace hotswap
