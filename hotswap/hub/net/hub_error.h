// What can go wrong between us and a Hub. Every HubError carries what the server said and the request's id, which is
// what its operators ask for.
//
//   try { hub.file(repo, "main", "config.json"); }
//   catch (const HubError& error) { if (error.reason() == HubReason::kEntryNotFound) ...; else throw; }
#pragma once

#include <string>
#include <utility>

#include "hotswap/base/error.h"

namespace hotswap {

// Why, finer than an Error's kind, which follows from it.
enum class HubReason {
  kRepoNotFound,      // no such repository, or a private one and no right to see it
  kRevisionNotFound,  // the repository has no such branch, tag or commit
  kEntryNotFound,     // the revision has no such file
  kGatedRepo,         // its terms must be accepted first
  kDisabledRepo,      // switched off by the Hub
  kUnauthorized,      // the token is not valid here
  kRateLimited,       // 429, and the wait asked for is longer than we wait
  kOffline,           // HF_HUB_OFFLINE, and the answer is not in the cache
  kConnection,        // no answer, or a cut one
  kBadAnswer,         // an answer that breaks the protocol: sizes, hashes, headers, JSON
  kNotAllowed,        // a redirect to where the caller does not want to go
  kHttp,              // any other status >= 400
};

struct HubErrorFacts {
  HubReason reason = HubReason::kHttp;
  int status = 0;                   // of HTTP; 0: there was no answer
  bool transient = false;           // the same request may succeed in a moment
  std::string server_message = {};  // X-Error-Message, else the body's "error"
  std::string request_id = {};      // X-Request-Id or what the CDN calls it
  std::string url = {};
  std::string commit = {};  // X-Repo-Commit, where it came with the refusal
};

struct HubErrorText {
  std::string wanted, got;
  NextStep next;
};

ErrorKind kind_of(const HubErrorFacts& facts);

class HubError : public Error {
 public:
  HubError(HubErrorText text, HubErrorFacts facts)
      : Error({.kind = kind_of(facts),
               .wanted = std::move(text.wanted),
               .got = std::move(text.got),
               .next = std::move(text.next)}),
        facts_(std::move(facts)) {}
  HubReason reason() const { return facts_.reason; }
  int status() const { return facts_.status; }
  bool transient() const { return facts_.transient; }
  const std::string& server_message() const { return facts_.server_message; }
  const std::string& request_id() const { return facts_.request_id; }
  const std::string& url() const { return facts_.url; }
  const std::string& commit() const { return facts_.commit; }

 private:
  HubErrorFacts facts_;
};

}  // namespace hotswap
