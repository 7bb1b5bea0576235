#include "hotswap/kernelize/mapping.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

void check_form(const std::string& layer, const KernelRef& ref, bool use_local_kernel) {
  if (!ref.is_path() || use_local_kernel) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("a kernel for ", layer, " as 'org/repo:Layer'"),
               .got = cat("'", ref.str(), "' without use_local_kernel"),
               .next = "set use_local_kernel = true to run a package folder of this machine"});
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

const std::vector<std::string>& device_kinds() {
  static const std::vector<std::string> kinds = {"cpu", "cuda", "mps", "neuron", "npu", "rocm", "tpu", "xpu"};
  return kinds;
}

std::vector<std::string> layers_of_key(const std::string& key, const KernelRef* ref) {
  if (key != "MLP") return {key};
  const std::string named = ref ? lower_case(ref->layer()) : "";
  if (named.find("swiglu") != named.npos) return {"SwiGLUMLP"};
  if (named.find("geglu") != named.npos) return {"GeGLUMLP"};
  return {"SwiGLUMLP", "GeGLUMLP"};
}

DeviceKey::DeviceKey(std::string kind, CapabilityRange range)
    : kind_(kind == "metal" ? "mps" : std::move(kind)), range_(range) {  // transformers' guide writes metal
  const auto& kinds = device_kinds();
  if (std::find(kinds.begin(), kinds.end(), kind_) == kinds.end()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("a device out of ", join(kinds)),
                 .got = "'" + kind_ + "'",
                 .next = kind_ == "gpu" ? "write cuda or rocm" : "correct the mapping"});
  }
  const bool bounded = range_ != CapabilityRange{};
  if (bounded && kind_ != "cuda" && kind_ != "rocm") {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "capabilities for cuda or rocm only",
                 .got = "some for " + kind_,
                 .next = "drop them"});
  }
  if (range_.min > range_.max) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a capability interval with min <= max",
                 .got = cat("[", range_.min, ", ", range_.max, "]"),
                 .next = "swap them"});
  }
}

ModeKernels::ModeKernels(std::initializer_list<std::pair<Mode, KernelRef>> refs) {
  for (const auto& [mode, ref] : refs) add(mode, ref);
}

void ModeKernels::add(Mode mode, KernelRef ref) {
  if (mode != Mode::FALLBACK) modes_that_serve(mode);  // Error for TORCH_COMPILE alone, which nothing ever asks for
  by_mode_.insert_or_assign(mode, std::move(ref));
}

std::set<std::string> KernelChoice::kinds() const {
  if (everywhere_) return {device_kinds().begin(), device_kinds().end()};
  std::set<std::string> kinds;
  for (const auto& [device, kernels] : by_device_) kinds.insert(device.kind());
  return kinds;
}

void KernelMapping::add(const std::string& layer, const DeviceKey& device, const ModeKernels& kernels) {
  table_[layer][device.kind()].insert_or_assign(device.range(), kernels.by_mode());
}

void KernelMapping::add(const KernelConfig& config) {
  std::map<std::string, std::map<std::string, bool>> cleared;
  auto put = [&](const std::string& layer, const DeviceKey& device, const ModeKernels& kernels) {
    if (!cleared[layer][device.kind()]) table_[layer][device.kind()].clear();
    cleared[layer][device.kind()] = true;
    add(layer, device, kernels);
  };
  for (const auto& [key, choice] : config.kernel_mapping) {
    if (key.empty()) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "a layer's name as the key of a kernel mapping",
                   .got = "''",
                   .next = "name the layer"});
    }
    if (choice.everywhere()) {
      const KernelRef& ref = *choice.everywhere();
      check_form(key, ref, config.use_local_kernel);
      for (const auto& layer : layers_of_key(key, &ref)) {
        for (const auto& kind : device_kinds()) put(layer, kind, ref);
      }
      continue;
    }
    if (choice.by_device().empty()) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("at least one device for ", key),
                   .got = "none",
                   .next = "name one, or drop the key"});
    }
    std::set<std::pair<std::string, CapabilityRange>> seen;
    for (const auto& [device, kernels] : choice.by_device()) {
      if (!seen.insert({device.kind(), device.range()}).second) {
        throw Error({.kind = ErrorKind::kInvalidArgument,
                     .wanted = cat("one entry of ", key, " for ", device.kind()),
                     .got = device.kind() == "mps" ? "two (metal is mps)" : "two",
                     .next = "drop one"});
      }
      if (kernels.by_mode().empty()) {
        throw Error({.kind = ErrorKind::kInvalidArgument,
                     .wanted = cat("at least one mode of ", key, " for ", device.kind()),
                     .got = "none",
                     .next = "name one, or drop the device"});
      }
      for (const auto& [mode, ref] : kernels.by_mode()) check_form(key, ref, config.use_local_kernel);
      const KernelRef& first = kernels.by_mode().begin()->second;
      for (const auto& layer : layers_of_key(key, &first)) put(layer, device, kernels);
    }
  }
}

Result<KernelMapping::Entry> KernelMapping::find(const std::string& layer, const std::string& device_kind,
                                                 std::optional<int64_t> capability, Mode requested) const {
  const auto modes = modes_that_serve(requested);
  const auto devices = table_.find(layer);
  if (devices == table_.end()) return Reason{cat("no kernel is mapped for ", layer)};
  const auto intervals = devices->second.find(device_kind);
  if (intervals == devices->second.end()) {
    std::vector<std::string> kinds;
    for (const auto& [kind, unused] : devices->second) kinds.push_back(kind);
    return Reason{cat("no kernel is mapped for ", layer, " on ", device_kind, ", only on ", join(kinds))};
  }
  // A device whose capability is unknown is served by unbounded entries alone. Of two equally narrow intervals the
  // one that starts higher wins: it was written for newer devices.
  const std::map<Mode, KernelRef>* best = nullptr;
  CapabilityRange best_range;
  for (const auto& [range, by_mode] : intervals->second) {
    const bool holds = capability ? range.min <= *capability && *capability <= range.max : range == CapabilityRange{};
    if (!holds) continue;
    if (best == nullptr || range.max - range.min <= best_range.max - best_range.min) {
      best = &by_mode;
      best_range = range;
    }
  }
  if (best == nullptr) {
    return Reason{cat("no kernel of ", layer, " on ", device_kind, " is for capability ",
                      capability ? std::to_string(*capability) : "unknown")};
  }
  for (const Mode mode : modes) {
    if (const auto found = best->find(mode); found != best->end()) return Entry{found->second, mode};
  }
  std::vector<std::string> registered;
  for (const auto& [mode, ref] : *best) registered.push_back(mode.str());
  return Reason{
      cat("no kernel of ", layer, " on ", device_kind, " serves ", requested.str(), ", only ", join(registered))};
}

}  // namespace hotswap
