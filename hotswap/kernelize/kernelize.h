// Which forward runs in each layer of a model, and why: layer x device x mode -> package.
//
//   KernelReport report = kernelize(model, Mode::INFERENCE);        // bundled packages
//   kernelize(model, Mode::TRAINING, {.config = {{{"RMSNorm", "kernels-community/liger_kernels:LigerRMSNorm"}}},
//                                     .strict = true});
//   unkernelize(model);                                             // exactly as before
//
// Packages come bundled, from folders or from the Hub (resolve.h has the order). A layer stays stock, and its row says
// why, where no kernel fits its device, mode or dtype. A kernel that does not exist, was tampered with or breaks its
// contract is an Error; an Error leaves every slot as it was.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "hotswap/kernelize/mapping.h"
#include "hotswap/kernelize/mode.h"
#include "hotswap/kernelize/report.h"
#include "hotswap/layers/module.h"

namespace hotswap {

struct KernelOptions {
  KernelConfig config = {};  // over the default mapping
  bool strict = false;  // Error, naming all of them, where a layer would stay stock that the config does not keep so
  bool allow_all_kernels = false;      // kernels of the Hub run though their publisher is not a trusted one
  std::filesystem::path project = {};  // with hotswap.toml and kernels.lock; empty: HOTSWAP_PROJECT's
};

// The optimizer's layer, which no model has: a mapping for a model may name it, for its Trainer.
inline constexpr char kUpdateLayer[] = "AdamW";

class HubKernels;

KernelReport kernelize(Module& model, Mode mode, const KernelOptions& options = {});
// What that would bind; nothing is.
KernelReport plan_kernels(Module& model, Mode mode, const KernelOptions& options = {});
// With the Hub's answers of an earlier call; allow_all_kernels and project are those that it was made with.
KernelReport kernelize(Module& model, Mode mode, const KernelOptions& options, HubKernels& hub);
void unkernelize(Module& model);

// The name of a row, from that of the module here.
using RowName = std::function<std::string(const std::string& module)>;

// What a model owns: remembers the user's options, so that train() and eval() bind anew for their mode.
//
//   void MyModel::on_mode_change() { kernels_.on_mode_change(*this); }
class Kernelizer {
 public:
  // transformers' names where the model's own differ; null: nowhere.
  explicit Kernelizer(RowName row_name = nullptr) : row_name_(std::move(row_name)) {}
  const KernelReport& kernelize(Module& model, Mode mode, KernelOptions options);
  // With the options of the last time, or none.
  const KernelReport& kernelize(Module& model, Mode mode);
  void unkernelize(Module& model);
  void on_mode_change(Module& model);  // nothing unless kernelized, and in another mode than before
  bool active() const { return active_; }
  const KernelReport& report() const { return report_; }  // empty while not active

 private:
  KernelReport bind(Module& model, Mode mode, const KernelOptions& options, HubKernels& hub) const;
  RowName row_name_;
  bool active_ = false;
  KernelOptions options_;
  std::shared_ptr<HubKernels> hub_;  // a model bound anew keeps the commits that it began with
  Mode mode_ = Mode::INFERENCE;
  KernelReport report_;
};

}  // namespace hotswap
