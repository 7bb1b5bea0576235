#include "hotswap/models/quantize/quantize.h"

#include <cmath>
#include <cstdio>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/base/progress.h"
#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/cli/flags/value_checks.h"
#include "hotswap/cli/print/table.h"
#include "hotswap/cli/score_rows.h"
#include "hotswap/cli/verbs.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

struct QuantizeFlags {
  std::string model, out, text;
  QuantizeOptions options;
  int64_t max_tokens = 2048;
  bool json = false;
};

struct Losses {
  double before = 0, after = 0;
  int64_t tokens = 0;
};

// "model.layers.3" of a decoder layer's tensor, the module's name of the others.
std::string part_of(const std::string& tensor) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!tensor.starts_with(kLayers)) return tensor.substr(0, tensor.rfind('.'));
  return tensor.substr(0, tensor.find('.', kLayers.size()));
}

// The tensors of one row of the table.
struct Part {
  std::string name;
  std::set<std::string> types;
  double squared_error = 0, squared_norm = 0;
  const QuantizedTensor* worst = nullptr;
};

std::vector<Part> parts_of(const QuantizeReport& report) {
  std::vector<Part> parts;
  for (const QuantizedTensor& tensor : report.tensors) {
    if (!tensor.quantized) continue;
    const std::string name = part_of(tensor.name);
    if (parts.empty() || parts.back().name != name) parts.push_back({.name = name});
    Part& part = parts.back();
    part.types.insert(tensor.type);
    part.squared_error += tensor.squared_error, part.squared_norm += tensor.squared_norm;
    if (part.worst == nullptr || tensor.relative_rms() > part.worst->relative_rms()) part.worst = &tensor;
  }
  return parts;
}

std::string percent(double fraction) { return fixed(100 * fraction, 3) + "%"; }

void print_text(const QuantizeReport& report, const std::optional<Losses>& losses, const std::string& out) {
  Table table({"layer", "types", "relative RMS", "its greatest", "of"});
  for (const Part& part : parts_of(report)) {
    const double rms = part.squared_error == 0 ? 0 : std::sqrt(part.squared_error / part.squared_norm);
    table.row({part.name, join(part.types, " "), percent(rms), percent(part.worst->relative_rms()),
               part.worst->name == part.name + ".weight" ? "" : part.worst->name.substr(part.name.size() + 1)});
  }
  std::printf("%s", table.text().c_str());
  if (!report.left_plain.empty()) {
    std::printf("%zu projections keep 16 or 32 bits, because the format has no blocks for their sizes: %s%s\n",
                report.left_plain.size(), report.left_plain.front().c_str(),
                report.left_plain.size() == 1 ? "" : ", ...");
  }
  std::printf("%s: %s, before %s\n", out.c_str(), megabytes(static_cast<int64_t>(report.bytes)).c_str(),
              megabytes(static_cast<int64_t>(report.bytes_before)).c_str());
  if (losses) {
    std::printf("loss %.6f, before %.6f, on %lld tokens\n", losses->after, losses->before,
                static_cast<long long>(losses->tokens));
  }
}

void print_json(const QuantizeReport& report, const std::optional<Losses>& losses, const QuantizeFlags& flags) {
  OutJson tensors = OutJson::array();
  for (const QuantizedTensor& tensor : report.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"type", tensor.type},
                       {"shape", tensor.shape},
                       {"quantized", tensor.quantized},
                       {"relative_rms", tensor.relative_rms()}});
  }
  OutJson out = {{"format", flags.options.format},  {"out", flags.out},
                 {"bytes", report.bytes},           {"bytes_before", report.bytes_before},
                 {"left_plain", report.left_plain}, {"tensors", tensors}};
  if (losses) out["loss"] = {{"after", losses->after}, {"before", losses->before}, {"tokens", losses->tokens}};
  std::printf("%s\n", out.dump(2).c_str());
}

// Both by their own tokenizers and configs, and in float32: in 16 bits the products' own rounding changes a loss by
// more than q8_0 does.
Losses losses_of(const std::string& before, const QuantizeFlags& flags) {
  const auto score = [&](const std::string& model) {
    const ModelFlags source{.model = model, .dtype = "float32"};
    const Rows rows = read_text_row(flags.text, load_tokenizer(source), flags.max_tokens);
    return score_rows(*load_model(source, {}), rows);
  };
  const Score plain = score(before), quantised = score(flags.out);
  if (plain.tokens != quantised.tokens) {
    throw Error({.kind = ErrorKind::kInternal,
                 .wanted = cat("a tokenizer in ", flags.out, " that makes ", plain.tokens, " ids of ", flags.text),
                 .got = cat(quantised.tokens),
                 .next = "report it with the model's name"});
  }
  return {plain.loss, quantised.loss, plain.tokens};
}

// Before the work that it would waste.
void check_text(const std::string& model, const QuantizeFlags& flags) {
  const Rows rows = read_text_row(flags.text, load_tokenizer({.model = model}), flags.max_tokens);
  if (rows[0].size() >= 2) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("a text of at least 2 tokens in ", flags.text),
               .got = cat(rows[0].size()),
               .next = "give a longer text"});
}

void quantize_verb(const QuantizeFlags& flags) {
  const ModelFlags source = located({.model = flags.model, .revision = flags.options.revision});
  if (!flags.text.empty()) check_text(source.model, flags);
  QuantizeOptions options = flags.options;
  std::optional<Progress> bar;
  int64_t shown = 0;
  options.on_progress = [&](const std::string& tensor, int64_t done, int64_t of) {
    if (!bar) bar.emplace("quantize", of);
    bar->advance(done - shown, tensor);
    shown = done;
  };
  const QuantizeReport report = quantize(source.model, flags.out, options);
  bar.reset();
  std::optional<Losses> losses;
  if (!flags.text.empty()) losses = losses_of(source.model, flags);
  if (flags.json) {
    print_json(report, losses, flags);
  } else {
    print_text(report, losses, flags.out);
  }
}

}  // namespace

void add_quantize(CLI::App& app) {
  auto* verb =
      app.add_subcommand("quantize", "Write a quantised copy of a model, and say what that did to its weights");
  auto flags = std::make_shared<QuantizeFlags>();
  verb->add_option("--model,model", flags->model, "Folder of the model with plain weights, or org/name on the Hub")
      ->required()
      ->type_name("DIR|ID");
  verb->add_option("--out,out", flags->out, "What is written: a file NAME.gguf, or a folder")
      ->required()
      ->type_name("FILE|DIR");
  std::string formats = "One of";
  std::vector<std::string> names;
  for (const QuantizeFormat& format : quantize_formats()) {
    formats += cat("\n", format.name, ": ", format.explain);
    names.emplace_back(format.name);
  }
  verb->add_option("--format", flags->options.format, formats)->required()->check(CLI::IsMember(names));
  verb->add_option("--revision", flags->options.revision, "Branch, tag or commit of a model of the Hub")
      ->capture_default_str();
  verb->add_flag("--replace", flags->options.replace, "Put the result instead of what is there under its name");
  verb->add_option("--text", flags->text, "A UTF-8 file: the loss on it is printed, with the weights before and after")
      ->type_name("FILE");
  verb->add_option("--max-tokens", flags->max_tokens, "Use only the first N ids of the text; 0: all")
      ->check(zero_or_more())
      ->capture_default_str();
  verb->add_flag("--json", flags->json, "Print JSON: format, out, bytes, bytes_before, left_plain, tensors, loss");
  verb->callback([flags] { quantize_verb(*flags); });
}

}  // namespace hotswap
