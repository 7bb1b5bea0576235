#include <ATen/ops/cat.h>

#include <cmath>
#include <cstdio>

#include "hotswap/base/error.h"
#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/cli/flags/value_checks.h"
#include "hotswap/cli/score_rows.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/safetensors.h"

namespace hotswap {
namespace {

struct ScoreFlags {
  ModelFlags model;
  KernelFlags kernels;
  std::string text, ids, logits_out;
  int64_t max_tokens = 0;
  bool json = false;
};

void check_rows(const Rows& rows, bool want_logits) {
  for (const auto& row : rows) {
    if (row.size() < 2) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "texts of at least 2 tokens each: a token is scored by those before it",
                   .got = cat("one of ", row.size()),
                   .next = "leave it out, or make it longer"});
    }
    if (want_logits && row.size() != rows[0].size()) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "rows of equal length for --logits-out",
                   .got = cat("rows of ", rows[0].size(), " and of ", row.size()),
                   .next = "cut them to one length, or score them one file each"});
    }
  }
}

void score_verb(const ScoreFlags& flags) {
  const ModelFlags source = located(flags.model);
  const auto model = load_model(source, flags.kernels);
  const Rows rows = flags.ids.empty() ? read_text_row(flags.text, load_tokenizer(source), flags.max_tokens)
                                      : read_rows(flags.ids, model->config().vocab_size);
  const bool want_logits = !flags.logits_out.empty();
  check_rows(rows, want_logits);
  std::vector<Tensor> logits;
  const Score result = score_rows(*model, rows, want_logits ? &logits : nullptr);
  if (want_logits) save_safetensors(flags.logits_out, {{"logits", at::cat(logits)}});  // [batch, time, vocab]
  if (flags.json) {
    const nlohmann::ordered_json out = {{"loss", result.loss},
                                        {"perplexity", std::exp(result.loss)},
                                        {"tokens", result.tokens},
                                        {"kernels", kernels_json(model->kernel_report())}};
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    std::printf("loss %.6f  perplexity %.4f  tokens %lld\n", result.loss, std::exp(result.loss),
                static_cast<long long>(result.tokens));
  }
}

}  // namespace

void add_score(CLI::App& app) {
  auto* verb = app.add_subcommand("score", "The model's loss on a text: mean next-token cross-entropy");
  auto flags = std::make_shared<ScoreFlags>();
  add_model_flags(*verb, flags->model);
  add_kernel_flags(*verb, flags->kernels);
  auto* what = verb->add_option_group("what");
  what->add_option("--text", flags->text, "A UTF-8 file, scored as one window with the tokenizer's special tokens")
      ->type_name("FILE");
  what->add_option("--ids", flags->ids, "A JSON file: a list of lists of token ids")->type_name("FILE");
  what->require_option(1);
  verb->add_option("--max-tokens", flags->max_tokens, "Use only the first N ids of the text; 0: all")
      ->check(zero_or_more());
  verb->add_option("--logits-out", flags->logits_out, "Write the logits [batch, time, vocab] as float32 'logits'")
      ->type_name("F.safetensors");
  verb->add_flag("--json", flags->json, "Print JSON: loss, perplexity, tokens (ids scored), kernels");
  verb->callback([flags] { score_verb(*flags); });
}

}  // namespace hotswap
