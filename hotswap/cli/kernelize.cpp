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

void kernelize_verb(const KernelizeFlags& flags) {
  const Mode mode = Mode::parse(flags.mode);
  // Whom --attn-implementation may name; layers are swapped below, in the mode that is asked for.
  check_one_attention(flags.model, flags.kernels);
  const auto model = load_model(flags.model, {.allow_all = flags.kernels.allow_all, .project = flags.kernels.project});
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
