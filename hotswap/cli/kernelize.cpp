#include <cstdio>
#include <iostream>

#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/cli/verbs.h"

namespace hotswap {
namespace {

struct KernelizeFlags {
  ModelFlags model;
  KernelFlags kernels;
  std::string mode = "INFERENCE";
  bool json = false;
};

// As generate loads it with --use-kernels: quantised weights stay packed where that verb keeps them so. In training
// none do without --packed on.
std::shared_ptr<CausalLM> loaded_for(const KernelizeFlags& flags, const Mode& mode) {
  KernelFlags kernels = flags.kernels;
  kernels.strict = false;  // in the mode of the flags
  kernels.use_kernels = true;
  ModelFlags source = flags.model;
  source.few_rows = true;
  if (mode.has(Mode::TRAINING) && source.packed == "auto") source.packed = "off";
  return load_model(source, kernels, LeftStock::kShownByCaller);
}

void kernelize_verb(const KernelizeFlags& flags) {
  const Mode mode = Mode::parse(flags.mode);
  const auto model = loaded_for(flags, mode);
  model->train(mode.has(Mode::TRAINING));
  const KernelReport& report = model->kernelize(mode, kernel_options_of(flags.kernels));
  if (flags.json) {
    std::printf("%s\n", report.to_json().dump(2).c_str());
  } else {
    std::cout << report;
  }
}

}  // namespace

void add_kernelize(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "kernelize", "Say which kernel each layer would run, and why; runs no layer, but loads what --kernel names");
  auto flags = std::make_shared<KernelizeFlags>();
  add_model_flags(*verb, flags->model);
  add_kernel_flags(*verb, flags->kernels);
  verb->add_option("--mode", flags->mode, "INFERENCE or TRAINING, with |TORCH_COMPILE for capture-safe kernels")
      ->capture_default_str();
  verb->add_flag("--json", flags->json, "Print JSON");
  verb->callback([flags] { kernelize_verb(*flags); });
}

}  // namespace hotswap
