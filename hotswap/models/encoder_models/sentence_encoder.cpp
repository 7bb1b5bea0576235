#include "hotswap/models/encoder_models/sentence_encoder.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/encoder_models/packed_run.h"
#include "hotswap/models/encoder_models/sentence_folder.h"
#include "hotswap/models/encoder_models/sentence_stages.h"
#include "hotswap/models/encoder_models/tokenizer_settings.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap {
namespace {

using Ids = std::vector<int64_t>;

// do_lower_case of sentence-transformers: before all that the tokenizer does.
std::string lowercased(const std::string& text) {
  if (tokenizers::find_invalid_utf8(text) != std::string::npos) return text;  // which the tokenizer refuses
  std::string lower;
  for (size_t at = 0; at < text.size();) {
    const tokenizers::CodePoint point = tokenizers::code_point_at(text, at);
    if (point.value == 0x130) {  // becomes two
      lower += "i\u0307";
    } else {
      tokenizers::append_utf8(lower, tokenizers::to_lowercase(point.value));
    }
    at += point.size;
  }
  return lower;
}

}  // namespace

struct SentenceEncoder::Stages : SentenceStages {
  explicit Stages(SentenceStages read) : SentenceStages(std::move(read)) {}
  int64_t out = 0;
};

SentenceEncoder::~SentenceEncoder() = default;

SentenceEncoder::SentenceEncoder(std::shared_ptr<TextModel> model, Tokenizer tokenizer,
                                 const std::filesystem::path& folder)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      stages_(std::make_unique<Stages>(read_sentence_stages(folder))) {
  stages_->out = model_->hidden_size() * static_cast<int64_t>(stages_->pooling.modes.size());
  for (const auto& stage : stages_->after) stages_->out = stage->out(stages_->out);
  max_seq_length_ = read_tokenizer_settings(stages_->model_folder, model_->max_positions()).max_length;
  for (const char* name : {"sentence_bert_config.json", "sentence_roberta_config.json"}) {
    const auto config = read_if_there(stages_->model_folder / name);
    if (!config) continue;
    if (config->has("max_seq_length")) {
      const int64_t limit = positive(*config, "max_seq_length"), positions = model_->max_positions();
      max_seq_length_ = positions == 0 ? limit : std::min(positions, limit);
    }
    lower_case_ = config->get<bool>("do_lower_case", false);
    break;
  }
  const auto config = read_if_there(folder / "config_sentence_transformers.json");
  if (!config) return;
  if (const auto prompts = config->find("prompts")) {
    for (const auto& [name, prompt] : prompts->items()) prompts_[name] = prompt.as<std::string>();
  }
  if (config->has("default_prompt_name")) default_prompt_ = config->at<std::string>("default_prompt_name");
  if (default_prompt_ && !prompts_.contains(*default_prompt_)) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = "a default_prompt_name that prompts has",
                 .got = cat('"', *default_prompt_, "\" in ", config->where()),
                 .next = "correct config_sentence_transformers.json"});
  }
}

std::shared_ptr<SentenceEncoder> SentenceEncoder::from_pretrained(const std::filesystem::path& name,
                                                                  const TextOptions& options) {
  const std::filesystem::path folder = sentence_folder(name, options.revision);
  const SentenceStages stages = read_sentence_stages(folder);
  auto model = AutoModel::from_pretrained(stages.model_folder, options);
  return std::make_shared<SentenceEncoder>(std::move(model), Tokenizer::from_folder(stages.model_folder), folder);
}

int64_t SentenceEncoder::dimensions() const { return stages_->out; }
bool SentenceEncoder::normalizes() const { return !stages_->after.empty() && stages_->after.back()->normalizes(); }
int64_t SentenceEncoder::max_seq_length() const { return max_seq_length_; }

std::string SentenceEncoder::prompt_of(const EncodeArguments& a) const {
  if (a.prompt) return *a.prompt;
  const auto name = a.prompt_name ? a.prompt_name : default_prompt_;
  if (!name) return "";
  if (const auto found = prompts_.find(*name); found != prompts_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, prompt] : prompts_) names.push_back(known);
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = names.empty() ? "no prompt name: the model has no prompts" : cat("a prompt: ", join(names)),
               .got = cat('"', *name, '"'),
               .next = names.empty() ? "leave it out" : "take one of them"});
}

std::vector<Ids> SentenceEncoder::ids(const std::vector<std::string>& texts, const EncodeArguments& arguments) const {
  const std::string prompt = prompt_of(arguments);
  std::vector<std::string> whole;
  std::vector<std::string_view> views;
  whole.reserve(texts.size());
  for (const std::string& text : texts) {
    whole.push_back(lower_case_ ? lowercased(prompt + text) : prompt + text);
    views.push_back(whole.back());
  }
  EncodeOptions options{.ids_only = true};
  if (max_seq_length_ > 0 && arguments.truncate) options.truncation = Truncation{.max_length = max_seq_length_};
  std::vector<Ids> ids;
  ids.reserve(texts.size());
  for (Encoding& encoding : tokenizer_.encode_batch(views, options)) ids.push_back(std::move(encoding.ids));
  check_lengths_of(ids);
  return ids;
}

void SentenceEncoder::check_lengths_of(const std::vector<Ids>& ids) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto length = static_cast<int64_t>(ids[i].size());
    if (max_seq_length_ == 0 || length <= max_seq_length_) continue;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("texts of at most ", max_seq_length_, " tokens"),
                 .got = cat(length, " in text ", i),
                 .next = "cut the text into parts, or let it be cut (truncate)"});
  }
}

// Only the prompt, without what the tokenizer adds after it.
int64_t SentenceEncoder::prompt_tokens(const std::string& prompt) const {
  if (prompt.empty() || stages_->pooling.include_prompt) return 0;
  const Ids ids = this->ids({std::string()}, {.prompt = prompt}).front();
  const bool ends = !ids.empty() && tokenizer_.is_special(ids.back());
  return static_cast<int64_t>(ids.size()) - (ends ? 1 : 0);
}

Tensor SentenceEncoder::encode(const std::vector<std::string>& texts, const EncodeArguments& arguments) const {
  return encode_ids(ids(texts, arguments), arguments);
}

Tensor SentenceEncoder::encode_ids(const std::vector<Ids>& ids, const EncodeArguments& arguments) const {
  if (arguments.dimensions && (*arguments.dimensions < 1 || *arguments.dimensions > dimensions())) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("from 1 to ", dimensions(), " dimensions"),
                 .got = cat(*arguments.dimensions),
                 .next = "request as many as the model's vectors have, or fewer"});
  }
  check_lengths_of(ids);
  const at::NoGradGuard no_grad;
  const int64_t prompt = prompt_tokens(prompt_of(arguments));
  std::vector<TextIds> texts;
  texts.reserve(ids.size());
  for (const Ids& text : ids) texts.push_back({text});
  const auto rows_of = [&](const TextOutput& out, const std::vector<int64_t>& lengths) {
    const Tensor hidden = out.last_hidden_state.flatten(0, 1);
    Tensor vectors = stages_->pooling.forward(hidden, lengths, prompt).to(at::kCPU, at::kFloat);
    for (const auto& stage : stages_->after) vectors = stage->forward(vectors);
    return vectors;
  };
  Tensor rows = run_packed(*model_, texts, dimensions(), rows_of);
  if (arguments.dimensions) rows = rows.narrow(1, 0, *arguments.dimensions).contiguous();
  return arguments.normalize_embeddings ? unit_length(rows) : rows;
}

}  // namespace hotswap
