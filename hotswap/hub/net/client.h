// The Hub's questions and answers, one function each, straight from the network: nothing is cached here (hub.h does
// that) and nothing touches the disk. Thread-safe.
//
//   HubClient client(HubOptions::from_env());
//   const std::string commit = client.commit({RepoType::kModel, "org/name"}, "main");
//   for (const TreeEntry& entry : client.tree({RepoType::kModel, "org/name"}, commit)) ...
//
// Errors: HubError with the Hub's own words (hub_error.h); Error for names that no Hub can have.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "hotswap/hub/names/repo.h"
#include "hotswap/hub/names/version.h"
#include "hotswap/hub/net/hub_error.h"
#include "hotswap/hub/net/options.h"

namespace hotswap {

struct FileMeta {
  std::string commit;
  std::string etag = {};  // without W/ and quotes
  int64_t size = -1;      // -1: the Hub did not say
};

struct Publisher {
  std::string name;
  bool trusted = false;  // trustedKernelPublisher
};

class HubClient {
 public:
  explicit HubClient(HubOptions options);

  // quick: one try of HubOptions::head_s seconds, for who has an older answer at hand.
  RepoRefs refs(const Repo& repo, bool quick = false);
  std::string commit(const Repo& repo, const std::string& revision, bool quick = false);
  // Everything under `folder` ("": the root), page after page.
  std::vector<TreeEntry> tree(const Repo& repo, const std::string& revision, const std::string& folder = "",
                              bool recursive = true);
  FileMeta file_meta(const Repo& repo, const std::string& revision, const std::string& path, bool quick = false);
  Publisher publisher(const std::string& name, bool quick = false);

  std::string file_url(const Repo& repo, const std::string& revision, const std::string& path) const;

  // The request with our token and, in answers of 400 and more, the Hub's error as HubError. `subject` is what the
  // message says was wanted.
  HttpResponse ask(HttpRequest request, const std::string& subject);

  const HubOptions& options() const { return options_; }
  Http& http() { return http_; }
  int64_t requests() const { return requests_; }  // sent so far, retries and redirects not counted

 private:
  HttpResponse get_json(const std::string& path_and_query, const std::string& subject, bool quick);
  void warn_once(const HttpResponse& answer);

  HubOptions options_;
  Http http_;
  std::mutex mutex_;
  std::set<std::string> warned_;  // topics of X-HF-Warning
  std::atomic<int64_t> requests_ = 0;
};

// What the answers of refs, tree and so on mean; apart, so that anything can be thrown at them in tests.
RepoRefs parse_refs(const std::string& json, const std::string& where);
std::vector<TreeEntry> parse_tree(const std::string& json, const std::string& where);
FileMeta parse_file_meta(const HttpResponse& head);
HubError hub_error(const HttpResponse& answer, const std::string& subject);  // of a status >= 400

}  // namespace hotswap
