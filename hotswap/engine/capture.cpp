#include "hotswap/engine/capture.h"

#include "hotswap/base/error.h"
#include "hotswap/engine/cuda_graph.h"
#include "hotswap/layers/slot.h"

namespace hotswap {

std::optional<std::string> why_not_capturable(CausalLM& model) {
  if (model.device().is_cpu()) return "the CPU has no CUDA graphs";
  std::optional<std::string> why;
  model.each_slot([&](const std::string& name, const SlotBase& slot) {
    if (why || slot.contract() != "moe/1" || slot.bound()) return;
    why = cat(name,
              " runs stock experts, whose forward waits for the host to learn how many tokens each has; kernelize() "
              "takes some that do not");
  });
  if (why) return why;
  if (const auto graph = make_cuda_graph(model.device()); !graph) return graph.why();
  return std::nullopt;
}

}  // namespace hotswap
