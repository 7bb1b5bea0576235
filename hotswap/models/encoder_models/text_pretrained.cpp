// From a folder or a name on the Hub to a TextModel.
#include "hotswap/base/error.h"
#include "hotswap/base/log.h"
#include "hotswap/kernelize/package/device.h"
#include "hotswap/models/attn_implementation.h"
#include "hotswap/models/config.h"
#include "hotswap/models/encoder_models/text_checkpoint.h"
#include "hotswap/models/encoder_models/text_family.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/no_model.h"
#include "hotswap/models/formats/tensor_rules.h"
#include "hotswap/models/model_folder.h"

namespace hotswap {
namespace {

Json with_labels(const Json& config, std::optional<int64_t> num_labels) {
  if (!num_labels) return config;
  nlohmann::ordered_json changed = config.raw();
  changed["num_labels"] = *num_labels;
  changed.erase("id2label");
  changed.erase("label2id");
  return Json::parse(changed.dump(), config.where());
}

void tell_what_is_new(const TextCheckpoint& checkpoint, const TextModel& model, const TextOptions& options) {
  const std::vector<std::string> drawn = checkpoint.drawn();
  if (drawn.empty()) return;
  if (options.exact_head) {
    throw Error(
        {.kind = ErrorKind::kNotFound,
         .wanted = cat("all tensors of ", model.class_name(), " in ", checkpoint.where()),
         .got = cat("none of ", join(drawn), checkpoint.unread().empty() ? "" : ", but ", join(checkpoint.unread())),
         .next = "take a checkpoint that was trained for this task"});
  }
  log_warning(checkpoint.where(), " lacks ", join(drawn), " of ", model.class_name(),
              ": they are drawn at random; train the model before you use what it makes of them");
}

}  // namespace

std::shared_ptr<TextModel> text_model_from_pretrained(const std::filesystem::path& name, TextTask task,
                                                      const TextOptions& options) {
  const std::filesystem::path folder = model_folder(name, options.revision);
  if (!std::filesystem::is_regular_file(folder / "config.json")) {
    refuse_no_model(folder);
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = "a folder with config.json and the weights of a model",
                 .got = cat("no ", (folder / "config.json").string()),
                 .next = "give the path of a model, or its name on the Hub (org/name)"});
  }
  const Json config = with_labels(Json::read(folder / "config.json"), options.num_labels);
  const auto model = std::make_shared<TextModel>(config, task);
  if (!options.attn_implementation.empty()) model->set_attn_implementation(options.attn_implementation);
  const TextCheckpoint checkpoint(open_checkpoint(folder), *model, options.seed);
  tell_what_is_new(checkpoint, *model, options);
  LoadOptions load{.device = device_named(options.device_map)};
  load.dtype = options.dtype != "auto" ? dtype_from(options.dtype, "dtype") : config_dtype(config);
  if (!load.dtype) load.dtype = checkpoint.first_dtype();
  model->requires_grad(true);
  load_into(*model, checkpoint, load);
  model->set_source(folder);
  model->eval();
  KernelOptions kernels{.config = options.kernel_config.value_or(KernelConfig()),
                        .strict = options.strict,
                        .allow_all_kernels = options.allow_all_kernels,
                        .project = options.kernel_project};
  if (options.use_kernels || options.kernel_config) {
    model->kernelize(Mode::INFERENCE, std::move(kernels));
  } else if (is_attention_kernel(options.attn_implementation)) {
    model->set_attn_implementation(options.attn_implementation, kernels);
  }
  return model;
}

}  // namespace hotswap
