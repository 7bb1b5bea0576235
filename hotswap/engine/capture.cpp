#include "hotswap/engine/capture.h"

#include "hotswap/base/error.h"
#include "hotswap/engine/cuda_graph.h"
#include "hotswap/layers/slot.h"

namespace hotswap {

std::optional<std::string> why_not_capturable(CausalLM& model) {
  if (model.device().is_cpu()) return "the CPU has no CUDA graphs";
  std::optional<std::string> why;
  model.each_slot([&](const std::string& name, const SlotBase& slot) {
    if (why || !slot.needs_host_sync()) return;
    why = cat(name, " runs ", slot.bound() ? "a kernel" : "the stock forward", " of ", slot.layer(),
              ", which waits for the device in the middle of a step; ",
              slot.bound() ? "map another kernel" : "kernelize() takes one that does not");
  });
  if (why) return why;
  if (const auto graph = make_cuda_graph(model.device()); !graph) return graph.why();
  return std::nullopt;
}

}  // namespace hotswap
