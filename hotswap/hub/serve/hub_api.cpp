#include "hotswap/hub/serve/hub_api.h"

#include <ctime>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/net/url.h"

namespace hotswap {
namespace {

using Plain = nlohmann::ordered_json;

// A folder's oid only has to be there.
Plain folder_entry(const std::string& path) {
  return {{"type", "directory"}, {"oid", std::string(40, '0')}, {"size", 0}, {"path", path}};
}

// 2026-01-31T12:00:00.000Z
std::string date(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S.000Z", &parts)};
}

Plain file_entry(const std::string& path, const ServedFile& file) {
  Plain entry = {{"type", "file"}, {"oid", file.git_sha1}, {"size", file.size}, {"path", path}};
  if (file.large) entry["lfs"] = {{"oid", file.sha256}, {"size", file.size}, {"pointerSize", 134}};
  return entry;
}

bool has_folder(const ServedRevision& revision, const std::string& folder) {
  const auto at = revision.files.lower_bound(folder + "/");
  return at != revision.files.end() && at->first.rfind(folder + "/", 0) == 0;
}

}  // namespace

bool takes_body(const Target& target) {
  return target.parts.size() >= 6 && target.parts[0] == "api" && target.parts[4] == "paths-info";
}

ApiAnswer HubApi::answer(const ApiRequest& request) {
  const std::vector<std::string>& parts = request.target.parts;
  if (parts.size() == 4 && parts[1] == "organizations" && parts[3] == "overview") return publisher(parts[2]);
  if (parts.size() == 2 && parts[1] == "whoami-v2") return whoami(request);
  const auto type = parts.size() >= 2 ? type_named(parts[1]) : std::nullopt;
  if (type && parts.size() == 2) return list(request, *type);
  if (!type || parts.size() < 4) throw Refused{404, "", "no such page"};
  return answer_repo(request, {*type, parts[2] + "/" + parts[3]});
}

ApiAnswer HubApi::answer_repo(const ApiRequest& request, const Repo& repo) {
  const std::vector<std::string>& parts = request.target.parts;
  const std::string verb = parts.size() > 4 ? parts[4] : "revision";
  if (verb == "paths-info" && parts.size() == 6 && request.method == "POST") return paths_info(request, repo);
  if (verb == "refs" && parts.size() == 5) return refs(repo);
  if (verb == "revision" && parts.size() <= 6)
    return revision(repo, parts.size() > 5 ? parts[5] : "main", request.target.flag("blobs"));
  if (verb == "commits" && parts.size() == 6) return commits(repo, parts[5]);
  if (verb == "auth-check") {
    if (!repos_.has(repo)) throw Refused{404, "RepoNotFound", "Repository not found"};
    if (parts.size() > 5) throw Refused{403, "", "this Hub is read-only"};
    return {Plain::object()};
  }
  if (verb == "tree" && parts.size() >= 6) return tree(request, repo);
  throw Refused{404, "", "no such page"};
}

std::shared_ptr<const ServedRevision> HubApi::revision_of(const Repo& repo, const std::string& name) {
  if (!repos_.has(repo)) throw Refused{404, "RepoNotFound", "Repository not found"};
  auto revision = repos_.find(repo, name);
  if (!revision) throw Refused{404, "RevisionNotFound", "Invalid rev id: " + name};
  return revision;
}

// There is one token and nobody behind it.
ApiAnswer HubApi::whoami(const ApiRequest& request) {
  if (!request.with_token) throw Refused{401, "", "Invalid username or password."};
  return {{{"type", "user"},
           {"id", "reader"},
           {"name", "reader"},
           {"fullname", "reader"},
           {"isPro", false},
           {"orgs", Plain::array()},
           {"auth", {{"type", "access_token"}, {"accessToken", {{"displayName", "serve-hub"}, {"role", "read"}}}}}}};
}

// By author and a part of the name. Tags are not known here: who filters by them finds nothing.
ApiAnswer HubApi::list(const ApiRequest& request, RepoType type) {
  const Target& target = request.target;
  const std::string author = target.value("author"), search = lower(target.value("search")),
                    after = target.value("cursor");
  size_t limit = page_;
  const std::string asked = target.value("limit");
  if (all_digits(asked) && asked.size() < 10) limit = std::min(limit, static_cast<size_t>(std::stoul(asked)));
  ApiAnswer answer{Plain::array()};
  if (!target.value("filter").empty()) return answer;
  for (const Repo& repo : repos_.all(type)) {
    const std::string organization = publisher_of(repo);
    if (repo.id <= after || (!author.empty() && organization != author)) continue;
    if (lower(repo.id).find(search) == std::string::npos) continue;
    if (answer.json.size() >= limit) {
      answer.next = cat(request.address, "?limit=", limit, "&author=", percent_encode(author, false),
                        "&search=", percent_encode(search, false),
                        "&cursor=", percent_encode(answer.json.back()["id"].get<std::string>(), false));
      break;
    }
    Plain entry = {{"id", repo.id}, {"author", organization}, {"private", false}, {"tags", Plain::array()}};
    if (type == RepoType::kModel) entry["modelId"] = repo.id;
    answer.json.push_back(std::move(entry));
  }
  return answer;
}

ApiAnswer HubApi::publisher(const std::string& name) {
  check_repo({.id = name});
  if (!repos_.has_publisher(name)) throw Refused{404, "", "Organization not found"};
  return {{{"name", name}, {"fullname", name}, {"trustedKernelPublisher", repos_.trusts(name)}}};
}

ApiAnswer HubApi::refs(const Repo& repo) {
  Plain answer = {{"branches", Plain::array()}, {"tags", Plain::array()}, {"converts", Plain::array()}};
  const auto revisions = repos_.revisions(repo);
  if (revisions.empty()) throw Refused{404, "RepoNotFound", "Repository not found"};
  for (const auto& revision : revisions) {
    answer[revision->tag ? "tags" : "branches"].push_back(
        {{"name", revision->name},
         {"ref", (revision->tag ? "refs/tags/" : "refs/heads/") + revision->name},
         {"targetCommit", revision->commit}});
  }
  return {answer};
}

ApiAnswer HubApi::revision(const Repo& repo, const std::string& name, bool blobs) {
  const auto revision = revision_of(repo, name);
  Plain files = Plain::array();
  for (const auto& [path, file] : revision->files) {
    Plain entry = {{"rfilename", path}};
    if (blobs) {
      entry["blobId"] = file.git_sha1;
      entry["size"] = file.size;
      if (file.large) entry["lfs"] = {{"sha256", file.sha256}, {"size", file.size}, {"pointerSize", 134}};
    }
    files.push_back(std::move(entry));
  }
  Plain answer = {
      {"id", repo.id}, {"sha", revision->commit}, {"lastModified", date(revision->modified)}, {"private", false}};
  // The Hub lists no files here of a kernel, and huggingface_hub 1.10 takes a list that comes for one in another form.
  if (repo.type != RepoType::kKernel) answer["siblings"] = std::move(files);
  return {answer};
}

// There is no git: the commit that is there is the only one that is known.
ApiAnswer HubApi::commits(const Repo& repo, const std::string& name) {
  const auto revision = revision_of(repo, name);
  Plain author = {{"user", publisher_of(repo)}}, authors = Plain::array(), all = Plain::array();
  authors.push_back(author);
  all.push_back({{"id", revision->commit},
                 {"title", revision->name},
                 {"message", ""},
                 {"authors", authors},
                 {"date", date(revision->modified)}});
  return {all};
}

ApiAnswer HubApi::tree(const ApiRequest& request, const Repo& repo) {
  const std::string& name = request.target.parts[5];
  const auto revision = revision_of(repo, name);
  const std::string folder = request.target.joined(6), begin = folder.empty() ? "" : folder + "/";
  const std::string after = request.target.value("cursor");
  const bool recursive = request.target.flag("recursive");
  if (!folder.empty() && !has_folder(*revision, folder))
    throw Refused{404, "EntryNotFound", folder + " does not exist on \"" + name + "\""};
  std::map<std::string, const ServedFile*> entries;  // by path; null: a folder
  for (auto at = revision->files.lower_bound(begin); at != revision->files.end() && at->first.rfind(begin, 0) == 0;
       ++at) {
    const std::string& path = at->first;
    for (size_t slash = path.find('/', begin.size()); slash != std::string::npos; slash = path.find('/', slash + 1)) {
      entries.emplace(path.substr(0, slash), nullptr);
      if (!recursive) break;
    }
    if (recursive || path.find('/', begin.size()) == std::string::npos) entries.emplace(path, &at->second);
  }
  ApiAnswer answer{Plain::array()};
  for (auto at = after.empty() ? entries.begin() : entries.upper_bound(after); at != entries.end(); ++at) {
    if (answer.json.size() == page_) {
      answer.next = cat(request.address, "?recursive=", recursive ? "true" : "false",
                        "&expand=false&cursor=", percent_encode(std::prev(at)->first, false));
      break;
    }
    answer.json.push_back(at->second == nullptr ? folder_entry(at->first) : file_entry(at->first, *at->second));
  }
  return answer;
}

// What is not there is left out, as the Hub does it.
ApiAnswer HubApi::paths_info(const ApiRequest& request, const Repo& repo) {
  const auto revision = revision_of(repo, request.target.parts[5]);
  ApiAnswer answer{Plain::array()};
  for (const std::string& path : asked_paths(request.body, request.content_type)) {
    const auto file = revision->files.find(path);
    if (file != revision->files.end()) {
      answer.json.push_back(file_entry(path, file->second));
    } else if (has_folder(*revision, path)) {
      answer.json.push_back(folder_entry(path));
    }
  }
  return answer;
}

}  // namespace hotswap
