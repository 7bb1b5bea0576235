#include "hotswap/models/auto.h"

#include <ATen/ops/equal.h>

#include <algorithm>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/base/log.h"
#include "hotswap/kernelize/package/device.h"
#include "hotswap/layers/experts.h"
#include "hotswap/layers/linear.h"
#include "hotswap/models/attn_implementation.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/four_bits.h"
#include "hotswap/models/formats/gguf_model.h"
#include "hotswap/models/formats/no_model.h"
#include "hotswap/models/formats/quantised.h"
#include "hotswap/models/formats/weights.h"
#include "hotswap/models/lora.h"
#include "hotswap/models/model_folder.h"
#include "hotswap/models/text_part.h"

namespace hotswap {
namespace {

bool requests_kernels(const PretrainedOptions& options) { return options.use_kernels || options.kernel_config; }

bool names(const PretrainedOptions& options, const std::string& layer) {
  if (!options.kernel_config) return false;
  const auto& rows = options.kernel_config->kernel_mapping;
  return std::any_of(rows.begin(), rows.end(), [&](const auto& row) {
    const auto layers = layers_of_key(row.first);
    return std::find(layers.begin(), layers.end(), layer) != layers.end();
  });
}

// Known before the weights are there, so that kernels are bound once.
std::string attention_of(CausalLM& model, const PretrainedOptions& options) {
  bool attends = false;
  model.each_slot([&](const std::string&, SlotBase& slot) { attends = attends || slot.layer() == kAttentionLayer; });
  const bool open = attends && options.attn_implementation.empty() && requests_kernels(options) &&
                    !names(options, kAttentionLayer) && device_named(options.device_map).is_cuda();
  return open && !options.gpu_attention.empty() ? options.gpu_attention : options.attn_implementation;
}

// Who says which kernel a Linear runs, wants its plain weights.
// On a GPU only where steps of few rows are what comes: from 16 rows on products with plain weights are faster there.
bool keeps_formats(const PretrainedOptions& options, bool is_packed, const at::Device& device) {
  if (options.quantization_config.load_in_4bit) return true;
  if (options.keep_formats.value_or(false) && !is_packed) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "a GGUF file, or a checkpoint with a quantization_config, for weights that keep its formats",
                 .got = "plain weights",
                 .next = "leave keep_formats (--packed) unset"});
  }
  return is_packed && options.keep_formats.value_or((device.is_cpu() || options.few_rows) &&
                                                    requests_kernels(options) && !names(options, "Linear"));
}

// Experts whose own layer the mapping names: it is a kernel of plain ones, as of Linear.
void unpack_named_experts(CausalLM& model, const PretrainedOptions& options) {
  std::set<std::string> named;
  model.each_module([&](const std::string& name, Module& module) {
    const auto* experts = dynamic_cast<const Experts*>(&module);
    if (experts != nullptr && experts->packed() && names(options, experts->layer())) named.insert(name);
  });
  model.unpack_before_kernels(named);
}

// Unless the caller asks for them, encoded weights are no gain without a kernel: dequantised for each product.
void unpack_what_has_no_kernel(CausalLM& model, const PretrainedOptions& options, KernelOptions kernels) {
  if (options.keep_formats || options.quantization_config.load_in_4bit || !model.has_encoded_weights()) return;
  unpack_named_experts(model, options);
  kernels.strict = false;
  std::set<std::string> without;
  for (const KernelRow& row : plan_kernels(model, Mode::INFERENCE, kernels).rows) {
    const bool packed = row.layer == "PackedLinear" || row.layer == "PackedExperts";
    if (packed && !row.package && !names(options, row.layer)) without.insert(row.name);
  }
  model.unpack_before_kernels(without);
}

void finish(CausalLM& model, const PretrainedOptions& options) {
  model.eval();
  KernelOptions kernels{.config = options.kernel_config.value_or(KernelConfig()),
                        .strict = options.strict,
                        .allow_all_kernels = options.allow_all_kernels,
                        .project = options.kernel_project};
  unpack_what_has_no_kernel(model, options, kernels);
  if (requests_kernels(options)) {
    model.kernelize(Mode::INFERENCE, std::move(kernels));
  } else if (is_attention_kernel(options.attn_implementation)) {
    model.set_attn_implementation(options.attn_implementation, kernels);
  }
}

constexpr const char *kHeadWeight = "lm_head.weight", *kEmbeddingWeight = "model.embed_tokens.weight";

// Does the checkpoint hold a head that is not the embedding? As transformers has it, tie_word_embeddings does not hold
// then: files that were saved under a tied config from a model with a head of its own are many.
// Of a file that does not state one. A GGUF file's tensors are read as float32, whatever they are stored as; on a GPU,
// whose kernels multiply 16 bits, only where it holds float32 throughout.
at::ScalarType dtype_of_file(const Checkpoint& checkpoint, const at::Device& device) {
  const GgufFile* gguf = checkpoint.gguf();
  if (gguf == nullptr || device.is_cpu()) return checkpoint.first_dtype();
  const bool only_float32 = std::all_of(gguf->names().begin(), gguf->names().end(), [&](const std::string& name) {
    const GgufTensor& tensor = gguf->info(name);
    return tensor.shape.size() < 2 || std::string_view(tensor.type->name) == "F32";
  });
  return only_float32 ? at::kFloat : at::kBFloat16;
}

bool has_head_of_its_own(const Checkpoint& checkpoint, at::ScalarType dtype) {
  return checkpoint.has(kHeadWeight) && checkpoint.has(kEmbeddingWeight) &&
         !at::equal(checkpoint.tensor(kHeadWeight, dtype), checkpoint.tensor(kEmbeddingWeight, dtype));
}

Json without_tied_embeddings(const Json& config) {
  nlohmann::ordered_json untied = config.raw();
  untied["tie_word_embeddings"] = false;
  return Json::parse(untied.dump(), config.where());
}

void check_four_bits(const PretrainedOptions& options, const Json& config, bool is_gguf) {
  check(options.quantization_config);
  if (!is_gguf && !is_quantised(config)) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a model of plain weights for load_in_4bit",
               .got = is_gguf ? "a GGUF file" : "a quantised checkpoint",
               .next = "leave load_in_4bit out: keep_formats keeps what the weights are"});
}

// The weights that transformers makes 4 bits of: those of layers, and not of the output head.
std::set<std::string> projections_of(CausalLM& model) {
  std::set<std::string> names;
  model.each_module([&](const std::string& name, Module& module) {
    if (name != "lm_head" && dynamic_cast<Linear*>(&module) != nullptr) names.insert(name + ".weight");
  });
  return names;
}

// Those that the options name: one of all rows, or those of single rows.
class Adapters {
 public:
  explicit Adapters(const PretrainedOptions& options) : trains_(options.is_trainable) {
    if (!options.adapter.empty()) of_all_ = LoraAdapter::read(options.adapter);
    for (const auto& name : options.row_adapters) of_rows_.push_back(LoraAdapter::read(name));
  }
  // One may change one of the two: they begin as one tensor under two names.
  bool change_embedding_or_head(const CausalLM& model) const {
    return (of_all_ && of_all_->changes_embedding_or_head(model)) ||
           std::any_of(of_rows_.begin(), of_rows_.end(),
                       [&](const LoraAdapter& adapter) { return adapter.changes_embedding_or_head(model); });
  }
  void load_into(CausalLM& model, bool untied) const {
    if (of_all_ || !of_rows_.empty()) model.eval();
    if (of_all_) model.load_adapter(*of_all_, {.untied = untied, .trains = trains_});
    for (const LoraAdapter& adapter : of_rows_) model.add_row_adapter(adapter, {.untied = untied});
  }

 private:
  bool trains_;
  std::optional<LoraAdapter> of_all_;
  std::vector<LoraAdapter> of_rows_;
};

// Older models have them in their config.json.
GenerationConfig generation_config_of(const std::filesystem::path& folder, const Json& model,
                                      const ModelConfig& config) {
  const auto file = folder / "generation_config.json";
  GenerationConfig found = read_generation_config(std::filesystem::is_regular_file(file) ? Json::read(file) : model);
  if (!found.eos_token_id && !config.eos_token_id.empty()) found.eos_token_id = config.eos_token_id;
  if (!found.pad_token_id) found.pad_token_id = config.pad_token_id;
  return found;
}

}  // namespace

std::shared_ptr<CausalLM> AutoModelForCausalLM::from_config(const Json& config) {
  const Json text = text_part(config);
  return std::make_shared<CausalLM>(family_of(text), text);
}

std::shared_ptr<CausalLM> AutoModelForCausalLM::from_pretrained(const std::filesystem::path& name,
                                                                const PretrainedOptions& options) {
  const std::filesystem::path folder = model_folder(name, options.revision, options.gguf_file);
  const bool is_gguf = options.gguf_file || std::filesystem::is_regular_file(folder);
  if (!options.gguf_file) refuse_no_model(folder);
  if (!is_gguf && !std::filesystem::is_regular_file(folder / "config.json")) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = "a folder with config.json and the weights of a model",
                 .got = cat("no ", (folder / "config.json").string()),
                 .next = "give the path of a model, its name on the Hub (org/name), or its GGUF file as gguf_file"});
  }
  std::unique_ptr<const Checkpoint> checkpoint;
  if (is_gguf) checkpoint = open_checkpoint(folder, options.gguf_file);
  const Json whole = is_gguf ? config_of_gguf(*checkpoint->gguf()) : Json::read(folder / "config.json");
  const Json config = text_part(whole);
  auto model = from_config(config);  // before the weights: a bad config is told as such
  model->set_attn_implementation(attention_of(*model, options));
  if (!checkpoint) checkpoint = dequantising(open_checkpoint(folder), config);
  const Family& family = model->family();
  checkpoint = text_part(std::move(checkpoint), whole, *model);
  checkpoint = in_model_terms(std::move(checkpoint),
                              (is_gguf ? family.gguf_rules : family.tensor_rules)(model->config()), *model);

  LoadOptions load{.device = device_named(options.device_map)};
  if (options.dtype != "auto") {
    load.dtype = dtype_from(options.dtype, "dtype");
  } else {
    load.dtype = is_gguf ? std::nullopt : config_dtype(config);
    if (!load.dtype) load.dtype = dtype_of_file(*checkpoint, load.device);
  }
  if (model->config().tie_word_embeddings && has_head_of_its_own(*checkpoint, *load.dtype)) {
    log_warning(config.where(), " sets tie_word_embeddings, and ", checkpoint->where(), " holds a ", kHeadWeight,
                " other than its ", kEmbeddingWeight,
                ": they are not tied; say tie_word_embeddings = false in the config");
    model = from_config(without_tied_embeddings(config));
    model->set_attn_implementation(attention_of(*model, options));
  }
  const bool tied = model->config().tie_word_embeddings;
  if (tied) load.tied = {{kHeadWeight, kEmbeddingWeight}};
  const Adapters adapters(options);
  const bool untied = tied && adapters.change_embedding_or_head(*model);
  if (untied) {
    model = from_config(without_tied_embeddings(config));
    model->set_attn_implementation(attention_of(*model, options));
  }
  model->requires_grad(true);
  load.keep_formats = keeps_formats(options, is_gguf || may_stay_packed(config), load.device);
  if (options.quantization_config.load_in_4bit) {
    check_four_bits(options, config, is_gguf);
    checkpoint = in_four_bits(std::move(checkpoint), projections_of(*model), *load.dtype);
  }
  load_into(*model, *checkpoint, load);
  const auto source = std::filesystem::is_directory(folder) ? folder : folder.parent_path();
  model->set_source(source);
  model->set_generation_config(generation_config_of(source, config, model->config()));
  adapters.load_into(*model, untied);
  finish(*model, options);
  return model;
}

std::shared_ptr<CausalLM> AutoModelForCausalLM::from_random(const std::filesystem::path& folder,
                                                            const PretrainedOptions& options) {
  refuse_no_model(folder);
  const Json config = text_part(Json::read(folder / "config.json"));
  auto model = from_config(config);
  model->set_attn_implementation(attention_of(*model, options));
  const auto dtype = options.dtype != "auto" ? dtype_from(options.dtype, "dtype") : config_dtype(config);
  model->requires_grad(true);
  model->init_weights(0, dtype.value_or(at::kFloat), device_named(options.device_map));
  Adapters(options).load_into(*model, /*untied=*/false);
  finish(*model, options);
  return model;
}

}  // namespace hotswap
