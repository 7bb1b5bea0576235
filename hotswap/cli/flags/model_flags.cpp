#include "hotswap/cli/flags/model_flags.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <iostream>
#include <iterator>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/log.h"
#include "hotswap/cli/flags/usage_error.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/model_folder.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

std::vector<int64_t> checked_row(const Json& json, int64_t vocab) {
  auto row = json.as<std::vector<int64_t>>();
  const auto bad = std::find_if(row.begin(), row.end(), [&](int64_t id) { return id < 0 || id >= vocab; });
  if (row.empty() || bad != row.end()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("token ids from 0 to ", vocab - 1, " in ", json.where()),
                 .got = row.empty() ? "an empty list" : cat(*bad),
                 .next = "make the ids with this model's tokenizer"});
  }
  return row;
}

TokenizerOptions tokenizer_options(const ModelFlags& flags) {
  TokenizerOptions options{.revision = flags.revision};
  if (!flags.gguf_file.empty()) options.gguf_file = flags.gguf_file;
  return options;
}

// Fallback is never silent: on stderr, so that a verb's answer stays alone on stdout.
void report_left_stock(const KernelReport& report) {
  if (!report.left_stock().rows.empty()) std::cerr << report;
}

// What text becomes, and how a chat is written, is the model's: an adapter's folder may hold files of its own.
void warn_of_other_texts(const ModelFlags& flags, const std::string& adapter_name) {
  if (gguf_path(flags)) return;  // a file, which has no such files to compare with
  const fs::path adapter = adapter_folder(adapter_name);
  for (const char* name : {"tokenizer.json", "chat_template.jinja"}) {
    const auto theirs = read_file_if_there(adapter / name), ours = read_file_if_there(fs::path(flags.model) / name);
    if (!theirs || theirs == ours) continue;
    log_warning((adapter / name).string(), " is not that of ", flags.model, ", which is used: copy it there if the ",
                "adapter was trained with it");
  }
}

}  // namespace

void add_tokenizer_flags(CLI::App& verb, ModelFlags& flags) {
  verb.add_option("--model,model", flags.model, "Folder of the model, a .gguf file, or org/name on the Hub")
      ->required()
      ->type_name("DIR|ID");
  verb.add_option("--revision", flags.revision, "Branch, tag or commit of a model of the Hub")->capture_default_str();
  verb.add_option("--gguf-file", flags.gguf_file, "This GGUF file of the folder")->type_name("FILE");
}

void add_base_model_flags(CLI::App& verb, ModelFlags& flags) {
  add_tokenizer_flags(verb, flags);
  verb.add_option("--device", flags.device, "cpu, cuda, cuda:N, or auto")->capture_default_str();
  verb.add_option("--dtype", flags.dtype,
                  "float32, bfloat16, float16, or auto: as in config.json; of a quantised GGUF file float32,\n"
                  "on a GPU bfloat16")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16"}))
      ->capture_default_str();
  verb.add_option(
          "--packed", flags.packed,
          "Quantised weights (GGUF, int4, FP8) stay packed in memory where they can: on, off, or auto: where kernels\n"
          "are asked for and have such products, on the CPU, and on a GPU in chat and generate")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  verb.add_option(
      "--attn-implementation", flags.attention,
      "sdpa, eager, or a kernel as org/repo[@revision]; default: sdpa where it computes the model's attention");
}

void add_model_flags(CLI::App& verb, ModelFlags& flags) {
  add_base_model_flags(verb, flags);
  verb.add_option("--adapter", flags.adapter,
                  "A LoRA adapter of peft beside the model's weights: its folder, or org/name on the Hub")
      ->type_name("DIR|ID");
}

ModelFlags located(ModelFlags flags) {
  flags.model =
      model_folder(flags.model, flags.revision, flags.gguf_file.empty() ? std::nullopt : std::optional(flags.gguf_file))
          .string();
  return flags;
}

std::shared_ptr<CausalLM> load_model(const ModelFlags& flags, const KernelFlags& kernels, LeftStock left) {
  check_one_attention(flags, kernels);
  PretrainedOptions options{.use_kernels = kernels.any(),
                            .kernel_config = kernel_config_of(kernels),
                            .strict = kernels.strict,
                            .allow_all_kernels = kernels.allow_all,
                            .kernel_project = kernels.project,
                            .attn_implementation = flags.attention,
                            .dtype = flags.dtype,
                            .device_map = flags.device,
                            .revision = flags.revision,
                            .adapter = flags.adapter,
                            .quantization_config = flags.quantization,
                            .is_trainable = flags.trains_adapter};
  options.few_rows = flags.few_rows;
  options.row_adapters.assign(flags.row_adapters.begin(), flags.row_adapters.end());
  options.gpu_attention = flags.gpu_attention;
  if (!flags.gguf_file.empty()) options.gguf_file = flags.gguf_file;
  if (flags.packed != "auto") options.keep_formats = flags.packed == "on";
  const auto model = flags.random_weights ? AutoModelForCausalLM::from_random(flags.model, options)
                                          : AutoModelForCausalLM::from_pretrained(flags.model, options);
  if (left == LeftStock::kReported) report_left_stock(model->kernel_report());
  if (!flags.adapter.empty()) warn_of_other_texts(flags, flags.adapter);
  for (const std::string& adapter : flags.row_adapters) warn_of_other_texts(flags, adapter);
  return model;
}

std::shared_ptr<CausalLM> load_beside(const std::string& name, const ModelFlags& flags, const KernelFlags& kernels) {
  if (name.empty()) return nullptr;
  return load_model(located({.model = name,
                             .device = flags.device,
                             .dtype = flags.dtype,
                             .attention = flags.attention,
                             .packed = flags.packed,
                             .few_rows = flags.few_rows}),
                    kernels);
}

std::optional<fs::path> gguf_path(const ModelFlags& flags) {
  if (!flags.gguf_file.empty()) return fs::path(flags.model) / flags.gguf_file;
  if (fs::path(flags.model).extension() == ".gguf") return fs::path(flags.model);
  return std::nullopt;
}

Tokenizer load_tokenizer(const ModelFlags& flags) {
  return Tokenizer::from_pretrained(flags.model, tokenizer_options(flags));
}

ChatTemplate load_chat_template(const ModelFlags& flags) {
  return ChatTemplate::from_pretrained(flags.model, tokenizer_options(flags));
}

std::optional<ChatTemplate> find_chat_template(const ModelFlags& flags) {
  return ChatTemplate::find_pretrained(flags.model, tokenizer_options(flags));
}

ChatRequest read_chat(const std::string& file) {
  const std::string text = file == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : read_file(file);
  const Json json = Json::parse(text, file == "-" ? "stdin" : file);
  if (json.is_array()) return {.messages = json.raw()};
  json.only({"messages", "tools", "documents"});
  ChatRequest request{.messages = json.child("messages").raw()};
  if (const auto tools = json.find("tools")) request.tools = tools->raw();
  if (const auto documents = json.find("documents")) request.documents = documents->raw();
  return request;
}

Rows read_rows(const std::string& file, int64_t vocab) {
  const Json json = Json::read(file);
  const auto elements = json.is_array() ? json.elements() : std::vector<Json>();
  if (elements.empty()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat(json.where(), " to hold a JSON list of token ids, or a list of such lists"),
                 .got = json.is_array() ? "an empty list" : "no list",
                 .next = "for example [[1, 2, 3]]"});
  }
  if (!elements[0].is_array()) return {checked_row(json, vocab)};
  Rows rows;
  for (const Json& element : elements) rows.push_back(checked_row(element, vocab));
  return rows;
}

Rows read_text_row(const std::string& file, const Tokenizer& tokenizer, int64_t limit) {
  auto ids = tokenizer.ids(read_file(file));
  if (limit > 0 && static_cast<int64_t>(ids.size()) > limit) ids.resize(static_cast<size_t>(limit));
  return {std::move(ids)};
}

Tensor row_tensor(const std::vector<int64_t>& ids) {
  Tensor row = at::empty({1, static_cast<int64_t>(ids.size())}, at::TensorOptions(at::kLong));
  std::copy(ids.begin(), ids.end(), row.mutable_data_ptr<int64_t>());
  return row;
}

nlohmann::ordered_json kernels_json(const KernelReport& report) { return report.to_json().at("layers"); }

}  // namespace hotswap
