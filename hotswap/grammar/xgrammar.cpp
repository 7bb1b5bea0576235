#include "hotswap/grammar/xgrammar.h"

#include <algorithm>

#include "hotswap/base/env.h"
#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/own_binary_path.h"
#include "hotswap/grammar/tvm_ffi.h"

namespace hotswap::grammar {
namespace {

using Value = FfiLibrary::Value;

// Signatures move between versions: these were run.
constexpr const char* kTested[] = {"0.2.9"};
constexpr uint32_t kAbi[] = {0, 1};
constexpr int64_t kRawVocabulary = 0, kCompileThreads = 1;

const char* const kInstall =
    "pip install --no-deps --target DIR xgrammar==0.2.9 apache-tvm-ffi==0.1.15, and set HOTSWAP_GRAMMAR=DIR";

std::filesystem::path library_in(const std::filesystem::path& folder) {
  return folder / "xgrammar" / "libxgrammar_bindings.so";
}

std::filesystem::path abi_in(const std::filesystem::path& folder) {
  return folder / "tvm_ffi" / "lib" / "libtvm_ffi.so";
}

// __version__ = version = '0.2.9'
std::string version_in(const std::filesystem::path& folder) {
  const std::string text = read_file_if_there(folder / "xgrammar" / "_version.py").value_or("");
  const std::string before = "__version__ = version = '";
  const size_t at = text.find(before);
  if (at == std::string::npos) return "none";
  const size_t begin = at + before.size();
  return text.substr(begin, text.find('\'', begin) - begin);
}

std::string problem_of(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const auto& file : {library_in(folder), abi_in(folder)}) {
    if (!std::filesystem::exists(file, ignored)) return "no " + file.string();
  }
  const std::string version = version_in(folder);
  const bool tested = std::find(std::begin(kTested), std::end(kTested), version) != std::end(kTested);
  return tested ? "" : cat("xgrammar ", version, " in ", folder.string(), ", tested are: ", join(kTested));
}

struct Methods {
  void *new_tokens, *new_compiler, *compile, *new_matcher, *accept, *fill, *ended, *bytes;
};

// The methods that are called, with the counts of their arguments in the tested versions.
Methods methods_of(const FfiLibrary& library) {
  const auto find = [&](const char* type, const char* name, size_t arguments) {
    return library.method(cat("xgrammar.tvm_ffi_binding.", type), name, arguments);
  };
  return {.new_tokens = find("TokenizerInfo", "__ffi_init__", 5),
          .new_compiler = find("GrammarCompiler", "__ffi_init__", 5),
          .compile = find("GrammarCompiler", "compile_grammar_from_strings", 3),
          .new_matcher = find("GrammarMatcher", "__ffi_init__", 5),
          .accept = find("GrammarMatcher", "accept_token", 3),
          .fill = find("GrammarMatcher", "fill_next_token_bitmask", 4),
          .ended = find("GrammarMatcher", "is_terminated", 1),
          .bytes = find("CompiledGrammar", "memory_size_bytes", 1)};
}

struct Loaded {
  std::shared_ptr<const FfiLibrary> library;
  Methods methods;
  int64_t vocab;
};

class XgrammarMatcher : public Matcher {
 public:
  XgrammarMatcher(std::shared_ptr<const Loaded> loaded, const Value& compiled) : loaded_(std::move(loaded)) {
    // None: the tokens that end a text are the vocabulary's, and the grammar's temperature is none; -1: any rollback.
    const ffi::Any arguments[] = {compiled.any(), FfiLibrary::none(), FfiLibrary::of_bool(false),
                                  FfiLibrary::of(int64_t{-1}), FfiLibrary::none()};
    matcher_ = loaded_->library->call(loaded_->methods.new_matcher, arguments);
  }
  void allowed(std::span<int32_t> words) override {
    const size_t expected = (static_cast<size_t>(loaded_->vocab) + 31) / 32;
    if (words.size() != expected) {
      throw Error({.kind = ErrorKind::kInternal,
                   .wanted = cat(expected, " words of 32 bits in the mask of allowed tokens"),
                   .got = cat(words.size()),
                   .next = "report it: this is a fault of hotswap"});
    }
    if (ended_) return std::fill(words.begin(), words.end(), 0);
    int64_t shape = static_cast<int64_t>(words.size()), stride = 1;
    const ffi::Tensor tensor{.data = words.data(),
                             .device_type = 1,
                             .device_id = 0,
                             .dims = 1,
                             .type_code = 0,
                             .type_bits = 32,
                             .type_lanes = 1,
                             .shape = &shape,
                             .strides = &stride,
                             .byte_offset = 0};
    const ffi::Any arguments[] = {matcher_.any(), FfiLibrary::of(tensor), FfiLibrary::of(int64_t{0}),
                                  FfiLibrary::of_bool(false)};
    const bool masks = loaded_->library->call(loaded_->methods.fill, arguments).as_bool();
    if (!masks) std::fill(words.begin(), words.end(), -1);
  }
  bool accept(int64_t id) override {
    if (ended_) return false;
    const ffi::Any arguments[] = {matcher_.any(), FfiLibrary::of(id), FfiLibrary::of_bool(false)};
    if (!loaded_->library->call(loaded_->methods.accept, arguments).as_bool()) return false;
    const ffi::Any self[] = {matcher_.any()};
    ended_ = loaded_->library->call(loaded_->methods.ended, self).as_bool();
    return true;
  }
  bool ended() const override { return ended_; }

 private:
  std::shared_ptr<const Loaded> loaded_;
  Value matcher_;
  bool ended_ = false;
};

class XgrammarGrammar : public CompiledGrammar {
 public:
  XgrammarGrammar(std::shared_ptr<const Loaded> loaded, Value compiled)
      : loaded_(std::move(loaded)), compiled_(std::move(compiled)) {
    const ffi::Any self[] = {compiled_.any()};
    bytes_ = static_cast<size_t>(loaded_->library->call(loaded_->methods.bytes, self).as_int());
  }
  std::unique_ptr<Matcher> matcher() const override { return std::make_unique<XgrammarMatcher>(loaded_, compiled_); }
  size_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<const Loaded> loaded_;
  Value compiled_;
  size_t bytes_;
};

class XgrammarEngine : public GrammarEngine {
 public:
  XgrammarEngine(std::shared_ptr<const FfiLibrary> library, const TokenBytes& tokens) {
    const Methods methods = methods_of(*library);
    loaded_ =
        std::make_shared<const Loaded>(Loaded{std::move(library), methods, static_cast<int64_t>(tokens.bytes.size())});
    const FfiLibrary& ffi = *loaded_->library;
    const Value info = token_info(ffi, tokens);
    const ffi::Any arguments[] = {info.any(), FfiLibrary::of(kCompileThreads), /*cache=*/FfiLibrary::of_bool(false),
                                  /*its limit=*/FfiLibrary::of(int64_t{-1}),
                                  /*masks at first use=*/FfiLibrary::of_bool(false)};
    compiler_ = ffi.call(methods.new_compiler, arguments);
  }
  std::shared_ptr<const CompiledGrammar> compile(const std::string& ebnf) const override {
    const FfiLibrary& ffi = *loaded_->library;
    const Value text = ffi.text(ebnf), root = ffi.text("root");
    const ffi::Any arguments[] = {compiler_.any(), text.any(), root.any()};
    return std::make_shared<XgrammarGrammar>(loaded_, ffi.call(loaded_->methods.compile, arguments));
  }

 private:
  Value token_info(const FfiLibrary& ffi, const TokenBytes& tokens) const {
    std::vector<Value> texts, ends;
    std::vector<ffi::Any> text_views, end_views;
    for (const std::string& bytes : tokens.bytes) {
      texts.push_back(ffi.bytes(bytes));
      text_views.push_back(texts.back().any());
    }
    for (const int64_t id : tokens.ends) end_views.push_back(FfiLibrary::of(id));
    const Value vocabulary = ffi.array(text_views), stops = ffi.array(end_views);
    const ffi::Any arguments[] = {vocabulary.any(), FfiLibrary::of(kRawVocabulary), FfiLibrary::of(loaded_->vocab),
                                  stops.any(), /*add_prefix_space=*/FfiLibrary::of_bool(false)};
    return ffi.call(loaded_->methods.new_tokens, arguments);
  }
  std::shared_ptr<const Loaded> loaded_;
  Value compiler_;
};

// Two tokens and an end: the library must allow what it should, and nothing else.
void self_test(const std::shared_ptr<const FfiLibrary>& library) {
  const XgrammarEngine engine(library, {.bytes = {"{", "}", "x", ""}, .ends = {3}});
  const auto matcher = engine.compile("root ::= \"{\" \"}\"")->matcher();
  std::vector<int32_t> seen;
  for (const int64_t id : {0, 1, 3}) {
    std::vector<int32_t> words(1);
    matcher->allowed(words);
    seen.push_back(words[0] & 15);
    if (!matcher->accept(id)) seen.push_back(-1);
  }
  if (seen == std::vector<int32_t>{1, 2, 8} && matcher->ended() && !matcher->accept(0)) return;
  throw Error(
      {.kind = ErrorKind::kUnsupported,
       .wanted =
           "an xgrammar that passes hotswap's check of it at load (the tokens of {} and the end, one after another)",
       .got = "other masks of allowed tokens: " + join(seen),
       .next = kInstall});
}

}  // namespace

Result<std::filesystem::path> find_xgrammar() {
  std::filesystem::path folder;
  if (const auto named = env(EnvVar::kGrammar)) {
    folder = *named;
  } else {
    const auto binary = own_binary_path();
    if (!binary) return Reason{binary.why()};
    folder = binary->parent_path().parent_path() / "grammar";
  }
  const std::string problem = problem_of(folder);
  if (problem.empty()) return folder;
  return Reason{cat(problem, "; ", kInstall)};
}

std::unique_ptr<GrammarEngine> load_xgrammar(const std::filesystem::path& folder, const TokenBytes& tokens) {
  const auto library = FfiLibrary::load(abi_in(folder), library_in(folder));
  const auto abi = library->version();
  if (abi[0] != kAbi[0] || abi[1] != kAbi[1]) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("TVM FFI ", kAbi[0], ".", kAbi[1]),
                 .got = join(abi, "."),
                 .next = kInstall});
  }
  self_test(library);
  return std::make_unique<XgrammarEngine>(library, tokens);
}

}  // namespace hotswap::grammar
