#include "hotswap/cli/score_rows.h"

#include <ATen/core/grad_mode.h>

namespace hotswap {

Score score_rows(CausalLM& model, const Rows& rows, std::vector<Tensor>* logits) {
  const at::NoGradGuard no_grad;
  Score result;
  double sum = 0, predictions = 0;
  for (const auto& row : rows) {
    const Tensor ids = row_tensor(row).to(model.device());
    const auto out = model({.input_ids = ids, .labels = ids, .need_logits = logits != nullptr});
    if (logits != nullptr) logits->push_back(out.logits.to(at::kCPU, at::kFloat));
    const auto count = static_cast<double>(row.size() - 1);
    sum += out.loss.item<double>() * count;
    predictions += count;
    result.tokens += static_cast<int64_t>(row.size());
  }
  result.loss = sum / predictions;
  return result;
}

}  // namespace hotswap
