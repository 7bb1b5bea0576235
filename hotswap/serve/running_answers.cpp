#include "hotswap/serve/running_answers.h"

#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include "hotswap/base/log.h"
#include "hotswap/grammar/schema_validator.h"
#include "hotswap/layers/cache.h"
#include "hotswap/serve/grammar_constraint.h"
#include "hotswap/serve/responses_events.h"

namespace hotswap::serve {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{100};      // how often a thread that waits for tokens looks after its client
constexpr milliseconds kPing{15000};    // proxies close a stream in which nothing comes
constexpr int64_t kScoredAtOnce = 128;  // tokens of a prompt: logits of all would be hundreds of MB

std::shared_ptr<Job> make_job(const ServedModel& model, const GenerationRequest& request, size_t choice) {
  const size_t prompt = choice / static_cast<size_t>(request.n), answer = choice % static_cast<size_t>(request.n);
  RowSampling sampling = request.sampling;
  sampling.seed += answer;
  auto job = std::make_shared<Job>();
  job->prompt = request.prompts[prompt];
  job->sampler = std::make_shared<RowSampler>(std::move(sampling), model.vocab());
  if (request.constraint) {
    job->constraint = std::make_shared<GrammarConstraint>(request.constraint->matcher(), model.tokenizer, model.ends(),
                                                          request.message.thinking);
  }
  job->stop = request.stop;
  job->cache_salt = request.cache_salt;
  job->adapter = request.model.adapter;
  job->stop.max_new_tokens = request.new_tokens(prompt, model.max_model_len);
  job->choice = choice;
  return job;
}

// Of each token of the prompt but the first, given those before it.
std::vector<TokenLogprobs> score_prompt(EngineLoop& engine, const std::vector<int64_t>& prompt,
                                        const GenerationRequest& request, const std::function<bool()>& left) {
  const int64_t top = *request.sampling.logprobs;
  std::vector<TokenLogprobs> out;
  std::shared_ptr<Cache> cache;
  const auto size = static_cast<int64_t>(prompt.size());
  for (int64_t begin = 0; begin + 1 < size && !left(); begin += kScoredAtOnce) {
    engine.run([&](CausalLM& model) {
      const c10::InferenceMode inference;
      if (!cache) cache = model.make_cache();
      const std::vector<int64_t> part(prompt.begin() + begin, prompt.begin() + std::min(size, begin + kScoredAtOnce));
      const Tensor ids = at::tensor(part, at::kLong).unsqueeze(0).to(model.device());
      const CausalLMOutput out_of_part =
          model({.input_ids = ids, .cache = cache.get(), .row_adapters = {request.model.adapter}});
      const Tensor logits = out_of_part.logits[0].to(at::kCPU, at::kFloat);
      const Tensor rows = logits.contiguous();  // [part, vocab]
      const auto vocab = static_cast<size_t>(rows.size(1));
      for (int64_t i = 0; i < rows.size(0) && begin + i + 1 < size; ++i) {
        const float* row = rows.const_data_ptr<float>() + static_cast<size_t>(i) * vocab;
        out.push_back(logprobs_of({row, vocab}, prompt[begin + i + 1], top));
      }
    });
  }
  return out;
}

void add_echo(const ServedModel& model, EngineLoop& engine, const GenerationRequest& request,
              const std::function<bool()>& left, std::vector<Answer>& answers) {
  const auto n = static_cast<size_t>(request.n);
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    const std::vector<int64_t>& prompt = request.prompts[i];
    std::vector<TokenLogprobs> logprobs;
    if (request.sampling.logprobs) logprobs = score_prompt(engine, prompt, request, left);
    const std::string text = model.tokenizer.decode(prompt, request.text.skip_special_tokens);
    const auto offsets = text_offsets(model.tokenizer, prompt, request.text.skip_special_tokens);
    for (size_t k = 0; k < n; ++k) {
      Answer& answer = answers[i * n + k];
      answer.prompt = prompt;
      answer.prompt_offsets = offsets;
      answer.prompt_logprobs = logprobs;
      answer.prompt_text = text;
    }
  }
}

void add_message_part(const MessagePart& part, Answer& answer) {
  switch (part.kind) {
    case MessagePart::Kind::kContent:
      break;  // in the piece's text
    case MessagePart::Kind::kReasoning:
      answer.reasoning += part.text;
      break;
    case MessagePart::Kind::kCall:
      answer.calls.push_back({.name = part.text});
      break;
    case MessagePart::Kind::kArguments:
      answer.calls[part.call].arguments += part.text;
      break;
  }
}

AnswerFormat format_for(const ServedModel& model, const GenerationRequest& request) {
  return {model.tokenizer, request.chat, request.sampling.logprobs.has_value(), request.model.name};
}

}  // namespace

RunningAnswers::RunningAnswers(const ServedModel& model, EngineLoop& engine, const GenerationRequest& request)
    : schema_(request.rules ? request.rules->schema : nullptr),
      whole_(request.choices()),
      metrics_(engine.metrics()),
      open_(request.choices()),
      answers_per_prompt_(static_cast<size_t>(request.n)) {
  for (const auto& prompt : request.prompts) prompt_tokens_ += static_cast<int64_t>(prompt.size());
  for (size_t choice = 0; choice < request.choices(); ++choice) {
    jobs_.push_back(make_job(model, request, choice));
    jobs_.back()->channel = channel_;
    if (request.chat && !request.message.plain()) parsers_.emplace_back(request.message);
    const std::span<const int64_t> prompt = jobs_.back()->prompt;
    texts_.emplace_back(model.tokenizer, request.text, request.continues ? prompt : std::span<const int64_t>());
  }
  engine.submit(jobs_);
}

RunningAnswers::~RunningAnswers() {
  for (const auto& job : jobs_) job->cancelled = true;
}

// Cuts the text into thoughts, content and calls.
void RunningAnswers::read_message(size_t choice, TextPiece& piece) {
  MessageParser& parser = parsers_[choice];
  if (parser.in_thoughts()) ++reasoning_tokens_;
  piece.parts = parser.push(piece.text);
  if (piece.finish_reason != nullptr) {
    for (MessagePart& part : parser.finish()) piece.parts.push_back(std::move(part));
    if (parser.calls() > 0 && std::string_view(piece.finish_reason) == "stop") piece.finish_reason = "tool_calls";
    metrics_.unparsed_calls(parser.unparsed());
  }
  piece.text.clear();
  for (const MessagePart& part : piece.parts) {
    if (part.kind == MessagePart::Kind::kContent) piece.text += part.text;
  }
}

// An answer that the model ended, which the grammar should have kept to the schema. One of calls has no such text.
void RunningAnswers::validate(size_t choice, const TokenEvent& event, TextPiece& piece) {
  std::string& text = whole_[choice] += piece.text;
  if (piece.finish_reason == nullptr || event.finish != Finish::kEos) return;
  if (!parsers_.empty() && parsers_[choice].calls() > 0) return;
  piece.invalid = grammar::answer_problem(*schema_, text);
  if (piece.invalid.empty()) return;
  metrics_.invalid_answer();
  log_warning("serve: an answer that its schema does not allow: ", piece.invalid);
}

std::vector<std::pair<size_t, TextPiece>> RunningAnswers::take(milliseconds wait) {
  std::vector<std::pair<size_t, TextPiece>> pieces;
  for (const TokenEvent& event : channel_->take(wait)) {
    AnswerText& text = texts_[event.choice];
    if (text.ended()) continue;  // tokens after a stop text
    if (event.error) throw ApiError(*event.error);
    if (event.choice % answers_per_prompt_ == 0) cached_tokens_ += event.cached_tokens;  // a prompt counts once
    TextPiece piece = text.push(event);
    if (!parsers_.empty()) read_message(event.choice, piece);
    if (schema_) validate(event.choice, event, piece);
    if (text.ended()) {
      jobs_[event.choice]->stopped = true;
      jobs_[event.choice]->cancelled = true;
      --open_;
    }
    if (!piece.text.empty() || !piece.parts.empty() || !piece.tokens.empty() || piece.finish_reason != nullptr) {
      pieces.emplace_back(event.choice, std::move(piece));
    }
  }
  return pieces;
}

Usage RunningAnswers::usage() const {
  Usage usage{.prompt_tokens = prompt_tokens_, .reasoning_tokens = reasoning_tokens_, .cached_tokens = cached_tokens_};
  for (const AnswerText& text : texts_) usage.completion_tokens += text.tokens();
  return usage;
}

std::string whole_answer(const ServedModel& model, EngineLoop& engine, const GenerationRequest& request,
                         const std::function<bool()>& left) {
  std::vector<Answer> answers(request.choices());
  Usage usage;
  if (request.max_new_tokens != 0) {
    RunningAnswers running(model, engine, request);
    while (!running.ended()) {
      for (auto& [choice, piece] : running.take(kLook)) {
        Answer& answer = answers[choice];
        answer.text += piece.text;
        for (const MessagePart& part : piece.parts) add_message_part(part, answer);
        answer.tokens.insert(answer.tokens.end(), piece.tokens.begin(), piece.tokens.end());
        if (piece.finish_reason != nullptr) answer.finish_reason = piece.finish_reason;
        answer.invalid += piece.invalid;
      }
      if (left()) return "";
    }
    usage = running.usage();
  } else {
    for (Answer& answer : answers) answer.finish_reason = "length";
    for (const auto& prompt : request.prompts) usage.prompt_tokens += static_cast<int64_t>(prompt.size());
  }
  if (request.echo) add_echo(model, engine, request, left, answers);
  return format_for(model, request).whole(answers, usage);
}

std::unique_ptr<AnswerEvents> chunk_events(const ServedModel& model, const GenerationRequest& request) {
  return std::make_unique<ChunkEvents>(format_for(model, request), request.choices(), request.include_usage);
}

std::string whole_response(const ServedModel& model, EngineLoop& engine, const ResponsesRequest& request,
                           const std::function<bool()>& left) {
  ResponsesEvents events(request.settings, request.generation.model.name);
  RunningAnswers running(model, engine, request.generation);
  while (!running.ended()) {
    events.pieces(running.take(kLook));
    if (left()) return "";
  }
  events.end(running.usage());
  return dump(events.response());
}

std::string AnswerStream::events() {
  std::string out = events_->pieces(answers_.take(kLook));
  if (!answers_.ended()) return out;
  ended_ = true;
  return out + events_->end(answers_.usage());
}

bool AnswerStream::next(const std::function<bool(const std::string&)>& write, const std::function<bool()>& left) {
  std::string out;
  try {
    out = events();
  } catch (const std::exception& error) {
    ended_ = true;
    out = events_->failed(api_error(error));
  }
  if (out.empty() && Clock::now() - last_write_ > kPing) out = ": ping\n\n";
  if (out.empty()) return !left();
  last_write_ = Clock::now();
  return !left() && write(out);
}

}  // namespace hotswap::serve
