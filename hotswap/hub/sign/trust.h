// May this repository's code run here? Pure: what the user allows and what the Hub says of the publisher come in, a
// decision with its reason comes out. Asked of the repository named and of every one that it redirects to, before any
// byte of them is downloaded.
//
//   if (needs_publisher(policy, question)) question.publisher = ask the Hub's overview of publisher_of(question.repo);
//   require_trust(policy, question);
#pragma once

#include <string>
#include <vector>

#include "hotswap/base/json.h"

namespace hotswap {

struct TrustPolicy {
  bool allow_all_kernels = false;
  // "org/repo" or "org/*". `deny` wins against everything, allow_all_kernels and per-entry trust included.
  std::vector<std::string> allow = {}, deny = {};
  std::vector<std::string> require_signature = {};  // whose metadata.json must bear a Sigstore signature
  std::vector<std::string> skip_digest = {};        // run though no digest vouches for their files
};

// The [trust] table of hotswap.toml: allow-all-kernels, allow, deny, require-signature, skip-digest. Unknown keys are
// an Error.
TrustPolicy parse_trust(const Json& table);

enum class Standing {  // of a publisher
  kUnknown,            // not asked
  kTrusted,            // the Hub's flag trustedKernelPublisher
  kUntrusted,
  kNoAnswer,  // asked, but the request failed
  kOffline,   // not asked, for there is no network: what runs is what was downloaded before
};

struct TrustQuestion {
  std::string repo;
  bool entry_trust = false;  // KernelRef's trust, trust_remote_code of a mapping: for the repository that it names
  bool local = false;        // a folder of the user's own, LOCAL_KERNELS included
  Standing publisher = Standing::kUnknown;
  std::string no_answer = {};        // why, with kNoAnswer
  std::string redirected_from = {};  // the repository that led here; its entry_trust does not come along
};

struct TrustDecision {
  bool allowed = false;
  std::string reason;   // why, or why not
  std::string warning;  // to be logged; empty: none
};

// Must the Hub be asked about the publisher, or is the decision made without?
bool needs_publisher(const TrustPolicy& policy, const TrustQuestion& question);
TrustDecision decide_trust(const TrustPolicy& policy, const TrustQuestion& question);
// Throws an Error that says how to opt in; returns the decision otherwise.
TrustDecision require_trust(const TrustPolicy& policy, const TrustQuestion& question);
bool requires_signature(const TrustPolicy& policy, const std::string& repo);
bool skips_digest(const TrustPolicy& policy, const std::string& repo);

std::string publisher_of(const std::string& repo);  // "org"
bool matches_repo(const std::string& pattern, const std::string& repo);

// kernel-status.toml at a repository's root, at the revision asked for.
struct Redirect {
  std::string destination, revision;  // revision: "main" where none is given
};
// Error where kind is not "redirect" or a key is missing or unknown.
Redirect parse_status(const Json& json);

}  // namespace hotswap
