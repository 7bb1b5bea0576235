#include <cstdio>
#include <iostream>
#include <sstream>

#include "hotswap/base/error.h"
#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/cli/verbs.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

struct Flags {
  ModelFlags model;
  bool decode = false, no_special = false, json = false;
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
      throw Error({.wanted = cat("token ids in ", where), .got = "'" + word + "'", .next = "pass ids, or a JSON list"});
    }
    ids.push_back(std::stoll(word));
  }
  return ids;
}

void print_encoding(const Encoding& encoding, bool json) {
  if (json) {
    const OutJson out = {{"ids", encoding.ids}, {"tokens", encoding.tokens}, {"offsets", encoding.offsets}};
    std::cout << out.dump(-1, ' ', false, OutJson::error_handler_t::replace) << '\n';
  } else {
    std::cout << join(encoding.ids, " ") << '\n';
  }
}

void tokenize_verb(const Flags& flags) {
  const Tokenizer tokenizer = load_tokenizer(flags.model);
  int64_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    if (!flags.decode) {
      print_encoding(tokenizer.encode(line, !flags.no_special), flags.json);
      continue;
    }
    const auto ids = read_ids_line(line, number);
    const std::string text = tokenizer.decode(ids, flags.no_special);
    std::cout << (flags.json ? OutJson({{"ids", ids}, {"text", text}}).dump() : text) << '\n';
  }
  std::cout.flush();
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto* verb = app.add_subcommand("tokenize", "Lines of stdin to token ids, or ids back to text");
  auto flags = std::make_shared<Flags>();
  add_tokenizer_flags(*verb, flags->model);
  verb->add_flag("--decode", flags->decode, "Each line contains ids: separated by spaces, or a JSON list");
  verb->add_flag("--no-special", flags->no_special, "Add no special tokens; with --decode leave them out of the text");
  verb->add_flag("--json", flags->json, "One {\"ids\", \"tokens\", \"offsets\"} a line");
  verb->callback([flags] { tokenize_verb(*flags); });
}

}  // namespace hotswap
