#include "hotswap/kernelize/kernelize.h"

#include <ATen/Context.h>

#include <algorithm>
#include <map>
#include <set>

#include "hotswap/base/env.h"
#include "hotswap/base/error.h"
#include "hotswap/base/log.h"
#include "hotswap/kernelize/package/device.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/kernelize/resolve.h"
#include "hotswap/layers/slot.h"

namespace hotswap {
namespace {

// A slot with what decides about it.
struct Site {
  std::string name;  // the module's
  SlotBase* slot;
  std::optional<c10::Device> device;  // of the module's tensors
  std::set<std::string> kinds;        // more than one: it spans devices
  std::set<std::string> dtypes;
};

struct Decision {
  KernelRow row;
  const PackageLayer* kernel = nullptr;  // null: stock
};

std::string dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    default:
      return c10::toString(type);
  }
}

void look_at_tensors(Module& module, Site& site) {
  module.each_tensor([&](const std::string&, Tensor& tensor) {
    if (!tensor.defined()) return;
    if (!site.device) site.device = tensor.device();
    site.kinds.insert(device_kind(tensor.device()));
    if (tensor.is_floating_point()) site.dtypes.insert(dtype_name(tensor.scalar_type()));
  });
}

// Of the module whose forward calls the layer: these two are functions there, and modules here alone.
std::string name_in_transformers(const std::string& name) {
  const size_t dot = name.rfind('.');
  const std::string last = name.substr(dot == name.npos ? 0 : dot + 1);
  if (last != "rotary_fn" && last != "loss_function") return name;
  return dot == name.npos ? "" : name.substr(0, dot);
}

// A module without tensors (an activation, a rotary embedding, a loss) goes by the nearest one above that has some. A
// child's name may have dots ("attention.self"), so that what is above one of them is no module.
std::vector<Site> sites_of(Module& model) {
  std::map<std::string, Module*> modules;
  model.each_module([&](const std::string& name, Module& module) { modules.emplace(name, &module); });
  std::vector<Site> sites;
  model.each_slot([&](const std::string& name, SlotBase& slot) {
    Site site{name_in_transformers(name), &slot, std::nullopt, {}, {}};
    for (std::string above = name;;) {
      if (const auto found = modules.find(above); found != modules.end()) look_at_tensors(*found->second, site);
      if (site.device || above.empty()) break;
      const size_t dot = above.rfind('.');
      above.resize(dot == above.npos ? 0 : dot);
    }
    sites.push_back(std::move(site));
  });
  return sites;
}

// The mapping in force, and which fused layers it keeps stock for the sake of their parts.
struct EffectiveMapping {
  KernelMapping mapping;
  std::map<std::pair<std::string, std::string>, std::string> part_mapped;  // {whole, device kind} -> part
};

// A row for the attention that means no other values: stock, as attn_implementation says by default, or the bundled
// kernel, whose values a bundled kernel of the whole layer has as well.
bool keeps_values(const std::string& layer, const ModeKernels& kernels) {
  return layer == "attention" && std::ranges::all_of(kernels.by_mode(), [](const auto& entry) {
           const KernelRef& kernel = entry.second;
           return kernel.stock() || same_repo(kernel.repo(), cat(kBundledOrg, "/attention"));
         });
}

// Device kinds for which the configuration says something of a layer.
std::set<std::string> named_kinds(const KernelConfig& config, const std::string& layer) {
  std::set<std::string> kinds;
  for (const auto& [key, choice] : config.kernel_mapping) {
    const auto layers = layers_of_key(key, choice.everywhere() ? &*choice.everywhere() : nullptr);
    if (std::find(layers.begin(), layers.end(), layer) == layers.end()) continue;
    if (choice.everywhere() && !keeps_values(layer, *choice.everywhere())) kinds.merge(choice.kinds());
    for (const auto& [device, kernels] : choice.by_device()) {
      if (!keeps_values(layer, kernels)) kinds.insert(device.kind());
    }
  }
  return kinds;
}

EffectiveMapping effective_mapping(const KernelConfig& config, const std::vector<Manifest>& bundled) {
  EffectiveMapping effective;
  if (!config.inherit_mapping.value_or(!config.use_local_kernel)) {
    effective.mapping.add(config);
    return effective;
  }
  effective.mapping = default_mapping(bundled);
  effective.mapping.add(config);
  for (const auto& [whole, part] : fused_layers()) {
    const auto own = named_kinds(config, whole);
    for (const auto& kind : named_kinds(config, part)) {
      if (own.contains(kind)) continue;
      effective.mapping.add(whole, kind, KernelRef());
      effective.part_mapped[{whole, kind}] = part;
    }
  }
  return effective;
}

void check_keys(const KernelConfig& config, const std::vector<Site>& sites) {
  std::set<std::string> known;
  for (const Site& site : sites) known.insert(site.slot->layer());
  for (const auto& [key, choice] : config.kernel_mapping) {
    const auto layers = layers_of_key(key);
    if (key == kUpdateLayer ||
        std::any_of(layers.begin(), layers.end(), [&](const auto& layer) { return known.contains(layer); }))
      continue;
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("layers that the model has: ", known.empty() ? "none" : join(known)),
                 .got = cat("'", key, "' in the kernel mapping"),
                 .next = "correct its name or drop it"});
  }
}

// Strict asks for the other slots.
bool is_optional(const SlotBase& slot) {
  const Contract* contract = find_contract(slot.contract());
  return contract != nullptr && contract->optional;
}

bool is_reached(const SlotBase& slot, Mode mode) {
  const Contract* contract = find_contract(slot.contract());
  return !mode.has(Mode::TRAINING) || contract == nullptr || !contract->steps_only;
}

// Rows of a mapping's entries for layers that the model has not, where it has others of the same key: "MLP" with a
// kernel of SwiGLUMLP, of a model whose MLPs are GeGLUMLP.
std::vector<KernelRow> rows_of_unmet_entries(const KernelConfig& config, const std::vector<Site>& sites, Mode mode) {
  std::set<std::string> known;
  for (const Site& site : sites) known.insert(site.slot->layer());
  std::vector<KernelRow> rows;
  for (const auto& [key, choice] : config.kernel_mapping) {
    std::vector<KernelRef> refs;
    if (choice.everywhere()) refs.push_back(*choice.everywhere());
    for (const auto& [device, kernels] : choice.by_device()) {
      for (const auto& [registered, ref] : kernels.by_mode()) refs.push_back(ref);
    }
    std::vector<std::string> has;
    for (const auto& layer : layers_of_key(key)) {
      if (known.contains(layer)) has.push_back(layer);
    }
    for (const KernelRef& ref : refs) {
      const auto layers = layers_of_key(key, &ref);
      if (std::any_of(layers.begin(), layers.end(), [&](const auto& layer) { return known.contains(layer); })) continue;
      rows.push_back({.name = "",
                      .layer = join(layers),
                      .device = sites.front().device ? sites.front().device->str() : "none",
                      .mode = mode.str(),
                      .reason = cat("the mapping's entry ", key, "=", ref.str(), ": the model has no ", join(layers),
                                    ", only ", join(has))});
    }
  }
  return rows;
}

// Decides for one slot after another; nothing is bound meanwhile.
class Planner {
 public:
  Planner(Mode mode, const KernelConfig& config, HubKernels& hub)
      : mode_(mode),
        config_(config),
        hub_(hub),
        bundled_(bundled_packages()),
        effective_(effective_mapping(config, bundled_)) {}

  Decision decide(const Site& site) {
    Decision decision{row_for(site, mode_), nullptr};
    KernelRow& row = decision.row;
    const std::string& layer = site.slot->layer();
    auto stays_stock = [&](std::string reason) {
      row.reason = std::move(reason);
      row.by_choice = row.by_choice || is_optional(*site.slot);
      return decision;
    };
    if (!is_reached(*site.slot, mode_)) {
      row.by_choice = true;
      return stays_stock("runs in generation only, not in training");
    }
    if (!site.device) return stays_stock("the model has no tensors, so no device");
    if (site.kinds.size() > 1) return stays_stock("its tensors lie on " + join(site.kinds, " and "));
    const std::string& kind = *site.kinds.begin();
    const auto& kinds = device_kinds();
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
      return stays_stock("no kernel runs on the device " + kind);
    }
    const auto entry = effective_.mapping.find(layer, kind, device_capability(*site.device), mode_);
    if (!entry) return stays_stock(entry.why() + nothing_bundled());
    if (entry->ref.stock()) {
      row.by_choice = true;
      const auto part = effective_.part_mapped.find({layer, kind});
      if (part == effective_.part_mapped.end()) return stays_stock("the mapping says stock");
      return stays_stock(cat("the mapping names its part ", part->second, " and not ", layer));
    }
    const auto kernel = resolve(entry->ref, layer, kind);
    if (!kernel) return stays_stock(kernel.why());
    const LayerEntry& offered = kernel->manifest.layers.at(kernel->layer);
    check_offer(*entry, *kernel, offered, *site.slot);
    if (const auto lack = what_lacks(offered.capabilities, site); !lack.empty()) {
      return stays_stock(cat(kernel->manifest.name, ":", kernel->layer, " ", lack));
    }
    const PackageLayer& bound = load_package(kernel->manifest, kernel->verify).layer(kernel->layer);
    if (!bound.runs_on(kind)) return stays_stock(cat(bound.str(), " has no kernel for ", kind));
    std::string serves;
    if (const auto ask = bound.contract().serves) {
      const Result<std::string> answer = ask(*site.slot, bound);
      if (!answer) return stays_stock(cat(bound.str(), " ", answer.why()));
      serves = *answer;
    }
    row.package = kernel->manifest.name;
    row.package_layer = kernel->layer;
    row.version = kernel->manifest.version;
    row.digest = kernel->manifest.digest;
    std::vector<std::string> notes = {kernel->note, serves, site.slot->passes_by(), mapped_elsewhere(layer, kind)};
    std::erase(notes, "");
    row.reason = join(notes, "; ");
    decision.kernel = &bound;
    return decision;
  }

  static KernelRow row_for(const Site& site, Mode mode) {
    return {.name = site.name,
            .layer = site.slot->layer(),
            .device = site.device ? site.device->str() : "none",
            .mode = mode.str()};
  }

 private:
  const Result<ResolvedKernel>& resolve(const KernelRef& ref, const std::string& layer, const std::string& kind) {
    const std::string key =
        cat(ref.str(), ref.trust() ? " trusted" : "", ref.locked() ? " locked " : " ", layer, " ", kind);
    const auto known = resolved_.find(key);
    if (known != resolved_.end()) return known->second;
    return resolved_.emplace(key, resolve_kernel(ref, layer, kind, bundled_, hub_)).first->second;
  }

  std::string nothing_bundled() const {
    if (!bundled_.empty()) return "";
    const auto folder = bundled_folder();
    return folder ? "; no package in " + folder->string() : "; " + folder.why();
  }

  // What the user's mapping promises must hold.
  static void check_offer(const KernelMapping::Entry& entry, const ResolvedKernel& kernel, const LayerEntry& offered,
                          const SlotBase& slot) {
    const std::string name = cat(kernel.manifest.name, ":", kernel.layer);
    if (find_contract(offered.contract)->slots() != slot.contract()) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("a kernel of the contract ", slot.contract(), " for the layer ", slot.layer()),
                   .got = cat(name, " of ", offered.contract),
                   .next = "map another layer of the package"});
    }
    const bool lacks_backward = entry.mode.has(Mode::TRAINING) && !offered.capabilities.backward;
    const bool lacks_capture = entry.mode.has(Mode::TORCH_COMPILE) && !offered.capabilities.capture;
    if (!lacks_backward && !lacks_capture) return;
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("a kernel that supports ", lacks_backward ? "backward" : "capture"),
                 .got = cat(name, ", which does not, but was registered for ", entry.mode.str()),
                 .next = "register it for the modes that it serves, or for FALLBACK"});
  }

  // Empty: nothing.
  std::string what_lacks(const Capabilities& has, const Site& site) const {
    if (mode_.has(Mode::TRAINING) && !has.backward) return "has no backward";
    if (mode_.has(Mode::TORCH_COMPILE) && !has.capture) return "cannot be captured";
    if (at::globalContext().deterministicAlgorithms() && !has.deterministic) return "is not deterministic";
    for (const auto& dtype : site.dtypes) {
      if (!has.dtypes.contains(dtype)) {
        return cat("has no ", dtype, ", only ", has.dtypes.empty() ? "none" : join(has.dtypes));
      }
    }
    return what_lacks(has, site.slot->needs());
  }

  std::string what_lacks(const Capabilities& has, const SlotNeeds& needs) const {
    for (const auto& feature : needs.features) {
      if (has.inference_features.contains(feature)) {
        if (mode_.has(Mode::TRAINING)) return cat("has no gradient of ", feature);
      } else if (!has.features.contains(feature)) {
        return has.features.empty() ? cat("has no ", feature) : cat("has no ", feature, ", only ", join(has.features));
      }
    }
    for (const auto& format : needs.weights) {
      if (!has.weights.contains(format)) return cat("takes no weights as ", format, ", only ", join(has.weights));
    }
    for (const auto& [name, wanted] : needs.numbers) {
      const auto found = has.numbers.find(name);
      if (found == has.numbers.end()) return cat("declares no ", name, "; this layer needs ", join(wanted, "/"));
      if (!found->second.has(wanted)) {
        return cat("takes no ", name, " of ", join(wanted, "/"), ", only ", join(found->second.entries()));
      }
    }
    return "";
  }

  // Where the user's mapping has entries for a layer, but none for this kind of device: the default serves it.
  std::string mapped_elsewhere(const std::string& layer, const std::string& kind) const {
    const auto kinds = named_kinds(config_, layer);
    return kinds.empty() || kinds.contains(kind) ? "" : cat("the mapping names ", layer, " on ", join(kinds), " alone");
  }

  Mode mode_;
  const KernelConfig& config_;
  HubKernels& hub_;
  std::vector<Manifest> bundled_;
  EffectiveMapping effective_;
  std::map<std::string, Result<ResolvedKernel>> resolved_;
};

std::string switched_off() {
  if (!env_flag(EnvVar::kUseHubKernels, true)) return "USE_HUB_KERNELS is off";
  if (env_flag(EnvVar::kDisableKernelMapping, false)) return "DISABLE_KERNEL_MAPPING is on";
  return "";
}

void check_strict(const KernelReport& report) {
  std::map<std::string, int64_t> stock;
  for (const KernelRow& row : report.left_stock().rows) {
    ++stock[cat(row.layer, " on ", row.device, ": ", row.reason)];
  }
  if (stock.empty()) return;
  std::vector<std::string> lines;
  lines.reserve(stock.size());
  for (const auto& [text, count] : stock) lines.push_back(count == 1 ? text : cat(text, " (", count, " layers)"));
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "a kernel for every layer (strict)",
               .got = "stock ones: " + join(lines, "; "),
               .next = "map these layers to kernels, or to \"\" to keep them stock on purpose, or drop strict"});
}

// What is decided before anything is bound.
struct Plan {
  std::vector<Site> sites;
  std::vector<Decision> decisions;  // of each
  KernelReport report;
};

Plan planned(Module& model, Mode mode, const KernelOptions& options, HubKernels& hub) {
  modes_that_serve(mode);
  Plan plan{.sites = sites_of(model)};
  const auto& sites = plan.sites;
  auto& decisions = plan.decisions;
  check_keys(options.config, sites);
  if (const std::string off = switched_off(); !off.empty()) {
    for (const Site& site : sites) {
      decisions.push_back({Planner::row_for(site, mode), nullptr});
      decisions.back().row.reason = off;
    }
  } else {
    Planner planner(mode, options.config, hub);
    for (const Site& site : sites) decisions.push_back(planner.decide(site));
  }
  for (const Decision& decision : decisions) plan.report.rows.push_back(decision.row);
  for (KernelRow& row : rows_of_unmet_entries(options.config, sites, mode)) plan.report.rows.push_back(std::move(row));
  if (options.strict) check_strict(plan.report);
  return plan;
}

}  // namespace

KernelReport kernelize(Module& model, Mode mode, const KernelOptions& options) {
  HubKernels hub(options.allow_all_kernels, options.project);
  return kernelize(model, mode, options, hub);
}

KernelReport plan_kernels(Module& model, Mode mode, const KernelOptions& options) {
  HubKernels hub(options.allow_all_kernels, options.project);
  return planned(model, mode, options, hub).report;
}

KernelReport kernelize(Module& model, Mode mode, const KernelOptions& options, HubKernels& hub) {
  Plan plan = planned(model, mode, options, hub);
  for (size_t i = 0; i < plan.sites.size(); ++i) {
    SlotBase& slot = *plan.sites[i].slot;
    slot.unbind();
    const PackageLayer* kernel = plan.decisions[i].kernel;
    if (kernel == nullptr) continue;
    kernel->contract().bind(slot, *kernel);
    slot.set_kernel_needs_host_sync(kernel->capabilities().needs_host_sync);
  }
  log_info("kernelize ", mode.str(), ": ", plan.report.bound(), " of ", plan.report.rows.size(), " slots bound");
  return std::move(plan.report);
}

void unkernelize(Module& model) {
  model.each_slot([](const std::string&, SlotBase& slot) { slot.unbind(); });
}

KernelReport Kernelizer::bind(Module& model, Mode mode, const KernelOptions& options, HubKernels& hub) const {
  KernelReport report = hotswap::kernelize(model, mode, options, hub);
  if (row_name_) {
    for (KernelRow& row : report.rows) row.name = row_name_(row.name);
  }
  return report;
}

const KernelReport& Kernelizer::kernelize(Module& model, Mode mode, KernelOptions options) {
  auto hub = std::make_shared<HubKernels>(options.allow_all_kernels, options.project);
  report_ = bind(model, mode, options, *hub);
  hub_ = std::move(hub);
  options_ = std::move(options);
  mode_ = mode;
  active_ = true;
  return report_;
}

const KernelReport& Kernelizer::kernelize(Module& model, Mode mode) {
  if (!active_) return kernelize(model, mode, options_);
  report_ = bind(model, mode, options_, *hub_);
  mode_ = mode;
  return report_;
}

void Kernelizer::unkernelize(Module& model) {
  hotswap::unkernelize(model);
  active_ = false;
  report_ = {};
}

void Kernelizer::on_mode_change(Module& model) {
  if (!active_) return;
  Mode mode = Mode::of_training(model.training());
  if (mode_.has(Mode::TORCH_COMPILE)) mode = mode | Mode::TORCH_COMPILE;
  if (mode == mode_) return;
  kernelize(model, mode);
}

}  // namespace hotswap
