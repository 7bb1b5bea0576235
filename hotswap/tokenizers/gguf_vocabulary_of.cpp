// A tokenizer.json in the form of GGUF's metadata. llama.cpp knows ways of cutting a text into words only by name
// (tokenizer.ggml.pre): a name stands here only beside the exact steps that it means.
#include "hotswap/tokenizers/gguf_vocabulary_of.h"

#include <algorithm>
#include <unordered_map>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/tokenizers/gguf_splits.h"
#include "hotswap/tokenizers/tokenizer.h"
#include "hotswap/tokenizers/tokenizer_json.h"

namespace hotswap {
namespace {

using tokenizers::parse_tokenizer_json;
using tokenizers::TokenizerJson;

using namespace gguf_token;
constexpr const char* kNext = "keep the model as safetensors (fp8_block, int4_g128), or take another model";

struct KnownSplit {
  const char* pre;
  std::vector<std::string> normalizers, steps;
  bool ignores_merges = false;
};
const std::vector<KnownSplit>& known_splits() {
  static const std::vector<KnownSplit> known = {
      {"gpt-2", {}, {"ByteLevel"}},
      {"smollm", {}, {"Digits", "ByteLevel"}},
      {"qwen2", {"NFC"}, {cat("Split ", tokenizers::kQwen2Regex), "ByteLevel without regex"}},
      {"llama-bpe", {}, {cat("Split ", tokenizers::kLlama3Regex), "ByteLevel without regex"}, true}};
  return known;
}

// One step of a normalizer or pre-tokenizer, or the steps of a Sequence, in words that are equal where the steps are.
void add_steps(const Json& json, std::vector<std::string>& steps) {
  const auto type = json.at<std::string>("type");
  if (type == "Sequence") {
    const char* list = json.has("normalizers") ? "normalizers" : "pretokenizers";
    for (const Json& step : json.child(list).elements()) add_steps(step, steps);
  } else if (type == "ByteLevel") {
    steps.push_back(cat("ByteLevel", json.get<bool>("add_prefix_space", true) ? " with prefix space" : "",
                        json.get<bool>("use_regex", true) ? "" : " without regex"));
  } else if (type == "Digits" && json.get<bool>("individual_digits", false)) {
    steps.emplace_back("Digits");
  } else if (type == "Split" && json.at<std::string>("behavior") == "Isolated" && !json.get<bool>("invert", false) &&
             json.child("pattern").has("Regex")) {
    steps.push_back(cat("Split ", json.child("pattern").at<std::string>("Regex")));
  } else if (type == "NFC") {
    steps.push_back(type);
  } else {
    steps.push_back(json.raw().dump());
  }
}

std::vector<std::string> steps_of(const Json& file, const char* key) {
  std::vector<std::string> steps;
  if (const auto found = file.find(key)) add_steps(*found, steps);
  return steps;
}

class Converter {
 public:
  Converter(const std::filesystem::path& folder, size_t size)
      : file_(folder / "tokenizer.json"),
        tokenizer_(Tokenizer::from_folder(folder)),
        json_(parse_tokenizer_json(read_file(file_), file_.string())),
        size_(size) {}

  GgufVocabulary convert(const std::string& architecture) {
    v_.where = file_.string();
    v_.architecture = architecture;
    const Json model = json_.rest.child("model");
    const auto type = model.get<std::string>("type", "BPE");
    if (type != "BPE") refuse("a tokenizer of the type BPE", cat("the type ", type));
    const std::vector<std::string> normalizers = steps_of(json_.rest, "normalizer"),
                                   steps = steps_of(json_.rest, "pre_tokenizer");
    const bool byte_level =
        std::any_of(steps.begin(), steps.end(), [](const std::string& step) { return step.starts_with("ByteLevel"); });
    read_tokens();
    read_special_ids();
    if (byte_level) {
      set_byte_level(normalizers, steps, model.get<bool>("ignore_merges", false));
    } else if (model.get<bool>("byte_fallback", false)) {
      set_sentence_piece();
    } else {
      refuse("a byte-level tokenizer, or one that falls back to bytes", "neither");
    }
    compare();
    return std::move(v_);
  }

 private:
  [[noreturn]] void refuse(const std::string& expected, const std::string& got) const {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat(expected, " in ", file_.string(), ", to write it into a GGUF file"),
                 .got = got,
                 .next = kNext});
  }

  // All by id; what a padded embedding has beyond them, as llama.cpp's converter fills it.
  void read_tokens() {
    std::vector<bool> taken(size_);
    v_.tokens.resize(size_);
    v_.token_types.assign(size_, kUnused);
    const auto put = [&](const std::string& token, int64_t id, int32_t type) {
      if (id < 0 || id >= static_cast<int64_t>(size_)) {
        refuse(cat("token ids below vocab_size, ", size_), cat("'", token, "' with id ", id));
      }
      v_.tokens[static_cast<size_t>(id)] = token;
      v_.token_types[static_cast<size_t>(id)] = tokenizer_.is_special(id) ? kControl : type;
      taken[static_cast<size_t>(id)] = true;
    };
    for (const auto& [token, id] : json_.vocabulary) put(token, id, kNormal);
    if (const auto added = json_.rest.find("added_tokens")) {
      for (const Json& token : added->elements()) {
        const auto content = token.at<std::string>("content");
        for (const char* key : {"single_word", "lstrip", "rstrip"}) {
          if (token.get<bool>(key, false))
            refuse("added tokens that take no blanks", cat("'", content, "' with ", key));
        }
        put(content, token.at<int64_t>("id"), kUserDefined);
      }
    }
    for (size_t id = 0; id < size_; ++id) {
      if (!taken[id]) v_.tokens[id] = cat("[PAD", id, "]");
    }
  }

  // And which of them the tokenizer adds to a text.
  void read_special_ids() {
    const SpecialIds& special = tokenizer_.special_ids();
    v_.bos = special.bos, v_.eos = special.eos, v_.pad = special.pad, v_.unk = special.unk;
    const std::vector<int64_t> plain = tokenizer_.ids("a", false), framed = tokenizer_.ids("a");
    const auto inner = std::search(framed.begin(), framed.end(), plain.begin(), plain.end());
    const std::vector<int64_t> before(framed.begin(), inner),
        after(inner == framed.end() ? inner : inner + static_cast<std::ptrdiff_t>(plain.size()), framed.end());
    const auto is = [](const std::vector<int64_t>& ids, const std::optional<int64_t>& id) {
      return ids.empty() || (ids.size() == 1 && id && ids[0] == *id);
    };
    if (!is(before, v_.bos) || !is(after, v_.eos)) {
      refuse("a post-processor that adds only bos_token or eos_token", cat("ids ", join(framed), " for 'a'"));
    }
    v_.add_bos = !before.empty(), v_.add_eos = !after.empty();
  }

  void set_byte_level(const std::vector<std::string>& normalizers, const std::vector<std::string>& steps,
                      bool ignores_merges) {
    v_.model = "gpt2";
    v_.add_space_prefix = false;
    for (const auto& [left, right] : json_.merges) v_.merges.push_back(cat(left, " ", right));
    std::vector<std::string> names;
    for (const KnownSplit& known : known_splits()) {
      names.emplace_back(known.pre);
      if (known.normalizers != normalizers || known.steps != steps) continue;
      if (known.ignores_merges == ignores_merges) v_.pre = known.pre;
    }
    if (!v_.pre.empty()) return;
    refuse(
        cat("a tokenizer that cuts texts as one of these: ", join(names)),
        cat("normalizer [", join(normalizers), "], pre_tokenizer [", join(steps), "], ignore_merges ", ignores_merges));
  }

  // llama.cpp merges by score. A file of merges has their order, which is that of the scores: the token that the
  // first merge makes has the highest.
  void set_sentence_piece() {
    v_.model = "llama";
    v_.pre = "default";
    std::unordered_map<std::string, size_t> ranks;
    for (size_t rank = 0; rank < json_.merges.size(); ++rank) {
      ranks.emplace(json_.merges[rank].first + json_.merges[rank].second, rank);
    }
    v_.scores.assign(size_, 0);
    for (size_t id = 0; id < size_; ++id) {
      const std::string& token = v_.tokens[id];
      const bool is_byte = token.size() == 6 && token.starts_with("<0x") && token.back() == '>';
      int32_t& type = v_.token_types[id];
      if (v_.unk && id == static_cast<size_t>(*v_.unk)) type = kUnknown;
      if (type == kNormal && is_byte) type = kByte;
      if (type != kNormal) continue;
      const auto rank = ranks.find(token);
      v_.scores[id] = -static_cast<float>(rank == ranks.end() ? json_.merges.size() : rank->second) - 1;
    }
    const std::vector<int64_t> ids = tokenizer_.ids("a", false);
    v_.add_space_prefix = !ids.empty() && tokenizer_.id_to_token(ids[0]).value_or("").starts_with("\u2581");
  }

  // Scripts, digits, contractions, runs of blanks and of line ends, symbols, and the tokenizer's own special tokens
  // between words: what the ways of cutting differ in.
  void compare() {
    std::string text =
        "Hello world, it's 3.14159 and 20260729 o'clock; we'LL see  two   blanks\tand\ttabs\n\nnew\r\n lines \n  "
        "x=y+1;//code __init__(self)->{a:b}  Größe naïve Ελλάδα Привет こんにちは世界 مرحبا हिन्दी ไทย 한국어 "
        "\u00b2\u00bd\u2162 "
        "\U0001F600\U0001F468\u200d\U0001F469 $5 100% #1 \"quoted\" 'S 'm ... !!! \u00a0nbsp end ";
    for (size_t id = 0, shown = 0; id < size_ && shown < 40; ++id) {
      if (v_.token_types[id] != kControl && v_.token_types[id] != kUserDefined) continue;
      text += cat("word", v_.tokens[id], " 12 ", v_.tokens[id], v_.tokens[id], "\n"), ++shown;
    }
    const Tokenizer written = Tokenizer::from_vocabulary(v_);
    const std::vector<int64_t> expected = tokenizer_.ids(text), got = written.ids(text);
    if (got == expected) return;
    const auto first = std::mismatch(expected.begin(), expected.end(), got.begin(), got.end());
    const auto at = static_cast<size_t>(first.first - expected.begin());
    const auto shown = [&](const std::vector<int64_t>& ids) {
      return at < ids.size() ? tokenizer_.id_to_token(ids[at]).value_or("nothing") : std::string("nothing");
    };
    refuse(cat("a tokenizer that is tokenizer.ggml.model ", v_.model, " with tokenizer.ggml.pre ", v_.pre),
           cat("other ids for a text of many scripts: token ", at, " is '", shown(expected), "' here and '", shown(got),
               "' there"));
  }

  std::filesystem::path file_;
  Tokenizer tokenizer_;
  TokenizerJson json_;
  size_t size_;
  GgufVocabulary v_;
};

}  // namespace

GgufVocabulary gguf_vocabulary_of(const std::filesystem::path& folder, const std::string& architecture, size_t size) {
  return Converter(folder, size).convert(architecture);
}

}  // namespace hotswap
