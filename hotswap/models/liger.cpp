#include "hotswap/models/liger.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/base/nearest_name.h"
#include "hotswap/layers/slot.h"
#include "hotswap/models/family.h"

namespace hotswap {
namespace {

constexpr const char* kCrossEntropy = "cross_entropy";
constexpr const char* kFusedCrossEntropy = "fused_linear_cross_entropy";

// An option of Liger's and the layers that it stands for here.
struct LayersOfOption {
  std::vector<std::string> options;
  std::vector<std::string> layers;
  bool otherwise;  // for a family that has none of these options
};

const std::vector<LayersOfOption>& layers_of_options() {
  static const std::vector<LayersOfOption> table = {
      {{"rope"}, {"rotary_pos_emb"}, true},
      {{"rms_norm"}, {"RMSNorm", "AddRMSNorm"}, true},
      {{"layer_norm"}, {"LayerNorm"}, false},
      {{"swiglu", "geglu"},
       {"SwiGLUMLP", "GeGLUMLP", "SiluAndMul", "GeluAndMul", "GeluTanhAndMul", "Experts", "MegaBlocksMoeMLP",
        "Llama4TextMoe"},
       true},
      // Activations of experts that stay stock, or of MLPs without a gate.
      {{"relu_squared", "swiglu", "geglu"},
       {"SiLU", "GeLU", "GeluTanh", "NewGELU", "FastGELU", "QuickGELU", "ReLUSquared"},
       true},
      {{kCrossEntropy}, {"ForCausalLMLoss"}, false},
      {{kFusedCrossEntropy}, {"LinearCrossEntropy"}, false},
  };
  return table;
}

bool is_on(const LigerKernelConfig& options, const std::string& name) {
  const auto found = options.find(name);
  return found != options.end() && found->second;
}

std::vector<std::string> names_of(const LigerFamily& family) {
  std::vector<std::string> names;
  for (const auto& [name, value] : family.options) names.push_back(name);
  return names;
}

void check_options(const LigerFamily& family, const LigerKernelConfig& options) {
  const auto known = names_of(family);
  for (const auto& [name, value] : options) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("Liger's options of ", family.model_type, ": ", join(known)),
                   .got = cat("'", name, "'"),
                   .next = nearest_name_hint(name, known)});
    }
    if (value && std::find(family.lacks.begin(), family.lacks.end(), name) != family.lacks.end()) {
      throw Error({.kind = ErrorKind::kUnsupported,
                   .wanted = cat(name, " = false for ", family.model_type),
                   .got = "true, and there is no such kernel",
                   .next = "leave it out"});
    }
  }
  if (is_on(options, kCrossEntropy) && is_on(options, kFusedCrossEntropy)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("one of ", kCrossEntropy, " and ", kFusedCrossEntropy),
                 .got = "both as true",
                 .next = "leave one out"});
  }
}

// The defaults with the caller's options over them. One loss runs: the one that the caller requested goes before the
// family's default.
LigerKernelConfig chosen_options(const LigerFamily& family, const LigerKernelConfig& options) {
  check_options(family, options);
  LigerKernelConfig chosen(family.options.begin(), family.options.end());
  for (const auto& [name, value] : options) chosen[name] = value;
  if (is_on(chosen, kCrossEntropy) && is_on(chosen, kFusedCrossEntropy)) {
    chosen[kCrossEntropy] = is_on(options, kCrossEntropy);
    chosen[kFusedCrossEntropy] = is_on(options, kFusedCrossEntropy);
  }
  return chosen;
}

const LigerFamily* find_family(const std::string& model_type) {
  const auto& all = liger_families();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& f) { return f.model_type == model_type; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

const LigerFamily& liger_family(const std::string& model_type) {
  for (const std::string suffix : {"", "_text", "_text_model"}) {
    if (!model_type.ends_with(suffix)) continue;
    if (const auto* found = find_family(model_type.substr(0, model_type.size() - suffix.size()))) return *found;
  }
  std::vector<std::string> known;
  for (const LigerFamily& family : liger_families()) known.push_back(family.model_type);
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a model of a family that Liger has kernels for: ", join(known)),
               .got = cat("model_type ", model_type),
               .next = "call kernelize() instead: it binds every layer that a kernel computes"});
}

std::set<std::string> liger_layers(const LigerFamily& family, const LigerKernelConfig& options) {
  const LigerKernelConfig chosen = chosen_options(family, options);
  std::set<std::string> layers;
  for (const LayersOfOption& row : layers_of_options()) {
    const auto named = std::find_if(row.options.begin(), row.options.end(),
                                    [&](const std::string& name) { return chosen.contains(name); });
    if (named == row.options.end() ? row.otherwise : chosen.at(*named)) {
      layers.insert(row.layers.begin(), row.layers.end());
    }
  }
  return layers;
}

KernelConfig liger_kernel_config(CausalLM& model, const LigerKernelConfig& options) {
  const auto on = liger_layers(liger_family(model.family().model_type), options);
  std::set<std::string> off;
  model.each_slot([&](const std::string&, SlotBase& slot) {
    if (!on.contains(slot.layer())) off.insert(slot.layer());
  });
  off.erase("attention");     // attn_implementation chooses it
  off.erase("PackedLinear");  // how a weight is stored, no swap of a layer
  off.erase("PackedExperts");
  KernelConfig config;
  for (const std::string& layer : off) config.kernel_mapping.emplace_back(layer, "");
  return config;
}

const KernelReport& apply_liger_kernel(CausalLM& model, const LigerKernelConfig& options) {
  KernelConfig config = liger_kernel_config(model, options);
  return model.kernelize(Mode::of_training(model.training()), {.config = std::move(config)});
}

const KernelReport& ApplyLigerKernelTo::operator()(CausalLM& model, const LigerKernelConfig& options) const {
  const LigerFamily& own = liger_family(model.family().model_type);
  if (own.model_type != family) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("a model of ", family, " for apply_liger_kernel_to_", family),
                 .got = cat("one of ", own.model_type),
                 .next = cat("call apply_liger_kernel_to_", own.model_type, " or apply_liger_kernel")});
  }
  return apply_liger_kernel(model, options);
}

std::shared_ptr<CausalLM> AutoLigerKernelForCausalLM::from_pretrained(const std::filesystem::path& name,
                                                                      const PretrainedOptions& options,
                                                                      const LigerKernelConfig& liger) {
  if (options.use_kernels || options.kernel_config) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "one choice of kernels: Liger's, or use_kernels and kernel_config",
                 .got = "both",
                 .next = "load with AutoModelForCausalLM to run every kernel or a mapping of your own"});
  }
  auto model = AutoModelForCausalLM::from_pretrained(name, options);
  apply_liger_kernel(*model, liger);
  return model;
}

}  // namespace hotswap
