#include "hotswap/training/data/train_file.h"

#include <algorithm>
#include <fstream>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/training/data/example_of.h"
#include "hotswap/training/data/token_file.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxLine = size_t{64} << 20;  // bytes: a longer one is no line of examples but another file's

// The first byte that begins no character of UTF-8; none where the text is valid.
std::optional<size_t> invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char lead = byte(at);
    const size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (length == 0 || at + length > text.size()) return at;
    for (size_t i = 1; i < length; ++i) {
      if ((byte(at + i) & 0xC0) != 0x80) return at;
    }
    // Overlong forms, surrogates, and what is beyond Unicode.
    const bool wrong = (lead == 0xE0 && byte(at + 1) < 0xA0) || (lead == 0xED && byte(at + 1) > 0x9F) ||
                       (lead == 0xF0 && byte(at + 1) < 0x90) || (lead == 0xF4 && byte(at + 1) > 0x8F);
    if (wrong) return at;
    at += length;
  }
  return std::nullopt;
}

void check_utf8(std::string_view text, const std::string& where) {
  const auto wrong = invalid_utf8(text);
  if (!wrong) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("UTF-8 in ", where),
               .got = cat("another byte at offset ", *wrong),
               .next = "write the file as UTF-8"});
}

TrainFile nothing_learned(const fs::path& file, const std::string& got) {
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("an example in ", file.string(), " of which something is learned"),
               .got = got,
               .next = "raise --max-length, or give more data"});
}

TrainFile read_text(const fs::path& file, const Tokenizer& tokenizer, const TrainFileOptions& options) {
  const std::string text = read_file(file);
  check_utf8(text, file.string());
  std::vector<int64_t> ids = tokenizer.ids(text);
  const auto size = static_cast<int64_t>(ids.size());
  if (size < 2) return nothing_learned(file, cat(size, " tokens"));
  const int64_t length = std::min(options.max_length, size);
  TrainFile read{
      .tokens = size - size % length, .learned = size - size % length, .longest = length, .dropped = size % length};
  read.dataset = std::make_shared<PackedDataset>(std::move(ids), length);
  return read;
}

// Lines, counted from 1. Blank ones are skipped.
void each_line(const fs::path& file, const std::function<void(const std::string&, int64_t)>& visit) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = "a file of examples that can be read",
                 .got = file.string(),
                 .next = "check its name and its permissions"});
  }
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.size() > kMaxLine) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("lines of at most ", kMaxLine >> 20, " MiB in ", file.string()),
                   .got = cat("line ", number, " of ", line.size() >> 20, " MiB"),
                   .next = "write one example a line"});
    }
    if (line.find_first_not_of(" \t\r") != line.npos) visit(line, number);
  }
}

TrainFile read_lines(const fs::path& file, const Tokenizer& tokenizer, const TrainFileOptions& options) {
  TrainFile read;
  std::vector<Example> examples;
  std::string form;
  each_line(file, [&](const std::string& line, int64_t number) {
    const std::string where = cat(file.string(), ":", number);
    check_utf8(line, where);
    const Json json = Json::parse(line, where);
    const std::string own = form_of(json);
    if (form.empty()) form = own;
    if (own != form) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("examples of one form in a file, here ", form),
                   .got = cat(own, " at ", where),
                   .next = "split the file"});
    }
    Example example = example_of(json, tokenizer, options.chat ? &*options.chat : nullptr);
    const auto limit = static_cast<size_t>(options.max_length);
    const bool whole = options.packing == Packing::kWrapped || options.packing == Packing::kBestFitSplit;
    if (example.ids.size() > limit && !whole) {
      ++read.cut;
      example.ids.resize(limit);
      example.labels.resize(limit);
    }
    // The label of the first token is predicted by none.
    const int64_t learned = example.labels.empty() ? 0
                                                   : std::count_if(example.labels.begin() + 1, example.labels.end(),
                                                                   [](int64_t label) { return label != -100; });
    if (learned == 0) {
      ++read.dropped;
      return;
    }
    read.tokens += static_cast<int64_t>(example.ids.size());
    read.learned += learned;
    read.longest = std::max(read.longest, static_cast<int64_t>(example.ids.size()));
    examples.push_back(std::move(example));
  });
  if (examples.empty()) {
    return nothing_learned(file, read.dropped > 0 ? cat(read.dropped, " examples without any such token within ",
                                                        options.max_length, " tokens")
                                                  : "no line with an example");
  }
  if (options.packing == Packing::kNone) {
    read.dataset = std::make_shared<ExampleDataset>(std::move(examples), options.pad_id);
    return read;
  }
  read.packed = static_cast<int64_t>(examples.size());
  if (options.packing == Packing::kWrapped) read.longest = std::min(read.tokens, options.max_length);
  if (options.packing == Packing::kBestFitSplit) read.longest = std::min(read.longest, options.max_length);
  read.dataset = packed_examples(std::move(examples), options.packing, options.max_length);
  return read;
}

TrainFile read_tokens(const fs::path& file, const TrainFileOptions& options) {
  const auto tokens = std::make_shared<TokenFile>(file);
  const int64_t size = tokens->size(), length = std::min(options.max_length, std::max<int64_t>(2, size));
  TrainFile read{
      .tokens = size - size % length, .learned = size - size % length, .longest = length, .dropped = size % length};
  read.dataset = std::make_shared<TokenFileDataset>(tokens, length, options.vocab_size);
  return read;
}

}  // namespace

TrainFile read_train_file(const fs::path& file, const Tokenizer& tokenizer, const TrainFileOptions& options) {
  if (options.max_length < 2) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a max_length of two tokens or more",
                 .got = cat(options.max_length),
                 .next = "leave it out to take its default"});
  }
  const std::string kind = file.extension().string();
  if (options.packing != Packing::kNone && kind != ".jsonl" && kind != ".json") {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "examples to pack, in a file .jsonl",
                 .got = cat(file.string(), ", which is one stream, cut into pieces of --max-length"),
                 .next = "leave --packing out"});
  }
  if (kind == ".bin") return read_tokens(file, options);
  if (kind == ".txt") return read_text(file, tokenizer, options);
  if (kind == ".jsonl" || kind == ".json") return read_lines(file, tokenizer, options);
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a file of text, .txt, of examples, .jsonl, or of tokens, .bin",
               .got = file.string(),
               .next = "rename it, or write one JSON object a line"});
}

}  // namespace hotswap
