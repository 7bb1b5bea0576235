// layer x device (x capability interval) x mode -> kernel, and what a user writes for it.
//
//   const KernelConfig config{{{"RMSNorm", "kernels-community/rmsnorm"},
//                              {"SiLU", {{"cuda", "kernels-community/activation:Silu"}, {"cpu", ""}}},  // "" = stock
//                              {"MLP", KernelRef{"acme/mlp:SwiGLUMLP", {.version = 1, .trust = true}}},
//                              {"rotary_pos_emb", {{"cpu", {{Mode::INFERENCE, "acme/rotary"}}}}}}};
#pragma once

#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hotswap/base/result.h"
#include "hotswap/hub/names/kernel_ref.h"
#include "hotswap/kernelize/mode.h"

namespace hotswap {

// Compute capabilities major * 10 + minor, inclusive (gfx1151 is 115). Only cuda and rocm have them.
struct CapabilityRange {
  int64_t min = 0;
  int64_t max = std::numeric_limits<int64_t>::max();
  bool operator==(const CapabilityRange&) const = default;
  bool operator<(const CapabilityRange& other) const { return std::tie(min, max) < std::tie(other.min, other.max); }
};

class DeviceKey {
 public:
  DeviceKey(const char* kind) : DeviceKey(std::string(kind)) {}    // NOLINT(google-explicit-constructor)
  DeviceKey(std::string kind) : DeviceKey(std::move(kind), {}) {}  // NOLINT(google-explicit-constructor)
  DeviceKey(std::string kind, CapabilityRange range);
  const std::string& kind() const { return kind_; }  // cpu cuda mps neuron npu rocm tpu xpu; metal is mps
  const CapabilityRange& range() const { return range_; }

 private:
  std::string kind_;
  CapabilityRange range_;
};

// A kernel for each mode. A kernel alone serves every mode (FALLBACK).
class ModeKernels {
 public:
  ModeKernels(const char* ref) : ModeKernels(KernelRef(ref)) {}         // NOLINT(google-explicit-constructor)
  ModeKernels(const std::string& ref) : ModeKernels(KernelRef(ref)) {}  // NOLINT(google-explicit-constructor)
  ModeKernels(KernelRef ref) { by_mode_.emplace(Mode::FALLBACK, std::move(ref)); }  // NOLINT
  ModeKernels(std::initializer_list<std::pair<Mode, KernelRef>> refs = {});
  void add(Mode mode, KernelRef ref);  // replaces what the mode had
  const std::map<Mode, KernelRef>& by_mode() const { return by_mode_; }

 private:
  std::map<Mode, KernelRef> by_mode_;
};

// The value of one layer: a kernel for every device, or one per device.
class KernelChoice {
 public:
  KernelChoice(const char* ref) : everywhere_(ref) {}           // NOLINT(google-explicit-constructor)
  KernelChoice(const std::string& ref) : everywhere_(ref) {}    // NOLINT(google-explicit-constructor)
  KernelChoice(KernelRef ref) : everywhere_(std::move(ref)) {}  // NOLINT(google-explicit-constructor)
  KernelChoice(std::initializer_list<std::pair<DeviceKey, ModeKernels>> by_device) : by_device_(by_device) {}
  explicit KernelChoice(std::vector<std::pair<DeviceKey, ModeKernels>> by_device) : by_device_(std::move(by_device)) {}
  const std::optional<KernelRef>& everywhere() const { return everywhere_; }
  const std::vector<std::pair<DeviceKey, ModeKernels>>& by_device() const { return by_device_; }
  std::set<std::string> kinds() const;  // the devices that it names: all of them where it is for everywhere

 private:
  std::optional<KernelRef> everywhere_;
  std::vector<std::pair<DeviceKey, ModeKernels>> by_device_;
};

struct KernelConfig {
  std::vector<std::pair<std::string, KernelChoice>> kernel_mapping = {};
  bool use_local_kernel = false;  // values may be "/abs/path:Layer"
  // Layers that the mapping does not name keep their default kernels. Unset: unless use_local_kernel, as transformers.
  std::optional<bool> inherit_mapping = std::nullopt;
};

class KernelMapping {
 public:
  struct Entry {
    KernelRef ref;
    Mode mode;  // that it was registered for
  };

  // Replaces whatever this layer had for this device and capability interval: all its modes, never merged.
  void add(const std::string& layer, const DeviceKey& device, const ModeKernels& kernels);
  // Registers a user's config: each device that it names for a layer loses all that it had before, so that a narrower
  // interval of a default never wins over what the user asked for. Error on a malformed config.
  void add(const KernelConfig& config);

  // The kernel of the narrowest interval that holds the capability, for the best mode that serves the requested one;
  // why() tells which of layer, device, interval or mode is missing.
  Result<Entry> find(const std::string& layer, const std::string& device_kind, std::optional<int64_t> capability,
                     Mode requested) const;
  bool has(const std::string& layer) const { return table_.contains(layer); }
  bool empty() const { return table_.empty(); }

 private:
  std::map<std::string, std::map<std::string, std::map<CapabilityRange, std::map<Mode, KernelRef>>>> table_;
};

// The device kinds that a mapping may name.
const std::vector<std::string>& device_kinds();
// The layers that a key of a mapping stands for: "MLP" for SwiGLUMLP and GeGLUMLP, any other for itself. A kernel whose
// own name says which of the two it is gets only that one.
std::vector<std::string> layers_of_key(const std::string& key, const KernelRef* ref = nullptr);

}  // namespace hotswap
