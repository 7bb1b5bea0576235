#include "hotswap/hub/sign/trust.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/kernel_ref.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

bool listed(const std::vector<std::string>& patterns, const std::string& repo) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) { return matches_repo(p, repo); });
}

std::vector<std::string> read_patterns(const Json& table, const char* key) {
  auto patterns = table.get<std::vector<std::string>>(key, {});
  for (const std::string& pattern : patterns) {
    const bool whole_org = pattern.ends_with("/*") && is_repo_id(pattern.substr(0, pattern.size() - 1) + "x");
    if (whole_org || is_repo_id(pattern)) continue;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("'org/repo' or 'org/*' in ", table.where(), ".", key),
                 .got = "'" + shown(pattern) + "'",
                 .next = "correct the entry"});
  }
  return patterns;
}

// The decision that needs no network, if there is one.
std::optional<TrustDecision> decide_here(const TrustPolicy& policy, const TrustQuestion& q) {
  if (q.local) return TrustDecision{true, "a folder on this machine", ""};
  if (listed(policy.deny, q.repo)) return TrustDecision{false, cat(q.repo, " is on the list of denied kernels"), ""};
  if (policy.allow_all_kernels) return TrustDecision{true, "allow_all_kernels is set", ""};
  if (q.entry_trust && q.redirected_from.empty()) return TrustDecision{true, "its entry is marked as trusted", ""};
  if (listed(policy.allow, q.repo)) return TrustDecision{true, "it is on the list of allowed kernels", ""};
  return std::nullopt;
}

}  // namespace

TrustPolicy parse_trust(const Json& table) {
  table.only({"allow-all-kernels", "allow", "deny", "require-signature", "skip-digest"});
  return {.allow_all_kernels = table.get("allow-all-kernels", false),
          .allow = read_patterns(table, "allow"),
          .deny = read_patterns(table, "deny"),
          .require_signature = read_patterns(table, "require-signature"),
          .skip_digest = read_patterns(table, "skip-digest")};
}

bool needs_publisher(const TrustPolicy& policy, const TrustQuestion& question) {
  return !decide_here(policy, question).has_value();
}

TrustDecision decide_trust(const TrustPolicy& policy, const TrustQuestion& q) {
  if (auto decision = decide_here(policy, q)) return *decision;
  const std::string publisher = publisher_of(q.repo);
  switch (q.publisher) {
    case Standing::kTrusted:
      return {true, cat("'", publisher, "' is a trusted publisher"), ""};
    case Standing::kUntrusted:
      return {false, cat("'", q.repo, "' is not from a trusted publisher"), ""};
    case Standing::kNoAnswer:
      return {false, cat("could not verify publisher trust status of '", publisher, "': ", q.no_answer), ""};
    case Standing::kOffline:
      return {true, "offline: only what was downloaded before can run",
              cat("offline: the publisher of '", q.repo, "' is not checked")};
    case Standing::kUnknown:
      break;
  }
  throw Error({.kind = ErrorKind::kInternal,
               .wanted = cat("the publisher of ", q.repo, " looked up before it is judged"),
               .got = "a question without an answer",
               .next = "ask needs_publisher() first"});
}

TrustDecision require_trust(const TrustPolicy& policy, const TrustQuestion& q) {
  TrustDecision decision = decide_trust(policy, q);
  if (decision.allowed) return decision;
  const std::string led = q.redirected_from.empty() ? "" : cat(" ('", q.redirected_from, "' redirects to it)");
  const bool denied = listed(policy.deny, q.repo);
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("a kernel that may run here", led),
               .got = decision.reason,
               .next = denied ? "take it off the list if you trust it"
                       : q.redirected_from.empty()
                           ? "read its code; then trust this entry (.trust = true), list it in [trust] allow of "
                             "hotswap.toml, or set allow_all_kernels (--allow-all-kernels)"
                           : "name the destination itself and trust that entry, list it in [trust] allow of "
                             "hotswap.toml, or set allow_all_kernels (--allow-all-kernels)"});
}

bool requires_signature(const TrustPolicy& policy, const std::string& repo) {
  return listed(policy.require_signature, repo);
}

bool skips_digest(const TrustPolicy& policy, const std::string& repo) { return listed(policy.skip_digest, repo); }

std::string publisher_of(const std::string& repo) { return repo.substr(0, repo.find('/')); }

bool matches_repo(const std::string& pattern, const std::string& repo) {
  if (pattern.ends_with("/*")) return lower(publisher_of(repo)) + "/*" == lower(pattern);
  return lower(pattern) == lower(repo);
}

Redirect parse_status(const Json& json) {
  json.only({"kind", "destination", "revision"});
  const auto kind = json.at<std::string>("kind");
  if (kind != "redirect") {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("kind = \"redirect\" in ", json.where()),
                 .got = "'" + shown(kind) + "'",
                 .next = "use a hotswap that knows this kind"});
  }
  Redirect redirect{json.at<std::string>("destination"), json.get<std::string>("revision", "main")};
  if (!is_repo_id(redirect.destination) || !is_ref_name(redirect.revision)) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("a repository and a revision in ", json.where()),
                 .got = cat("'", shown(redirect.destination), "' at '", shown(redirect.revision), "'"),
                 .next = "tell the repository's owner"});
  }
  return redirect;
}

}  // namespace hotswap
