// The operators of PEP 440's version specifiers. In version.h with the versions; here, because they read better alone.
#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/names/version.h"

namespace hotswap {
namespace {

constexpr const char* kOperators[] = {"===", "~=", "==", "!=", "<=", ">=", "<", ">"};

[[noreturn]] void refuse_specifier(std::string_view whole, const std::string& why) {
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "versions as '>=2.0,<3.0', '~=1.4', '==2.*', '!=1.3' (operators ~= == != <= >= < > ===)",
               .got = cat("'", shown(whole), "': ", why),
               .next = "correct what follows '@'"});
}

// "==2.0.*": the candidate's release, padded with zeros, starts with these numbers.
bool has_prefix(const Version& candidate, const Version& prefix, size_t numbers) {
  if (candidate.epoch() != prefix.epoch()) return false;
  const auto& have = candidate.release();
  for (size_t i = 0; i < numbers; ++i) {
    if ((i < have.size() ? have[i] : 0) != prefix.release()[i]) return false;
  }
  return true;
}

}  // namespace

SpecifierSet::One SpecifierSet::parse_one(std::string_view text, std::string_view whole) {
  One one;
  for (const char* op : kOperators) {
    if (text.starts_with(op)) {
      one.op = op;
      break;
    }
  }
  if (one.op.empty()) refuse_specifier(whole, cat("'", shown(text), "' starts with none of the operators"));
  one.text = trim(text.substr(one.op.size()));
  if (one.op == "===") {
    if (one.text.empty()) refuse_specifier(whole, "nothing follows ===");
    return one;
  }
  std::string_view number = one.text;
  if (number.ends_with(".*")) {
    if (one.op != "==" && one.op != "!=")
      refuse_specifier(whole, cat("'.*' goes with == and != only, not with ", one.op));
    one.prefix = true;
    number.remove_suffix(2);
  }
  one.version = Version::try_parse(number);
  if (!one.version) refuse_specifier(whole, cat("'", shown(number), "' is no version"));
  const bool plain = one.op == "==" || one.op == "!=";
  if (one.version->has_local() && (!plain || one.prefix)) refuse_specifier(whole, "'+local' goes with == and != only");
  if (one.prefix && *one.version != one.version->base())
    refuse_specifier(whole, "'.*' follows a plain release, as 2.0.*");
  if (one.op == "~=" && one.version->release().size() < 2) refuse_specifier(whole, "~= needs two numbers, as ~=1.4");
  return one;
}

SpecifierSet SpecifierSet::parse(std::string_view text) {
  SpecifierSet set;
  if (text.size() > 1024) refuse_specifier(text, "it is too long");
  for (const std::string& part : split(text, ',')) {
    if (trim(part).empty()) refuse_specifier(text, "a part between commas is empty");
    set.all_.push_back(parse_one(trim(part), text));
  }
  return set;
}

bool SpecifierSet::One::contains(const Version& candidate) const {
  if (op == "===") return lower(candidate.str()) == lower(text);
  const Version& want = *version;
  const Version have = candidate.public_part();
  if (op == "==" || op == "!=") {
    const bool equal =
        prefix ? has_prefix(have, want, want.release().size()) : (want.has_local() ? candidate : have) == want;
    return equal == (op == "==");
  }
  if (op == "<=") return have <= want;
  if (op == ">=") return have >= want;
  // What is a pre-release, a post-release or a local build of the very version named lies on neither side of it.
  if (op == "<") return candidate < want && (want.is_prerelease() || !candidate.is_prerelease_of(want));
  if (op == ">") {
    if (!(candidate > want) || (candidate.has_local() && have == want)) return false;
    return want.is_postrelease() || !candidate.is_postrelease_of(want);
  }
  // ~=1.4.2 is >=1.4.2,==1.4.*
  return have >= want && has_prefix(have, want, want.release().size() - 1);
}

bool SpecifierSet::contains(const Version& version) const {
  return std::all_of(all_.begin(), all_.end(), [&](const One& one) { return one.contains(version); });
}

std::vector<Version> SpecifierSet::filter(const std::vector<Version>& versions) const {
  const bool asked = std::any_of(all_.begin(), all_.end(), [](const One& one) {
    return one.op != "!=" && !one.prefix && one.version && one.version->is_prerelease();
  });
  std::vector<Version> finals, others;
  for (const Version& version : versions) {
    if (!contains(version)) continue;
    (asked || !version.is_prerelease() ? finals : others).push_back(version);
  }
  return finals.empty() ? others : finals;
}

uint64_t SpecifierSet::least_major() const {
  uint64_t least = 0;
  for (const One& one : all_) {
    const bool bounds = one.op == ">=" || one.op == ">" || one.op == "==" || one.op == "~=";
    if (bounds && one.version) least = std::max(least, one.version->release().front());
  }
  return least;
}

bool SpecifierSet::names(std::string_view text) const {
  return std::any_of(all_.begin(), all_.end(),
                     [&](const One& one) { return (one.op == "==" || one.op == "===") && one.text == text; });
}

}  // namespace hotswap
