#include "hotswap/cli/flags/text_flags.h"

#include "hotswap/base/error.h"

namespace hotswap {

TextOptions text_options_of(const ModelFlags& model, const KernelFlags& kernels) {
  check_one_attention(model, kernels);
  const auto refuse = [&](bool found, const char* flag) {
    if (!found) return;
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "a model of plain safetensors weights for embeddings and reranking",
                 .got = flag,
                 .next = "leave the flag out"});
  };
  refuse(gguf_path(model).has_value(), "a GGUF file");
  refuse(model.packed != "auto", "--packed");
  refuse(!model.adapter.empty() || !model.row_adapters.empty(), "--adapter");
  refuse(model.random_weights, "--random-weights");
  return {.use_kernels = kernels.any(),
          .kernel_config = kernel_config_of(kernels),
          .strict = kernels.strict,
          .allow_all_kernels = kernels.allow_all,
          .kernel_project = kernels.project,
          .attn_implementation = model.attention,
          .dtype = model.dtype,
          .device_map = model.device,
          .revision = model.revision};
}

}  // namespace hotswap
