// What it takes that a row's logits have their bits whatever else runs: found by running steps of the model.
#pragma once

#include <string>

#include "hotswap/engine/step_runner.h"

namespace hotswap {

// A ForwardGroups::decode_rows, max_rows or one of a few smaller ones, with which a row's logits have the bits that
// they have in a forward of their own. Measured by running steps of this model: a few forwards of one token.
int64_t max_exact_decode_rows(CausalLM& model, int64_t max_rows);

struct WholeSteps {
  std::string why_not;   // "": rows have the same bits by themselves and among others
  double ms = 0;         // of a step of all rows
  double single_ms = 0;  // of a step of one row where its shape is its own
};
// Of steps with ForwardGroups::whole_steps on a GPU. Their keys are few here: a step that reads more takes longer, of
// each kind.
WholeSteps probe_whole_steps(CausalLM& model, int64_t rows);

}  // namespace hotswap
