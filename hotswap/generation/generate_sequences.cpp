// generate() as a client of the scheduler: every prompt is a sequence of its own length, and rows that end leave.
#include <algorithm>

#include "hotswap/engine/scheduler.h"
#include "hotswap/generation/generate_impl.h"

namespace hotswap::generation {

GenerateResult generate_sequences(const Call& call) {
  const int64_t batch = call.batch(), most = *call.config.max_new_tokens;
  std::vector<std::vector<int64_t>> prompts = prompts_of(call.ids, call.mask);
  GenerateResult result;
  int64_t longest = 0;
  std::vector<int64_t> lengths;  // of the prompts
  for (const auto& prompt : prompts) {
    lengths.push_back(static_cast<int64_t>(prompt.size()));
    longest = std::max(longest, lengths.back());
    result.prompt_tokens += lengths.back();
  }
  const auto stops = stop_strings(call);
  const int64_t padding = padding_token(call, stops.get());
  const std::shared_ptr<Sampler> sampler = make_sampler(call);
  Scheduler scheduler(call.model, {.max_sequences = batch,
                                   .max_tokens = longest + std::min(most, kReserved) - 1,
                                   .capture = captures(call.model, call.config)});
  for (int64_t row = 0; row < batch; ++row) {  // the scheduler's ids are the rows
    Sequence sequence{
        .tokens = std::move(prompts[row]),
        .sampler = sampler,
        .stop = {.max_new_tokens = most, .eos = call.config.eos_token_id.value_or(std::vector<int64_t>())}};
    if (stops) sequence.stop.ends_with = [&stops, row](int64_t token) { return stops->end(row, token); };
    sequence.restart_length = restart_length(call.model, static_cast<int64_t>(sequence.tokens.size()));
    scheduler.join(std::move(sequence));
  }
  result.new_ids.resize(batch);
  std::vector<int64_t> all;  // [steps, batch]
  for (bool go_on = true; go_on && !scheduler.idle();) {
    std::vector<int64_t> tokens(batch, padding);
    for (const NewToken& token : scheduler.step()) {
      tokens[token.sequence] = token.id;
      result.new_ids[token.sequence].push_back(token.id);
    }
    all.insert(all.end(), tokens.begin(), tokens.end());
    if (++result.steps == 1) result.prefill_ms = call.ms();
    go_on = !call.arguments.on_tokens || call.arguments.on_tokens(tokens);
  }
  result.ids = with_new_tokens(call.ids, all);
  int64_t length = 0;
  for (size_t row = 0; row < lengths.size(); ++row) {
    length = std::max(length, lengths[row] + static_cast<int64_t>(result.new_ids[row].size()));
  }
  result.captured = scheduler.runner().replays() > 0;
  if (!result.captured) {
    const std::string& why = scheduler.runner().why_not_captured();
    result.why_not_captured = why.empty() ? "no shape of a step came twice" : why;
  }
  warn_beyond_positions(call.model, length);
  result.decode_ms = call.ms() - result.prefill_ms;
  return result;
}

}  // namespace hotswap::generation
