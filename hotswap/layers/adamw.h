// The update of AdamW, as a layer has a forward: a kernel may run instead.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hotswap/layers/slot.h"

namespace hotswap {

// Tensors of one device that are updated alike, in one order. Contiguous.
struct AdamWLists {
  std::vector<Tensor> parameters, gradients;      // of one dtype
  std::vector<Tensor> averages, average_squares;  // of the parameters' dtype or float32, or bfloat16
  std::vector<Tensor> masters;                    // float32, of parameters of 16 bits with wider states; empty: none
  std::vector<Tensor> steps;                      // [] float32 each: how many updates a tensor had, with this one
};

struct AdamWRates {
  double learning_rate, beta1, beta2, eps, weight_decay;
};

// adamw/1. Updates parameters, averages, average_squares and masters in-place; the formula is that of
// training/optimizers/optimizer.h.
// scale: [] float32, what gradients are divided by; where it is not finite nothing is updated.
// seed: bfloat16 states, and the parameters of such states that have no master, are rounded stochastically by it.
using AdamWForward = void(const Tensor& scale, const AdamWLists& lists, const AdamWRates& rates,
                          std::optional<int64_t> seed);

namespace stock {
// torch's fused update where it has one for these dtypes, else plain ATen.
void adamw(const Tensor& scale, const AdamWLists& lists, const AdamWRates& rates, std::optional<int64_t> seed);
}  // namespace stock

class AdamWUpdate : public Module {
 public:
  // The tensors that it will update: a kernel is chosen for their device and dtypes. They stay the caller's and where
  // they are.
  void watch(std::vector<Tensor>& parameters) {
    for (size_t i = 0; i < parameters.size(); ++i) share(std::to_string(i), parameters[i]);
  }
  void forward(const Tensor& scale, const AdamWLists& lists, const AdamWRates& rates,
               std::optional<int64_t> seed) const {
    forward_(scale, lists, rates, seed);
  }

 private:
  Slot<AdamWForward> forward_{this, "AdamW", "adamw/1", stock::adamw};
};

}  // namespace hotswap
