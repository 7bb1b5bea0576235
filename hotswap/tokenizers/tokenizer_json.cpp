#include "hotswap/tokenizers/tokenizer_json.h"

#include <algorithm>
#include <cstdlib>

#include "hotswap/base/error.h"
#include "hotswap/base/json_fault.h"

namespace hotswap::tokenizers {
namespace {

using Node = nlohmann::ordered_json;
constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxKeys = 4096;  // of an object other than the vocabulary

// A score as the tokenizers library reads it: a rounded product of rounded parts, which for one number in eight is not
// the nearest double. Its ties between token sequences depend on the last bit.
double score_of(std::string_view text) {
  const bool negative = text[0] == '-';
  uint64_t digits = 0;
  int exponent = 0;
  bool fraction = false;
  bool full = false;  // no further digit fits
  size_t at = negative ? 1 : 0;
  for (; at < text.size() && text[at] != 'e' && text[at] != 'E'; ++at) {
    if (text[at] == '.') {
      fraction = true;
      continue;
    }
    const auto digit = static_cast<uint64_t>(text[at] - '0');
    full = full || digits > (UINT64_MAX - digit) / 10;
    if (!full) digits = digits * 10 + digit;
    exponent += (full && !fraction ? 1 : 0) - (!full && fraction ? 1 : 0);
  }
  if (at < text.size())
    exponent += static_cast<int>(std::strtol(std::string(text.substr(at + 1)).c_str(), nullptr, 10));
  auto value = static_cast<double>(digits);
  for (; exponent < -308 && value != 0; exponent += 308) value /= 1e308;
  const double power = std::strtod(cat("1e", std::abs(std::clamp(exponent, -308, 308))).c_str(), nullptr);
  value = exponent < 0 ? value / power : value * power;
  return negative ? -value : value;
}

// Follows the parser's events: builds the rest as a tree, and the large lists beside it.
class Handler : public nlohmann::json_sax<Node> {
 public:
  Handler(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  bool null() override { return value(nullptr, "null"); }
  bool boolean(bool v) override { return value(v, "a boolean"); }
  bool number_integer(number_integer_t v) override {
    return list_ == List::kPieces ? score(static_cast<double>(v)) : value(v, "a negative number");
  }
  bool number_unsigned(number_unsigned_t v) override {
    if (list_ == List::kPieces) return score(static_cast<double>(v));
    if (list_ != List::kVocabulary) return value(v, "a number");
    if (v > INT32_MAX) wrong("an id below 2^31", cat(v));
    vocabulary.emplace_back(std::move(key_), static_cast<int64_t>(v));
    return true;
  }
  bool number_float(number_float_t v, const string_t& text) override {
    return list_ == List::kPieces ? score(score_of(text)) : value(v, "a fraction");
  }
  bool string(string_t& v) override {
    if (list_ == List::kPieces) {
      if (!in_pair_ || !pair_.empty()) wrong(kPairsWithScores, "a string");
      pair_.push_back(std::move(v));
      return true;
    }
    if (list_ != List::kMerges) return value(std::move(v), "a string");
    if (in_pair_) {
      if (pair_.size() == 2) wrong("pairs of strings", "three strings");
      pair_.push_back(std::move(v));
      return true;
    }
    if (v.rfind("#version", 0) == 0) return true;
    const size_t blank = v.find(' ');
    if (blank == std::string::npos || v.find(' ', blank + 1) != std::string::npos)
      wrong("'a b' with one blank", cat("'", v, "'"));
    merges.emplace_back(v.substr(0, blank), v.substr(blank + 1));
    return true;
  }
  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override {
    if (list_ != List::kNone) wrong(expected(), "an object");
    if (at_model_key("vocab")) {
      list_ = List::kVocabulary;
      return true;
    }
    return open(Node::object());
  }
  bool key(string_t& name) override {
    if (list_ == List::kVocabulary) {
      key_ = std::move(name);
      return true;
    }
    Node& object = *stack_.back();
    if (object.contains(name)) fail(cat("each key once in ", where_), cat("'", name, "' twice"), "keep one of the two");
    if (object.size() >= kMaxKeys)
      fail(cat("objects of at most ", kMaxKeys, " keys beside the vocabulary in ", where_), "more",
           "fetch the file again: no tokenizer has such an object");
    if (stack_.size() == 2 && in_model_ && (name == "vocab" || name == "merges")) {
      if ((name == "vocab" ? saw_vocabulary_ : saw_merges_))
        fail(cat("each key once in ", where_), cat("'", name, "' twice"), "keep one of the two");
      (name == "vocab" ? saw_vocabulary_ : saw_merges_) = true;
    }
    key_ = name;
    if (stack_.size() == 1) in_model_ = name == "model";
    return true;
  }
  bool end_object() override {
    if (list_ == List::kVocabulary) {
      list_ = List::kNone;
      return true;
    }
    stack_.pop_back();
    return true;
  }
  bool start_array(size_t) override {
    if (list_ == List::kVocabulary || in_pair_) wrong(expected(), "an array");
    if (list_ == List::kMerges || list_ == List::kPieces) {
      in_pair_ = true;
      scored_ = false;
      pair_.clear();
      return true;
    }
    if (at_model_key("merges") || at_model_key("vocab")) {
      list_ = key_ == "merges" ? List::kMerges : List::kPieces;
      return true;
    }
    return open(Node::array());
  }
  bool end_array() override {
    if (in_pair_ && list_ == List::kPieces) {
      if (!scored_) wrong(kPairsWithScores, "a pair without a score");
      in_pair_ = false;
    } else if (in_pair_) {
      if (pair_.size() != 2) wrong("pairs of strings", cat(pair_.size(), " strings"));
      merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      in_pair_ = false;
    } else if (list_ != List::kNone) {
      list_ = List::kNone;
    } else {
      stack_.pop_back();
    }
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    fail(cat("valid JSON in ", where_), json_fault(text_), "fetch the file again; it is cut or damaged");
  }

  std::vector<std::pair<std::string, int64_t>> vocabulary;
  std::vector<std::pair<std::string, double>> pieces;
  std::vector<std::pair<std::string, std::string>> merges;
  Node rest;

 private:
  enum class List { kNone, kVocabulary, kPieces, kMerges };
  static constexpr const char* kPairsWithScores = "pairs of a string and its score";

  [[noreturn]] static void fail(std::string wanted, std::string got, std::string next) {
    throw Error(
        {.kind = ErrorKind::kCorrupt, .wanted = std::move(wanted), .got = std::move(got), .next = std::move(next)});
  }
  [[noreturn]] void wrong(const std::string& wanted, const std::string& got) const {
    fail(cat(wanted, " in ", where_, ": model.", list_ == List::kMerges ? "merges" : "vocab"),
         list_ == List::kVocabulary ? cat(got, " for '", key_, "'")
         : list_ == List::kPieces   ? cat(got, " after ", pieces.size(), " pieces")
                                    : cat(got, " after ", merges.size(), " merges"),
         "fetch the file again; it was not written by the tokenizers library");
  }
  const char* expected() const {
    return list_ == List::kVocabulary ? "ids" : list_ == List::kPieces ? kPairsWithScores : "pairs of strings";
  }
  bool score(double v) {
    if (!in_pair_ || pair_.size() != 1 || scored_) wrong(kPairsWithScores, "a number");
    pieces.emplace_back(std::move(pair_[0]), v);
    return scored_ = true;
  }
  bool at_model_key(const char* name) const {
    return stack_.size() == 2 && in_model_ && stack_.back()->is_object() && key_ == name;
  }

  // A plain value of the rest; in the lists it is out of place.
  bool value(Node node, const char* type) {
    if (list_ != List::kNone) wrong(expected(), type);
    put(std::move(node));
    return true;
  }
  Node* put(Node node) {
    if (stack_.empty()) {
      rest = std::move(node);
      return &rest;
    }
    Node& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(node));
      return &parent.back();
    }
    return &(parent[key_] = std::move(node));
  }
  bool open(Node node) {
    if (stack_.size() >= kMaxDepth)
      fail(cat("JSON nested at most ", kMaxDepth, " deep in ", where_), "deeper nesting",
           "fetch the file again: no tokenizer is nested so deep");
    stack_.push_back(put(std::move(node)));
    return true;
  }

  std::string_view text_;
  const std::string& where_;
  std::vector<Node*> stack_;  // open objects and arrays
  std::string key_;
  std::vector<std::string> pair_;
  List list_ = List::kNone;
  bool in_pair_ = false, scored_ = false, in_model_ = false, saw_vocabulary_ = false, saw_merges_ = false;
};

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where) {
  Handler handler(text, where);
  Node::sax_parse(text, &handler);
  return {std::move(handler.vocabulary), std::move(handler.pieces), std::move(handler.merges),
          Json::parse(handler.rest.dump(), where)};
}

}  // namespace hotswap::tokenizers
