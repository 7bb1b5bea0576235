#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <sstream>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/cli/flags/text_flags.h"
#include "hotswap/cli/flags/value_checks.h"
#include "hotswap/cli/vectors/npy.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/models/encoder_models/sentence_encoder.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

struct EmbedFlags {
  ModelFlags model;
  KernelFlags kernels;
  std::vector<std::string> texts;
  std::string file, out;
  std::optional<std::string> prompt_name, prompt;
  std::optional<int64_t> dimensions;
  bool normalize = false, show_kernels = false, no_kernels = false, serve_rounds = false;
};

// A line a text; of a .jsonl file a string, or an object with the key "text".
std::vector<std::string> texts_in(const std::string& file) {
  std::istringstream lines(file == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : read_file(file));
  const bool is_json = file.ends_with(".jsonl");
  std::vector<std::string> texts;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!is_json) {
      texts.push_back(line);
    } else if (!line.empty()) {
      const Json json = Json::parse(line, cat(file, ", line ", number));
      texts.push_back(json.is_object() ? json.at<std::string>("text") : json.as<std::string>());
    }
  }
  return texts;
}

std::string json_lines(const std::vector<std::string>& texts, const Tensor& vectors) {
  std::string lines;
  const auto width = vectors.size(1);
  const float* row = vectors.const_data_ptr<float>();
  for (const std::string& text : texts) {
    const OutJson line = {{"text", text}, {"embedding", std::vector<float>(row, row + width)}};
    lines += line.dump() + "\n";
    row += width;
  }
  return lines;
}

void check_embed(const EmbedFlags& flags) {
  if (flags.texts.empty() == flags.file.empty()) throw usage_error("give texts, or --file, and not both");
  if (flags.prompt && flags.prompt_name) throw usage_error("give --prompt or --prompt-name, and not both");
  if (flags.out.empty() || flags.out.ends_with(".npy") || flags.out.ends_with(".jsonl")) return;
  throw usage_error(cat("--out ", flags.out, " is neither .npy nor .jsonl"));
}

// For measurements (bench/embeddings.py): the vectors as one JSON line, then, for each line of stdin, all texts again
// and the seconds that they took.
void answer_rounds(const SentenceEncoder& encoder, const std::vector<std::string>& texts,
                   const EncodeArguments& arguments, const Tensor& vectors) {
  OutJson rows = OutJson::array();
  const float* row = vectors.const_data_ptr<float>();
  for (int64_t i = 0; i < vectors.size(0); ++i, row += vectors.size(1)) {
    rows.push_back(std::vector<float>(row, row + vectors.size(1)));
  }
  std::cout << OutJson{{"vectors", std::move(rows)}}.dump() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const auto start = std::chrono::steady_clock::now();
    encoder.encode(texts, arguments);
    std::cout << std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() << std::endl;
  }
}

void embed_verb(const EmbedFlags& flags) {
  check_embed(flags);
  const std::vector<std::string> texts = flags.file.empty() ? flags.texts : texts_in(flags.file);
  const auto encoder = SentenceEncoder::from_pretrained(flags.model.model, text_options_of(flags.model, flags.kernels));
  if (flags.show_kernels) std::cerr << encoder->model().kernel_report();
  const EncodeArguments arguments{.prompt_name = flags.prompt_name,
                                  .prompt = flags.prompt,
                                  .dimensions = flags.dimensions,
                                  .normalize_embeddings = flags.normalize};
  const Tensor vectors = encoder->encode(texts, arguments);
  if (flags.serve_rounds) return answer_rounds(*encoder, texts, arguments, vectors);
  if (flags.out.ends_with(".npy")) {
    save_npy(flags.out, vectors);
  } else if (!flags.out.empty()) {
    write_file(flags.out, json_lines(texts, vectors));
  } else {
    std::cout << json_lines(texts, vectors);
  }
}

}  // namespace

void add_embed(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "embed", "Vectors of texts by a model of sentence-transformers: a JSON line a text. More in docs/embeddings.md.");
  auto flags = std::make_shared<EmbedFlags>();
  add_base_model_flags(*verb, flags->model);
  add_kernel_flags(*verb, flags->kernels);
  flags->kernels.use_kernels = true;
  verb->add_option("text", flags->texts, "The texts")->type_name("TEXT");
  verb->add_option("--file", flags->file,
                   "A text a line; of a .jsonl file a JSON string, or an object with \"text\", a line. - is stdin")
      ->type_name("FILE");
  verb->add_option("--out", flags->out, "Write there instead of to stdout: JSON lines, or a float32 array of NumPy")
      ->type_name("F.jsonl|F.npy");
  verb->add_option("--prompt-name", flags->prompt_name,
                   "One of the prompts that the model's config_sentence_transformers.json has: before each text");
  verb->add_option("--prompt", flags->prompt, "This before each text");
  verb->add_option("--dimensions", flags->dimensions, "The first N elements of each vector")
      ->check(CLI::Range(1, 1000000));
  verb->add_flag("--normalize", flags->normalize, "Vectors of length 1, after --dimensions");
  verb->add_flag("--report", flags->show_kernels, "Which kernel each layer runs, on stderr");
  verb->add_flag("--serve-rounds", flags->serve_rounds,
                 "For measurements: vectors as one line, then the seconds of another run for each line of stdin");
  verb->add_flag("--no-kernels", flags->no_kernels, "Run the stock layers");
  verb->callback([flags] {
    if (flags->no_kernels) flags->kernels = KernelFlags{};
    embed_verb(*flags);
  });
}

}  // namespace hotswap
