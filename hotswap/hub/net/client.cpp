#include "hotswap/hub/net/client.h"

#include "hotswap/base/json.h"
#include "hotswap/base/log.h"
#include "hotswap/hub/net/url.h"

namespace hotswap {
namespace {

constexpr int kMaxPages = 2000;  // of a tree: two million files
constexpr size_t kPageBytes = 32u << 20;

std::string api_path(const Repo& repo) {
  check_repo(repo);
  return cat("/api/", plural(repo.type), "/", repo.id);
}

}  // namespace

HubClient::HubClient(HubOptions options) : options_(std::move(options)), http_(options_.http) {
  url_origin(options_.endpoint);  // Error when HF_ENDPOINT is no URL
}

HttpResponse HubClient::ask(HttpRequest request, const std::string& subject) {
  if (options_.offline) {
    throw HubError({.wanted = subject,
                    .got = "offline mode (HF_HUB_OFFLINE), and it is not in the cache",
                    .next = "unset HF_HUB_OFFLINE for one run that downloads it"},
                   {.reason = HubReason::kOffline, .url = request.url});
  }
  if (url_origin(request.url) == url_origin(options_.endpoint)) request.token = options_.token;
  ++requests_;
  HttpResponse answer = http_.send(request);
  warn_once(answer);
  if (answer.status >= 400) throw hub_error(answer, subject);
  return answer;
}

HttpResponse HubClient::get_json(const std::string& path_and_query, const std::string& subject, bool quick) {
  HttpResponse answer = ask({.url = options_.endpoint + path_and_query,
                             .retries = quick ? 0 : -1,
                             .answer_s = quick ? options_.head_s : 0,
                             .body_limit = kPageBytes},
                            subject);
  if (answer.status != 200) {
    throw HubError({.wanted = subject,
                    .got = cat("status ", answer.status, " from ", url_shown(answer.url)),
                    .next = "check HF_ENDPOINT: this does not seem to be a Hub"},
                   {.reason = HubReason::kBadAnswer, .status = answer.status, .url = answer.url});
  }
  return answer;
}

void HubClient::warn_once(const HttpResponse& answer) {
  const std::string warning = answer.header("x-hf-warning");
  if (warning.empty()) return;
  const size_t end = warning.find(';');
  const std::lock_guard lock(mutex_);
  if (warned_.size() < 100 && warned_.insert(warning.substr(0, end)).second) {
    log_warning("the Hub reports: ", end == std::string::npos ? warning : warning.substr(end + 1));
  }
}

RepoRefs HubClient::refs(const Repo& repo, bool quick) {
  const HttpResponse answer = get_json(api_path(repo) + "/refs", "the branches and tags of " + repo.id, quick);
  return parse_refs(answer.body, url_shown(answer.url));
}

std::string HubClient::commit(const Repo& repo, const std::string& revision, bool quick) {
  check_relative_path(revision, "revision");
  const std::string subject = "revision " + revision + " of " + repo.id;
  const HttpResponse answer = get_json(api_path(repo) + "/revision/" + percent_encode(revision, false), subject, quick);
  auto sha = Json::parse(answer.body, url_shown(answer.url)).at<std::string>("sha");
  if (!is_commit(sha)) {
    throw HubError({.wanted = subject + " as a commit of 40 hexadecimal digits",
                    .got = "'" + sha.substr(0, 100) + "'",
                    .next = "check HF_ENDPOINT: this does not seem to be a Hub"},
                   {.reason = HubReason::kBadAnswer, .status = answer.status, .url = answer.url});
  }
  return sha;
}

std::vector<TreeEntry> HubClient::tree(const Repo& repo, const std::string& revision, const std::string& folder,
                                       bool recursive) {
  check_relative_path(revision, "revision");
  std::string path = api_path(repo) + "/tree/" + percent_encode(revision, false);
  if (!folder.empty()) {
    check_relative_path(folder, "folder");
    path += "/" + percent_encode(folder, false);
  }
  path += recursive ? "?recursive=true&expand=false" : "?recursive=false&expand=false";
  const std::string subject = cat("the files of ", repo.id, "@", revision, folder.empty() ? "" : "/", folder);
  std::vector<TreeEntry> entries;
  std::string url = options_.endpoint + path;
  for (int page = 0; page < kMaxPages; ++page) {
    const HttpResponse answer = ask({.url = url, .body_limit = kPageBytes}, subject);
    std::vector<TreeEntry> some = parse_tree(answer.body, url_shown(answer.url));
    entries.insert(entries.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
    const std::string next = link_next(answer.header("link"));
    if (next.empty()) return entries;
    const std::string following = url_resolve(url, next);
    if (url_origin(following) != url_origin(url) || following == url) break;  // a list does not move house midway
    url = following;
  }
  throw HubError({.wanted = subject + " in pages of one server, each with a new address",
                  .got = "a next page elsewhere, or pages without end",
                  .next = "check HF_ENDPOINT: this does not seem to be a Hub"},
                 {.reason = HubReason::kBadAnswer, .url = url});
}

std::string HubClient::file_url(const Repo& repo, const std::string& revision, const std::string& path) const {
  check_repo(repo);
  check_relative_path(revision, "revision");
  check_relative_path(path, "file");
  return cat(options_.endpoint, "/", download_prefix(repo.type), repo.id, "/resolve/", percent_encode(revision, false),
             "/", percent_encode(path, true));
}

FileMeta HubClient::file_meta(const Repo& repo, const std::string& revision, const std::string& path, bool quick) {
  const HttpResponse head = ask({.url = file_url(repo, revision, path),
                                 .method = "HEAD",
                                 .compressed = false,
                                 .follow_other_hosts = false,
                                 .retries = quick ? 0 : -1,
                                 .answer_s = quick ? options_.head_s : 0},
                                cat(path, " of ", repo.id, "@", revision));
  return parse_file_meta(head);
}

Publisher HubClient::publisher(const std::string& name, bool quick) {
  check_repo({.id = name});
  const HttpResponse answer = get_json("/api/organizations/" + percent_encode(name, false) + "/overview",
                                       "the Hub's answer about the publisher " + name, quick);
  const Json overview = Json::parse(answer.body, url_shown(answer.url));
  return {.name = overview.get<std::string>("name", name),
          .trusted = overview.get<bool>("trustedKernelPublisher", false)};
}

}  // namespace hotswap
