#include "hotswap/models/encoder_models/text_model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <set>
#include <utility>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/layers/self_attention.h"
#include "hotswap/layers/slot.h"
#include "hotswap/models/attn_implementation.h"
#include "hotswap/models/config.h"
#include "hotswap/models/encoder_models/text_family.h"
#include "hotswap/models/encoder_models/text_loss.h"
#include "hotswap/models/formats/weights.h"
#include "hotswap/models/tokenizer_files.h"
#include "hotswap/models/trunk_input.h"

namespace hotswap {
namespace {

const char* class_ending(TextTask task) {
  switch (task) {
    case TextTask::kBase:
      return "Model";
    case TextTask::kSequenceClassification:
      return "ForSequenceClassification";
    case TextTask::kTokenClassification:
      return "ForTokenClassification";
    case TextTask::kMaskedLM:
      return "ForMaskedLM";
  }
  return "";
}

TextFamily family_with(const Json& config, TextTask task) {
  TextFamily family = text_family_of(config);
  if (std::find(family.tasks.begin(), family.tasks.end(), task) != family.tasks.end()) return family;
  std::vector<std::string> names;
  for (const TextTask known : family.tasks) names.push_back(family.class_stem + class_ending(known));
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a class that a model of type ", family.model_type, " has: ", join(names)),
               .got = family.class_stem + class_ending(task),
               .next = "take one of them"});
}

void check_types(const Tensor& types, const Tensor& ids, int64_t count) {
  if (!types.defined()) return;
  if (count == 0 || types.sizes() != ids.sizes()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = count == 0 ? "no token_type_ids for a model without types of tokens"
                                      : cat("token_type_ids [", join(ids.sizes()), "]"),
                 .got = cat("[", join(types.sizes()), "]"),
                 .next = "leave token_type_ids out, or give each token its type"});
  }
  check_tensor(types, "token_type_ids", at::kLong, ids.device());
  const int64_t low = types.min().item<int64_t>(), high = types.max().item<int64_t>();
  if (low >= 0 && high < count) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("token_type_ids in [0, ", count, ")"),
               .got = cat(low < 0 ? low : high),
               .next = "take those that the model's tokenizer makes"});
}

TextBatch batch_of(const TextArguments& a, const TextParts& parts, at::Device device) {
  check_input({.input_ids = a.input_ids, .attention_mask = a.attention_mask, .position_ids = a.position_ids},
              {.vocab_size = parts.vocab_size, .device = device});
  TextBatch batch{.ids = a.input_ids,
                  .token_type_ids = a.token_type_ids,
                  .position_ids = a.position_ids,
                  .padding = a.attention_mask.defined() ? a.attention_mask.to(at::kBool) : Tensor(),
                  .lengths = a.lengths};
  check_lengths(batch);
  check_types(a.token_type_ids, a.input_ids, parts.type_vocab_size);
  if (batch.padding.defined() && batch.padding.all().item<bool>()) batch.padding = Tensor();
  if (parts.max_positions > 0 && parts.has_position_table && batch.longest() > parts.max_positions) {
    throw Error(
        {.kind = ErrorKind::kInvalidArgument,
         .wanted = cat("sequences of at most ", parts.max_positions, " tokens: the model has no more positions"),
         .got = cat(batch.longest()),
         .next = cat("cut them: truncation with max_length = ", parts.max_positions)});
  }
  return batch;
}

}  // namespace

TextModel::TextModel(Json config, TextTask task)
    : task_(task),
      config_json_(std::move(config)),
      family_(std::make_unique<TextFamily>(family_with(config_json_, task))),
      parts_(std::make_unique<TextParts>(family_->make(config_json_, task))),
      loss_(std::make_unique<ClassLoss>()) {
  own(task == TextTask::kBase ? "" : family_->prefix, *parts_->trunk);
  if (parts_->head) own("", *parts_->head);
  if (task != TextTask::kBase) own("loss_function", *loss_);
  set_attn_implementation("");
}

TextModel::~TextModel() = default;

std::string TextModel::class_name() const { return family_->class_stem + class_ending(task_); }
int64_t TextModel::hidden_size() const { return parts_->hidden_size; }
int64_t TextModel::num_labels() const { return parts_->num_labels; }
int64_t TextModel::max_positions() const { return parts_->max_positions; }
bool TextModel::has_token_types() const { return parts_->type_vocab_size > 0; }
at::Device TextModel::device() const { return parts_->trunk->word_embeddings().data().device(); }
at::ScalarType TextModel::dtype() const { return parts_->trunk->dtype(); }
TextTrunk& TextModel::trunk() const { return *parts_->trunk; }

TextOutput TextModel::forward(const TextArguments& a) {
  const c10::DeviceGuard current(device());
  const TextBatch batch = batch_of(a, *parts_, device());
  TextOutput out;
  out.last_hidden_state = parts_->trunk->forward(batch, a.output_hidden_states ? &out.hidden_states : nullptr);
  out.pooler_output = parts_->trunk->pooled(out.last_hidden_state, batch);
  if (parts_->head) out.logits = parts_->head->logits(out.last_hidden_state, out.pooler_output, batch);
  if (!a.labels.defined()) return out;
  if (!parts_->head) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("no labels for ", class_name(), ", which has no head"),
                 .got = "labels",
                 .next = "load the model as the task's class, for example ForSequenceClassification"});
  }
  out.loss = loss_of(out.logits, a.labels.to(device()));
  return out;
}

Tensor TextModel::loss_of(const Tensor& logits, const Tensor& labels) const {
  const auto& classes = dynamic_cast<const ClassLoss&>(*loss_);
  if (task_ == TextTask::kSequenceClassification) {
    return text_loss(classes, {.logits = logits,
                               .labels = labels,
                               .problem_type = config_json_.get<std::string>("problem_type", ""),
                               .soft = parts_->soft_labels});
  }
  if (labels.dim() != 2 || labels.size(0) != logits.size(0) || labels.size(1) != logits.size(1)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("labels [", logits.size(0), ", ", logits.size(1), "], one a token"),
                 .got = cat("[", join(labels.sizes()), "]"),
                 .next = "give each token its label, -100 where it does not count"});
  }
  check_tensor(labels, "labels", at::kLong, device());
  return classes.forward(logits, labels);
}

const KernelReport& TextModel::kernelize(Mode mode, KernelOptions options) {
  const KernelOptions before = std::exchange(kernel_options_, std::move(options));
  const bool swapped = std::exchange(swaps_layers_, true);
  try {
    return bind(mode);
  } catch (...) {  // nothing was bound
    kernel_options_ = before;
    swaps_layers_ = swapped;
    throw;
  }
}

// The caller's mapping, and a row for the attention where that has none: attn_implementation's. Where nothing
// else is to be swapped, every other layer is mapped to stock.
const KernelReport& TextModel::bind(Mode mode) {
  KernelOptions options = kernel_options_;
  auto& mapping = options.config.kernel_mapping;
  if (!swaps_layers_) {
    std::set<std::string> others;
    each_slot([&](const std::string&, SlotBase& slot) { others.insert(slot.layer()); });
    others.erase(kAttentionLayer);
    options.config = {.inherit_mapping = false};
    for (const std::string& layer : others) mapping.emplace_back(layer, KernelChoice(""));
  }
  const bool named =
      std::any_of(mapping.begin(), mapping.end(), [](const auto& row) { return row.first == kAttentionLayer; });
  if (named && is_attention_kernel(attn_implementation_)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "one kernel for the attention",
                 .got = cat("attn_implementation ", attn_implementation_, " and a row of the kernel mapping for ",
                            kAttentionLayer),
                 .next = "drop one of them"});
  }
  if (!named) {
    mapping.emplace_back(kAttentionLayer, KernelChoice(attention_kernel(attn_implementation_, options.allow_all_kernels,
                                                                        options.project)));
  }
  return kernels_.kernelize(*this, mode, std::move(options));
}

void TextModel::unkernelize() {
  kernels_.unkernelize(*this);
  swaps_layers_ = false;
  kernel_options_ = {};
}

void TextModel::set_attn_implementation(const std::string& requested, const KernelOptions& options) {
  const std::string name = requested.empty() ? parts_->stock_attention : requested;
  check_attn_implementation(name);
  const std::string before = std::exchange(attn_implementation_, name);
  const bool by_kernel = is_attention_kernel(name);
  if (!swaps_layers_) kernel_options_ = options;
  try {
    if (device().is_meta()) {
      // Nothing to bind to: kernelize() does it, or this again, when the weights are there.
    } else if (swaps_layers_ || by_kernel) {
      bind(Mode::of_training(training()));
    } else {
      kernels_.unkernelize(*this);
    }
  } catch (...) {
    attn_implementation_ = before;
    throw;
  }
  set_stock_attention(*parts_->trunk, attention_kind(by_kernel ? parts_->stock_attention : name));
}

void TextModel::on_mode_change() { kernels_.on_mode_change(*this); }

void TextModel::init_weights(uint64_t seed, at::ScalarType dtype, at::Device device) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  each_init([&](Tensor& tensor, const Init& init) {
    const bool needs_grad = tensor.requires_grad();
    Tensor fresh = at::empty(tensor.sizes(), at::TensorOptions().dtype(at::kFloat));
    if (init.value) {
      fresh.fill_(*init.value);
    } else if (init.draw) {
      init.draw(fresh, generator);
    } else {
      fresh.normal_(0, parts_->initializer_range, generator);
    }
    tensor = fresh.to(device, dtype);
    tensor.set_requires_grad(needs_grad);
  });
}

void TextModel::save_pretrained(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  nlohmann::ordered_json config = config_json_.raw();
  config.erase("torch_dtype");  // its name before transformers 5
  config["dtype"] = dtype_name(dtype());
  config["architectures"] = {class_name()};
  write_file(folder / "config.json", config.dump(2) + "\n");
  save_pretrained_weights(folder, named_tensors(*this));
  if (!source_.empty()) copy_tokenizer_files(source_, folder);
}

}  // namespace hotswap
