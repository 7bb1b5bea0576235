// Stop texts in pieces, sampling of one row, metrics: what needs no server.
#include <cmath>
#include <map>

#include "hotswap/serve/answer_text.h"
#include "hotswap/serve/metrics.h"
#include "hotswap/serve/test_server.h"

namespace hotswap {
namespace {

using serve::StopScanner;
using test_support::expect_has;
using test_support::message_of;
using test_support::OutJson;

std::string scanned(std::vector<std::string> stops, const std::vector<std::string>& pieces, bool include = false) {
  StopScanner scanner(std::move(stops), include);
  std::string out;
  for (const std::string& piece : pieces) out += scanner.push(piece);
  return out + scanner.finish();
}

TEST(Stops, AreFoundAcrossPieces) {
  EXPECT_EQ(scanned({"END"}, {"a E", "N", "Db"}), "a ");
  EXPECT_EQ(scanned({"END"}, {"a EN", "x"}), "a ENx");
  EXPECT_EQ(scanned({"END"}, {"a EN"}), "a EN") << "what was kept back comes at the end";
  EXPECT_EQ(scanned({"b", "abc"}, {"xabc"}), "x") << "text before the first match, of whichever text";
  EXPECT_EQ(scanned({"aab"}, {"aa", "ab"}), "a");
  EXPECT_EQ(scanned({"END"}, {"a E", "ND", "more"}, true), "a END");
}

TEST(Stops, KeepBackNoMoreThanNeeded) {
  StopScanner scanner({"\n\n"}, false);
  EXPECT_EQ(scanner.push("line"), "line");
  EXPECT_EQ(scanner.push("\n"), "");
  EXPECT_EQ(scanner.push("x"), "\nx");
}

// Words of one token each; the decoder drops the blank before the first word of a text.
TEST(AnswerTexts, KeepTheBlankBetweenAPromptAndItsContinuation) {
  const OutJson metaspace = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}};
  const OutJson file = {{"version", "1.0"},
                        {"added_tokens", OutJson::array()},
                        {"pre_tokenizer", metaspace},
                        {"decoder", metaspace},
                        {"model",
                         {{"type", "WordLevel"},
                          {"unk_token", "\u2581once"},
                          {"vocab", {{"\u2581once", 0}, {"\u2581upon", 1}, {"\u2581a", 2}}}}}};
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "tokenizer.json");
  const auto text = [&](std::vector<int64_t> before) {
    serve::AnswerText answer(tokenizer, {}, before);
    const std::string first = answer.push({.id = 1}).text;
    return first + answer.push({.id = 2, .finish = Finish::kLength}).text;
  };
  EXPECT_EQ(text({}), "upon a") << "a message of its own";
  EXPECT_EQ(text({0}), " upon a");
  EXPECT_EQ(text(std::vector<int64_t>(40, 0)), " upon a");
}

TEST(AnswerTexts, AreCountedInCharacters) { EXPECT_EQ(serve::characters("a\u00e9\U0001F600"), 3); }

// Half of a character is no character, and a special token that is left out has none.
TEST(AnswerTexts, OffsetsAreOfTheTextNotOfTheTokensTexts) {
  const Tokenizer tokenizer = test_support::byte_tokenizer();
  const std::vector<int64_t> ids = {test_support::kEnd, 'a', 0xC3, 0xA9, 'b', 'c'};
  EXPECT_EQ(serve::text_offsets(tokenizer, ids, true), (std::vector<int64_t>{0, 0, 1, 1, 2, 3}));
  EXPECT_EQ(serve::text_offsets(tokenizer, ids, false), (std::vector<int64_t>{0, 7, 8, 8, 9, 10}));
}

SampledToken drawn(const RowSampling& settings, const std::vector<float>& logits, std::vector<int64_t> tokens = {0}) {
  return RowSampler(settings, static_cast<int64_t>(logits.size())).next(logits, tokens, 1);
}

TEST(RowSampling, DrawsAsOftenAsProbable) {
  const std::vector<float> logits = {0, std::log(2.f), std::log(3.f), std::log(4.f), -50};
  std::map<int64_t, int> counts;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) ++counts[drawn({.seed = static_cast<uint64_t>(i)}, logits).id];
  for (int id = 0; id < 4; ++id) {
    const double p = (id + 1) / 10.0;
    EXPECT_NEAR(counts[id], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << id;  // five standard deviations
  }
  EXPECT_EQ(counts[4], 0);
}

TEST(RowSampling, KeepsWhatItsSettingsKeep) {
  const std::vector<float> logits = {0, std::log(2.f), std::log(3.f), std::log(4.f)};
  const auto kept = [&](RowSampling settings) {
    std::set<int64_t> ids;
    for (uint64_t seed = 0; seed < 300; ++seed) {
      settings.seed = seed;
      ids.insert(drawn(settings, logits).id);
    }
    return ids;
  };
  using Ids = std::set<int64_t>;
  EXPECT_EQ(kept({}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(kept({.top_k = 2}), (Ids{2, 3}));
  EXPECT_EQ(kept({.top_p = 0.6}), (Ids{2, 3})) << "0.4 and 0.3";
  EXPECT_EQ(kept({.top_p = 0.39}), (Ids{3}));
  EXPECT_EQ(kept({.min_p = 0.6}), (Ids{2, 3}));
  EXPECT_EQ(kept({.temperature = 0}), (Ids{3}));
  for (const double cold : {1e-4, 1e-30, 1e-40, 1e-300}) EXPECT_EQ(kept({.temperature = cold}), (Ids{3})) << cold;
  EXPECT_EQ(kept({.temperature = 0, .presence_penalty = 2}), (Ids{3})) << "token 3 was not made yet";
  EXPECT_EQ(kept({.logit_bias = {{3, -100}, {2, -100}}}), (Ids{0, 1}));
  EXPECT_EQ(kept({.min_new_tokens = 1, .ends = {3, 2}}), (Ids{0, 1}));
}

TEST(RowSampling, TheNucleusIsExactWhereItIsWide) {
  std::vector<float> flat(5000, 0.f);
  flat[17] = 1e-3f;
  std::set<int64_t> ids;
  for (uint64_t seed = 0; seed < 2000; ++seed) ids.insert(drawn({.top_p = 0.5, .seed = seed}, flat).id);
  EXPECT_GT(ids.size(), 1200u);
  EXPECT_LT(*ids.rbegin(), 2501) << "of equal ones the first";
}

TEST(RowSampling, PenaltiesAreOfTokensSoFar) {
  const std::vector<float> logits = {1, 1.5, 2, -1};
  EXPECT_EQ(drawn({.temperature = 0, .frequency_penalty = 0.6}, logits, {0, 2}).id, 1);
  EXPECT_EQ(drawn({.temperature = 0, .frequency_penalty = 0.3}, logits, {0, 2}).id, 2);
  EXPECT_EQ(drawn({.temperature = 0, .frequency_penalty = 0.3}, logits, {0, 2, 2}).id, 1) << "twice";
  EXPECT_EQ(drawn({.temperature = 0, .presence_penalty = 0.3}, logits, {2, 2, 2}).id, 2) << "once, however often";
  EXPECT_EQ(drawn({.temperature = 0, .repetition_penalty = 2}, logits, {2}).id, 1) << "of the prompt, too";
}

TEST(RowSampling, LogprobsAreOfRawLogits) {
  const std::vector<float> logits = {0, std::log(2.f), std::log(3.f), std::log(4.f)};
  const auto token = drawn({.temperature = 0, .logit_bias = {{0, 100}}, .logprobs = 2}, logits);
  ASSERT_TRUE(token.logprobs);
  EXPECT_EQ(token.id, 0);
  EXPECT_NEAR(token.logprobs->logprob, std::log(0.1), 1e-6);
  ASSERT_EQ(token.logprobs->top.size(), 2u);
  EXPECT_EQ(token.logprobs->top[0].first, 3);
  EXPECT_NEAR(token.logprobs->top[1].second, std::log(0.3), 1e-6);
}

TEST(RowSampling, RefusesWhatMakesNoSense) {
  for (const RowSampling& bad : {RowSampling{.temperature = -1},
                                 {.top_k = -1},
                                 {.top_p = 0},
                                 {.min_p = 2},
                                 {.repetition_penalty = 0},
                                 {.logit_bias = {{4, 1}}},
                                 {.min_new_tokens = -1}}) {
    expect_has(message_of([&] { RowSampler(bad, 4); }), {"expected"});
  }
}

TEST(MetricsText, EscapesNames) {
  expect_has(serve::Metrics().text("vllm", "a\"b\\c\nd", {}), {"{model_name=\"a\\\"b\\\\c\\nd\"} 0"});
}

TEST(MetricsText, CountsInBuckets) {
  serve::Metrics metrics;
  metrics.prompt_started(10, 0.002);
  metrics.first_token(0.3);
  metrics.next_token(0.02);
  metrics.finished("stop", 2, 0.4);
  const std::string text = metrics.text("vllm", "m", {.running = 1});
  expect_has(text, {"vllm:prompt_tokens_total{model_name=\"m\"} 10", "vllm:generation_tokens_total{model_name=\"m\"} 2",
                    "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"0.5\"} 1",
                    "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"0.25\"} 0",
                    "vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 1",
                    "vllm:num_requests_running{model_name=\"m\"} 1"});
}

}  // namespace
}  // namespace hotswap
