#include "hotswap/tokenizers/tokenizer_json.h"

#include "hotswap/base/error.h"

namespace hotswap::tokenizers {
namespace {

using Node = nlohmann::ordered_json;
constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxKeys = 4096;  // of an object other than the vocabulary

// Follows the parser's events: builds the rest as a tree, and the two large lists beside it.
class Handler : public nlohmann::json_sax<Node> {
 public:
  explicit Handler(const std::string& where) : where_(where) {}

  bool null() override { return value(nullptr, "null"); }
  bool boolean(bool v) override { return value(v, "a boolean"); }
  bool number_integer(number_integer_t v) override { return value(v, "a negative number"); }
  bool number_unsigned(number_unsigned_t v) override {
    if (list_ != List::kVocabulary) return value(v, "a number");
    if (v > INT32_MAX) wrong("an id below 2^31", cat(v));
    vocabulary.emplace_back(std::move(key_), static_cast<int64_t>(v));
    return true;
  }
  bool number_float(number_float_t v, const string_t&) override { return value(v, "a fraction"); }
  bool string(string_t& v) override {
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
    if (list_ != List::kNone) wrong(list_ == List::kVocabulary ? "ids" : "pairs of strings", "an object");
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
    if (object.contains(name)) fail(cat("each key once in ", where_), cat("'", name, "' twice"));
    if (object.size() >= kMaxKeys)
      fail(cat("objects of at most ", kMaxKeys, " keys beside the vocabulary in ", where_), "more");
    if (stack_.size() == 2 && in_model_ && (name == "vocab" || name == "merges")) {
      if ((name == "vocab" ? saw_vocabulary_ : saw_merges_))
        fail(cat("each key once in ", where_), cat("'", name, "' twice"));
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
    if (list_ == List::kVocabulary || in_pair_) wrong(in_pair_ ? "pairs of strings" : "ids", "an array");
    if (list_ == List::kMerges) {
      in_pair_ = true;
      pair_.clear();
      return true;
    }
    if (at_model_key("merges")) {
      list_ = List::kMerges;
      return true;
    }
    return open(Node::array());
  }
  bool end_array() override {
    if (in_pair_) {
      if (pair_.size() != 2) wrong("pairs of strings", cat(pair_.size(), " strings"));
      merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      in_pair_ = false;
    } else if (list_ == List::kMerges) {
      list_ = List::kNone;
    } else {
      stack_.pop_back();
    }
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    fail(cat("valid JSON in ", where_), e.what(), "correct the file or fetch it again");
  }

  std::vector<std::pair<std::string, int64_t>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;
  Node rest;

 private:
  enum class List { kNone, kVocabulary, kMerges };

  [[noreturn]] static void fail(std::string wanted, std::string got, std::string next = "correct the file") {
    throw Error({.wanted = std::move(wanted), .got = std::move(got), .next = std::move(next)});
  }
  [[noreturn]] void wrong(const std::string& wanted, const std::string& got) const {
    const bool in_vocabulary = list_ == List::kVocabulary;
    fail(cat(wanted, " in ", where_, ": model.", in_vocabulary ? "vocab" : "merges"),
         in_vocabulary ? cat(got, " for '", key_, "'") : cat(got, " after ", merges.size(), " merges"));
  }
  bool at_model_key(const char* name) const {
    return stack_.size() == 2 && in_model_ && stack_.back()->is_object() && key_ == name;
  }

  // A plain value of the rest; in the two lists it is out of place.
  bool value(Node node, const char* type) {
    if (list_ != List::kNone) wrong(list_ == List::kVocabulary ? "ids" : "pairs of strings", type);
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
    if (stack_.size() >= kMaxDepth) fail(cat("JSON nested at most ", kMaxDepth, " deep in ", where_), "deeper nesting");
    stack_.push_back(put(std::move(node)));
    return true;
  }

  const std::string& where_;
  std::vector<Node*> stack_;  // open objects and arrays
  std::string key_;
  std::vector<std::string> pair_;
  List list_ = List::kNone;
  bool in_pair_ = false, in_model_ = false, saw_vocabulary_ = false, saw_merges_ = false;
};

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where) {
  Handler handler(where);
  Node::sax_parse(text, &handler);
  return {std::move(handler.vocabulary), std::move(handler.merges), Json::parse(handler.rest.dump(), where)};
}

}  // namespace hotswap::tokenizers
