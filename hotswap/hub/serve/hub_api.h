// What serve-hub answers below /api/, in the Hub's words: repositories, their revisions and their files as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "hotswap/hub/serve/request.h"
#include "hotswap/hub/serve/served_repos.h"

namespace hotswap {

struct ApiRequest {
  const Target& target;
  std::string method;   // GET, HEAD or POST
  std::string address;  // of the target without its query, as the client sees it
  bool with_token = false;
  std::string body = {}, content_type = {};
};

struct ApiAnswer {
  nlohmann::ordered_json json;
  std::string next = {};  // where the list goes on; empty: it ends here
};

class HubApi {
 public:
  HubApi(ServedRepos& repos, int page) : repos_(repos), page_(static_cast<size_t>(page)) {}

  // Refused where there is nothing to say.
  ApiAnswer answer(const ApiRequest& request);
  // The same, for addresses that have one. Refused: no such repository, no such revision.
  std::shared_ptr<const ServedRevision> revision_of(const Repo& repo, const std::string& name);

 private:
  ApiAnswer answer_repo(const ApiRequest& request, const Repo& repo);
  ApiAnswer whoami(const ApiRequest& request);
  ApiAnswer list(const ApiRequest& request, RepoType type);
  ApiAnswer publisher(const std::string& name);
  ApiAnswer refs(const Repo& repo);
  ApiAnswer commits(const Repo& repo, const std::string& name);
  ApiAnswer revision(const Repo& repo, const std::string& name, bool blobs);
  ApiAnswer tree(const ApiRequest& request, const Repo& repo);
  ApiAnswer paths_info(const ApiRequest& request, const Repo& repo);

  ServedRepos& repos_;
  const size_t page_;
};

// Whether a request with this address may bring a body, which then is a question about files.
bool takes_body(const Target& target);

}  // namespace hotswap
