#include <cstdio>
#include <iostream>
#include <sstream>

#include "hotswap/base/error.h"
#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/cli/flags/value_checks.h"
#include "hotswap/cli/verbs.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

struct TokenizeFlags {
  ModelFlags model;
  bool decode = false, no_special = false, json = false, pair = false, overflowing = false;
  int64_t max_length = 0, stride = 0, multiple_of = 0, threads = 1;
  std::string truncation = "longest_first", truncation_side = "right", padding, padding_side = "right";
  std::string messages;  // a file; "": lines of stdin
  bool add_generation_prompt = false;
};

// "1 2 3", or "[1, 2, 3]", or an object as `tokenize --json` prints it
std::vector<int64_t> read_ids_line(const std::string& line, int64_t number) {
  const auto first = line.find_first_not_of(" \t");
  const std::string where = cat("stdin, line ", number);
  if (first != std::string::npos && line[first] == '[') return Json::parse(line, where).as<std::vector<int64_t>>();
  if (first != std::string::npos && line[first] == '{') return Json::parse(line, where).at<std::vector<int64_t>>("ids");
  std::vector<int64_t> ids;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (word.find_first_not_of("0123456789") != std::string::npos || word.size() > 9) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("token ids in ", where),
                   .got = "'" + word + "'",
                   .next = "pass ids, or a JSON list"});
    }
    ids.push_back(std::stoll(word));
  }
  return ids;
}

// The library decodes an id without a token to nothing, as Python does; in a line of ids it is a mistake.
void check_ids(const std::vector<int64_t>& ids, const Tokenizer& tokenizer, int64_t number) {
  for (const int64_t id : ids) {
    if (tokenizer.id_to_token(id)) continue;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("ids of the tokenizer's ", tokenizer.vocab_size(), " tokens, from 0 to ",
                               tokenizer.vocab_size() - 1, ", in stdin, line ", number),
                 .got = cat(id),
                 .next = "pass ids that this model's tokenizer made"});
  }
}

OutJson encoding_json(const Encoding& encoding, const TokenizeFlags& flags) {
  OutJson out = {{"ids", encoding.ids}, {"tokens", encoding.tokens}, {"offsets", encoding.offsets}};
  if (flags.pair) out["type_ids"] = encoding.type_ids;
  if (!flags.padding.empty()) out["attention_mask"] = encoding.attention_mask;
  if (!flags.overflowing) return out;
  out["overflowing"] = OutJson::array();
  for (const Encoding& part : encoding.overflowing) out["overflowing"].push_back(encoding_json(part, flags));
  return out;
}

void print_encoding(const Encoding& encoding, const TokenizeFlags& flags) {
  if (flags.json) {
    std::cout << encoding_json(encoding, flags).dump(-1, ' ', false, OutJson::error_handler_t::replace) << '\n';
  } else {
    std::cout << join(encoding.ids, " ") << '\n';
  }
}

Side side_of(const std::string& name) { return name == "left" ? Side::kLeft : Side::kRight; }

// The token to pad with: of the tokenizer's own padding, else its pad_token.
Padding padding_of(const TokenizeFlags& flags, const Tokenizer& tokenizer) {
  Padding padding = tokenizer.padding().value_or(Padding{});
  if (!tokenizer.padding()) {
    const auto pad = tokenizer.special_ids().pad;
    if (!pad) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "a tokenizer with a pad_token, or with \"padding\" in its tokenizer.json",
                   .got = "neither",
                   .next = "leave --padding out"});
    }
    padding.id = *pad;
    padding.token = tokenizer.id_to_token(*pad).value();
  }
  padding.length = std::nullopt;
  if (flags.padding != "longest") padding.length = std::stoll(flags.padding);
  padding.side = side_of(flags.padding_side);
  padding.multiple_of = flags.multiple_of;
  return padding;
}

EncodeOptions encode_options(const TokenizeFlags& flags, const Tokenizer& tokenizer) {
  using Strategy = Truncation::Strategy;
  EncodeOptions options;
  options.add_special_tokens = !flags.no_special;
  options.threads = static_cast<int>(flags.threads);
  options.ids_only = !flags.json;
  if (!flags.padding.empty()) options.padding = padding_of(flags, tokenizer);
  if (flags.max_length == 0) return options;
  options.truncation = Truncation{.max_length = flags.max_length,
                                  .strategy = flags.truncation == "only_first"    ? Strategy::kOnlyFirst
                                              : flags.truncation == "only_second" ? Strategy::kOnlySecond
                                                                                  : Strategy::kLongestFirst,
                                  .side = side_of(flags.truncation_side),
                                  .keep_overflowing = flags.overflowing,
                                  .stride = flags.stride};
  return options;
}

// `first`: the number of the first of these lines.
void encode_lines(const std::vector<std::string>& lines, int64_t first, const Tokenizer& tokenizer,
                  const TokenizeFlags& flags, const EncodeOptions& options) {
  std::vector<std::string_view> texts(lines.begin(), lines.end());
  std::vector<Tokenizer::TextPair> pairs;
  for (size_t i = 0; flags.pair && i < texts.size(); ++i) {
    const size_t tab = texts[i].find('\t');
    if (tab == std::string_view::npos) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("two texts with a tab between them in stdin, line ", first + static_cast<int64_t>(i)),
                   .got = "no tab",
                   .next = "leave --pair out for single texts"});
    }
    pairs.emplace_back(texts[i].substr(0, tab), texts[i].substr(tab + 1));
  }
  const auto encodings = flags.pair ? tokenizer.encode_batch(pairs, options) : tokenizer.encode_batch(texts, options);
  for (const Encoding& encoding : encodings) print_encoding(encoding, flags);
}

// The whole conversation as one text, which has its special tokens already.
void encode_messages(const Tokenizer& tokenizer, const TokenizeFlags& flags) {
  ChatRequest request = read_chat(flags.messages);
  request.add_generation_prompt = flags.add_generation_prompt;
  EncodeOptions options = encode_options(flags, tokenizer);
  options.add_special_tokens = false;
  const std::string text = load_chat_template(flags.model).render(request);
  print_encoding(tokenizer.encode(text, options), flags);
}

void tokenize_verb(const TokenizeFlags& flags) {
  const Tokenizer tokenizer = load_tokenizer(flags.model);
  if (!flags.messages.empty()) {
    encode_messages(tokenizer, flags);
    return;
  }
  const EncodeOptions options = encode_options(flags, tokenizer);
  const bool batch = !flags.padding.empty() || flags.threads != 1;  // padding has to wait for the longest line
  std::vector<std::string> lines;
  int64_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    if (!flags.decode) {
      lines.push_back(std::move(line));
      if (batch) continue;
      encode_lines(lines, number, tokenizer, flags, options);
      lines.clear();
      continue;
    }
    const auto ids = read_ids_line(line, number);
    check_ids(ids, tokenizer, number);
    const std::string text = tokenizer.decode(ids, flags.no_special);
    std::cout << (flags.json ? OutJson({{"ids", ids}, {"text", text}}).dump() : text) << '\n';
  }
  if (batch) encode_lines(lines, 1, tokenizer, flags, options);
  std::cout.flush();
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto* verb = app.add_subcommand("tokenize", "Lines of stdin, or messages, to token ids, or ids back to text");
  auto flags = std::make_shared<TokenizeFlags>();
  add_tokenizer_flags(*verb, flags->model);
  auto* decode =
      verb->add_flag("--decode", flags->decode, "Each line contains ids: separated by spaces, or a JSON list");
  auto* messages =
      verb->add_option("--messages", flags->messages,
                       "Instead of lines: a JSON file of messages, or of {messages, tools, documents}; - is\n"
                       "stdin. One text, as the model's chat template has it")
          ->type_name("FILE")
          ->excludes(decode);
  verb->add_flag("--add-generation-prompt", flags->add_generation_prompt, "With --messages: begin the assistant's turn")
      ->needs(messages);
  verb->add_flag("--no-special", flags->no_special, "Add no special tokens; with --decode leave them out of the text");
  verb->add_flag("--json", flags->json, "One {\"ids\", \"tokens\", \"offsets\"} a line");
  verb->add_flag("--pair", flags->pair, "Each line holds two texts with a tab between them; --json prints \"type_ids\"")
      ->excludes(messages);
  verb->add_option("--max-length", flags->max_length, "Truncate to this count of tokens, special ones included")
      ->check(above_zero());
  verb->add_option("--truncation", flags->truncation, "Which text of a pair is cut")
      ->check(CLI::IsMember({"longest_first", "only_first", "only_second"}));
  verb->add_option("--truncation-side", flags->truncation_side, "The side from which tokens are removed")
      ->check(CLI::IsMember({"left", "right"}));
  verb->add_flag("--overflowing", flags->overflowing, "With --json: what was cut off, in parts, as \"overflowing\"");
  verb->add_option("--stride", flags->stride, "Tokens that neighbouring parts share")->check(zero_or_more());
  verb->add_option("--padding", flags->padding, "Pad all lines: longest, or a length; --json prints \"attention_mask\"")
      ->check(CLI::IsMember({"longest"}) | CLI::Range(int64_t{1}, int64_t{1} << 24));
  verb->add_option("--padding-side", flags->padding_side, "The side that is filled")
      ->check(CLI::IsMember({"left", "right"}));
  verb->add_option("--pad-to-multiple-of", flags->multiple_of, "Round the padded length up")->check(zero_or_more());
  verb->add_option("--threads", flags->threads, "Encode all lines as one batch on this number of threads; 0: all cores")
      ->check(zero_or_more());
  verb->callback([flags] { tokenize_verb(*flags); });
}

}  // namespace hotswap
