#include "hotswap/models/formats/quantised.h"

#include <algorithm>
#include <map>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/layers/in_blocks.h"
#include "hotswap/models/formats/quantised_impl.h"

namespace hotswap {
namespace {

using quantised::Layout;
using quantised::Parts;

// Every quantisation that is read, by config.json's quant_method.
struct Method {
  const char* name;
  const std::vector<Layout>& (*layouts)();
  void (*check)(const Json& settings);
  bool (*quantises)(const Json& settings) = nullptr;  // null: whatever they are; else may all weights be plain?
};
constexpr Method kMethods[] = {{"fp8", quantised::fp8_layouts, nullptr},
                               {"fbgemm_fp8", quantised::fp8_layouts, nullptr},
                               {"modelopt", quantised::fp8_layouts, quantised::check_modelopt_settings},
                               {"compressed-tensors", quantised::compressed_tensors_layouts,
                                quantised::check_compressed_tensors_settings, quantised::compressed_tensors_quantise},
                               {"gptq", quantised::gptq_layouts, quantised::check_gptq_settings},
                               {"awq", quantised::gptq_layouts, quantised::check_gptq_settings},
                               {"bitsandbytes", quantised::bitsandbytes_layouts, nullptr}};

constexpr const char* kOfFamilies = "mxfp4";  // read by a family's rules

// Older configs of bitsandbytes lack the key.
std::string method_of(const Json& settings) {
  const bool bitsandbytes = settings.get<bool>("load_in_4bit", false) || settings.get<bool>("load_in_8bit", false);
  return settings.get<std::string>("quant_method", bitsandbytes ? "bitsandbytes" : "");
}

const Method* find_method(const std::string& name) {
  const auto found =
      std::find_if(std::begin(kMethods), std::end(kMethods), [&](const Method& m) { return m.name == name; });
  return found == std::end(kMethods) ? nullptr : found;
}

// Of weights that are all plain beside a config of a quantisation: a folder of parts of two models, perhaps.
[[noreturn]] void refuse_plain(const Checkpoint& stored, const Json& settings, const std::string& method,
                               const std::vector<std::string>& layouts) {
  const std::vector<std::string> names = stored.names();
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("weights quantised by ", method, ", as in ", settings.where(), ": modules with ",
                             join(layouts, ", or ")),
               .got = cat("none in ", stored.where(), ", but ", names.empty() ? "no tensor" : names.front()),
               .next =
                   "take the weights that belong to this config.json, or remove its quantization_config if they are "
                   "plain"});
}

class DequantisingCheckpoint : public Checkpoint {
 public:
  DequantisingCheckpoint(std::unique_ptr<const Checkpoint> stored, const Json& settings, const Method& method)
      : stored_(std::move(stored)), settings_(settings) {
    std::vector<const Layout*> layouts;
    for (const Layout& layout : method.layouts()) {
      if (method.name == std::string(layout.method)) layouts.push_back(&layout);
    }
    std::set<std::string> modules;  // a layout's last part is none of a plain weight
    for (const std::string& name : stored_->names()) {
      for (const Layout* layout : layouts) {
        const std::string mark = "." + layout->parts.back();
        if (name.ends_with(mark)) modules.insert(name.substr(0, name.size() - mark.size()));
      }
    }
    std::set<std::string> used;
    for (const std::string& module : modules) add(module, layouts, used);
    for (const std::string& name : stored_->names()) {
      if (!used.contains(name)) names_.push_back(name);
    }
    for (const auto& [name, layout] : weights_) names_.push_back(name);
    known_.insert(names_.begin(), names_.end());
    const bool expected = method.quantises == nullptr || method.quantises(settings_);
    if (!weights_.empty() || !expected) return;
    std::vector<std::string> parts;
    for (const Layout* layout : layouts) parts.push_back(join(layout->parts, " and "));
    refuse_plain(*stored_, settings_, method.name, parts);
  }

  std::vector<std::string> names() const override { return names_; }
  bool has(const std::string& name) const override { return known_.contains(name); }
  std::vector<int64_t> shape(const std::string& name) const override {
    const Layout* layout = find(name);
    return layout == nullptr ? stored_->shape(name) : layout->shape(parts(name));
  }
  at::ScalarType dtype(const std::string& name) const override {
    return find(name) == nullptr ? stored_->dtype(name) : at::kBFloat16;  // as the model is computed in
  }
  at::Tensor tensor(const std::string& name, at::ScalarType dtype) const override {
    const Layout* layout = find(name);
    if (layout == nullptr) return stored_->tensor(name, dtype);
    const std::vector<int64_t> shape = layout->shape(parts(name));
    const at::Tensor values = layout->read(parts(name)).dequantised(dtype);
    return values.sizes() == at::IntArrayRef(shape) ? values
                                                    : values.flatten().narrow(0, 0, shape[0] * shape[1]).view(shape);
  }
  // In blocks that kernels read, where there are such for it; else as it is where each row has its own groups, which
  // bitsandbytes' blocks may cross.
  std::optional<Weight> encoded(const std::string& name) const override {
    const Layout* layout = find(name);
    if (layout == nullptr) return stored_->encoded(name);
    const std::vector<int64_t> shape = layout->shape(parts(name));
    Weight weight = layout->read(parts(name));
    if (auto blocks = in_blocks(weight)) return blocks;
    if (weight.logical_shape == shape) return weight;
    const bool flat = weight.format == WeightFormat::kTable16 && weight.rows() == 1;
    if (!flat || weight.group == 0 || shape[1] % weight.group != 0) return std::nullopt;
    weight.data = weight.data.view({shape[0], shape[1] / 2});
    weight.scales = weight.scales.view({shape[0], shape[1] / weight.group});
    weight.logical_shape = shape;
    return weight;
  }
  bool is_file_memory(const std::string& name, at::ScalarType dtype) const override {
    return find(name) == nullptr && stored_->is_file_memory(name, dtype);
  }
  std::string where() const override { return stored_->where(); }

 private:
  const Layout* find(const std::string& name) const {
    const auto found = weights_.find(name);
    return found == weights_.end() ? nullptr : found->second;
  }
  Parts parts(const std::string& weight) const {
    return {*stored_, weight.substr(0, weight.size() - std::string_view(".weight").size()), settings_};
  }

  void add(const std::string& module, const std::vector<const Layout*>& layouts, std::set<std::string>& used) {
    const auto name = [&](const std::string& part) { return module + "." + part; };
    for (const Layout* layout : layouts) {
      const bool whole = std::all_of(layout->parts.begin(), layout->parts.end(),
                                     [&](const std::string& part) { return stored_->has(name(part)); });
      if (!whole) continue;
      weights_.emplace(name("weight"), layout);
      for (const std::string& part : layout->parts) used.insert(name(part));
      for (const std::string& part : layout->extra) used.insert(name(part));
      return;
    }
  }

  std::unique_ptr<const Checkpoint> stored_;
  Json settings_;
  std::map<std::string, const Layout*> weights_;
  std::vector<std::string> names_;
  std::set<std::string> known_;
};

}  // namespace

void check_quantisation(const Json& config, bool reads_mxfp4) {
  if (!config.has("quantization_config")) return;
  const Json settings = config.child("quantization_config");
  const std::string name = method_of(settings);
  if (reads_mxfp4 && name == kOfFamilies) return;
  if (const Method* method = find_method(name)) {
    if (method->check != nullptr) method->check(settings);
    return;
  }
  std::vector<std::string> known;
  for (const Method& method : kMethods) known.emplace_back(method.name);
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("plain weights, or a quant_method among ", join(known)),
               .got = cat("quantization_config with \"", name, "\" in ", config.where()),
               .next = "take another quantisation of the model, or its plain weights"});
}

bool is_quantised(const Json& config) {
  return config.has("quantization_config") && find_method(method_of(config.child("quantization_config"))) != nullptr;
}

bool may_stay_packed(const Json& config) {
  return is_quantised(config) ||
         (config.has("quantization_config") && method_of(config.child("quantization_config")) == kOfFamilies);
}

std::unique_ptr<const Checkpoint> dequantising(std::unique_ptr<const Checkpoint> stored, const Json& config) {
  if (!may_stay_packed(config)) return stored;
  const Json settings = config.child("quantization_config");
  const Method* method = find_method(method_of(settings));
  if (method == nullptr) {  // mxfp4 is read by the family's rules
    const std::vector<std::string> names = stored->names();
    const auto is_code = [](const std::string& name) { return name.ends_with("_blocks"); };
    if (std::none_of(names.begin(), names.end(), is_code)) refuse_plain(*stored, settings, kOfFamilies, {"_blocks"});
    return stored;
  }
  return std::make_unique<DequantisingCheckpoint>(std::move(stored), settings, *method);
}

}  // namespace hotswap
