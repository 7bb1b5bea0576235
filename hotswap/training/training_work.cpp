#include "hotswap/training/training_work.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/memory.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/layers/experts.h"
#include "hotswap/layers/linear.h"
#include "hotswap/layers/self_attention.h"
#include "hotswap/models/attn_implementation.h"
#include "hotswap/models/config.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

// Of the makers' data sheets, without sparsity. A name that begins with an entry is of it; the first that fits counts.
struct PeakRow {
  std::string_view name;
  double tflops;
};
constexpr std::array<PeakRow, 11> kPeaks = {{{"NVIDIA B200", 2250},
                                             {"NVIDIA GH200", 989.5},
                                             {"NVIDIA H200 NVL", 835.5},
                                             {"NVIDIA H200", 989.5},
                                             {"NVIDIA H100 NVL", 835.5},
                                             {"NVIDIA H100 PCIe", 756.5},
                                             {"NVIDIA H100 80GB HBM3", 989.5},
                                             {"NVIDIA H20", 148},
                                             {"NVIDIA A100", 312},
                                             {"NVIDIA L40S", 362},
                                             {"NVIDIA L4", 121}}};

double operations(const Tensor& weight, double elements) { return (weight.requires_grad() ? 6 : 4) * elements; }

}  // namespace

TrainingWork::TrainingWork(CausalLM& model) {
  const auto& mixture = model.config().mixture;
  std::map<std::string, const Linear*> linears;
  std::map<std::string, int64_t> windows;
  model.each_module([&](const std::string& name, Module& module) {
    if (auto* linear = dynamic_cast<Linear*>(&module)) {
      const Weight& weight = linear->weight;
      linears[name] = linear;
      products_ += operations(weight.data, static_cast<double>(weight.rows()) * static_cast<double>(weight.columns()));
      linear->each_adapter_tensor(
          [&](const std::string&, Tensor& t) { products_ += 6 * static_cast<double>(t.numel()); });
    } else if (auto* experts = dynamic_cast<Experts*>(&module)) {
      experts->each_parameter([&](const std::string&, Tensor& t) {
        if (t.dim() != 3 || t.size(0) == 0) return;
        const double share = static_cast<double>(mixture.num_experts_per_tok) / static_cast<double>(t.size(0));
        products_ += operations(t, share * static_cast<double>(t.numel()));
      });
    } else if (const auto* attention = dynamic_cast<SelfAttention*>(&module)) {
      const SelfAttentionOptions& o = attention->options();
      windows[name] = o.chunk > 0 ? o.chunk : o.sliding_window;
    }
  });
  // Of every kind of attention: its queries' last projection makes heads * key width, its output reads heads * value
  // width.
  model.each_slot([&](const std::string& name, SlotBase& slot) {
    if (slot.layer() != kAttentionLayer) return;
    const auto rows = [&](const char* projection) {
      const auto found = linears.find(cat(name, ".", projection));
      return found == linears.end() ? int64_t{0} : found->second->weight.rows();
    };
    const auto output = linears.find(name + ".o_proj");
    const int64_t queries = std::max(rows("q_b_proj"), rows("q_proj")),
                  values = output == linears.end() ? queries : output->second->weight.columns();
    attentions_.push_back({static_cast<double>(queries + values) / 2, windows[name]});
  });
}

double TrainingWork::flops(int64_t rows, int64_t length) const {
  const auto all = static_cast<double>(length);
  double a_token = products_;
  for (const Attention& attention : attentions_) {
    const double window = attention.window > 0 ? static_cast<double>(attention.window) : all;
    // The mean number of keys that a token of the row sees.
    const double keys = window >= all ? all / 2 : window - window * window / (2 * all);
    a_token += 12 * attention.width * keys;
  }
  return a_token * all * static_cast<double>(rows);
}

std::optional<double> peak_flops(const std::string& gpu) {
  for (const PeakRow& row : kPeaks) {
    const bool fits = std::string_view(gpu).starts_with(row.name);
    // "NVIDIA L40" is no "NVIDIA L4".
    if (fits && (gpu.size() == row.name.size() || gpu[row.name.size()] == ' ' || gpu[row.name.size()] == '-')) {
      return row.tflops * 1e12;
    }
  }
  return std::nullopt;
}

// As the driver has it, so that no CUDA is linked.
std::string gpu_name() {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& gpu : fs::directory_iterator("/proc/driver/nvidia/gpus", none)) {
    const auto text = read_file_if_there(gpu.path() / "information");
    if (!text) continue;
    for (const std::string& line : split(*text, '\n')) {
      if (line.starts_with("Model:")) names.emplace(trim(line.substr(6)));
    }
  }
  return names.size() == 1 ? *names.begin() : "";
}

std::optional<double> peak_flops_for(const CausalLM& model) {
  if (!model.device().is_cuda() || c10::elementSize(model.dtype()) != 2) return std::nullopt;
  return peak_flops(gpu_name());
}

int64_t peak_device_memory(at::Device device) {
  if (!device.is_cuda()) return peak_memory();
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
}

bool reset_peak_device_memory(at::Device device) {
  if (!device.is_cuda()) return reset_peak_memory();
  c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
  return true;
}

}  // namespace hotswap
