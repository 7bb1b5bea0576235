#include "hotswap/tokenizers/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap::tokenizers {
namespace {

std::string message_of(int code) {
  char text[256] = "";
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof(text));
  return text;
}

// One match block per thread serves every pattern: only the whole match is asked for.
pcre2_match_data* match_block() {
  thread_local const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> block(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  return block.get();
}

pcre2_match_context* match_context() {
  thread_local const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      [] {
        auto* made = pcre2_match_context_create(nullptr);
        pcre2_set_match_limit(made, Regex::kMatchLimit);
        pcre2_set_heap_limit(made, 64 * 1024);  // KiB
        return made;
      }(),
      pcre2_match_context_free);
  return context.get();
}

}  // namespace

Regex::Regex(const std::string& pattern, std::string where) : where_(std::move(where)) {
  const std::string translated = translate_regex(pattern, where_);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  // MULTILINE: ^ and $ always stand for lines in Ruby's dialect. NEVER_BACKSLASH_C: it would cut characters.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &error,
                                   &at, context.get());
  if (code == nullptr) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("a regular expression at ", where_),
                 .got = cat("'", pattern, "': ", message_of(error), " (at ", at, " of '", translated, "')"),
                 .next = "correct the pattern"});
  }
  code_.reset(code, pcre2_code_free);
  jit_ = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
}

bool Regex::search(std::string_view text, size_t from, size_t& begin, size_t& end) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_match_data* block = match_block();
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (jit_) rc = pcre2_jit_match(code_.get(), subject, text.size(), from, 0, block, match_context());
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {  // deep recursion needs the interpreter, which keeps its stack on the heap
    rc =
        pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, block, match_context());
  }
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0) {
    throw Error(
        {.kind = ErrorKind::kUnsupported,
         .wanted = cat("a regular expression that finds its matches within ", kMatchLimit, " steps at ", where_),
         .got = cat(message_of(rc), " at byte ", from, " of a text of ", text.size(), " bytes"),
         .next = "the pattern backtracks too much for this text; use another tokenizer or shorter texts"});
  }
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(block);
  begin = found[0];
  end = found[1];
  return true;
}

void Regex::cut(std::string_view text, std::vector<Stretch>& out) const {
  if (text.empty()) return;
  size_t done = 0;  // end of the last stretch
  size_t from = 0;
  size_t last_match_end = std::string_view::npos;
  while (from <= text.size()) {
    size_t begin = 0;
    size_t end = 0;
    if (!search(text, from, begin, end)) break;
    if (begin == end && end == last_match_end) {  // no empty match right behind another match
      from += from < text.size() ? code_point_at(text, from).size : 1;
      continue;
    }
    if (begin > end || begin < done) {
      throw Error({.kind = ErrorKind::kUnsupported,
                   .wanted = cat("matches that follow each other at ", where_),
                   .got = "a match that starts before its search",
                   .next = "\\K in a look-around is not supported"});
    }
    if (done != begin) out.push_back({static_cast<uint32_t>(done), static_cast<uint32_t>(begin), false});
    out.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), true});
    done = from = last_match_end = end;
  }
  if (done != text.size()) out.push_back({static_cast<uint32_t>(done), static_cast<uint32_t>(text.size()), false});
}

}  // namespace hotswap::tokenizers
