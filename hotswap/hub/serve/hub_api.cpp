#include "hotswap/hub/serve/hub_api.h"

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
  const auto type = parts.size() >= 4 ? type_named(parts[1]) : std::nullopt;
  if (!type) throw Refused{404, "", "no such page"};
  return answer_repo(request, {*type, parts[2] + "/" + parts[3]});
}

ApiAnswer HubApi::answer_repo(const ApiRequest& request, const Repo& repo) {
  const std::vector<std::string>& parts = request.target.parts;
  const std::string verb = parts.size() > 4 ? parts[4] : "revision";
  if (verb == "paths-info" && parts.size() == 6 && request.method == "POST") return paths_info(request, repo);
  if (verb == "refs" && parts.size() == 5) return refs(repo);
  if (verb == "revision" && parts.size() <= 6) return revision(repo, parts.size() > 5 ? parts[5] : "main");
  if (verb == "tree" && parts.size() >= 6) return tree(request, repo);
  throw Refused{404, "", "no such page"};
}

std::shared_ptr<const ServedRevision> HubApi::revision_of(const Repo& repo, const std::string& name) {
  if (repos_.revisions(repo).empty()) throw Refused{404, "RepoNotFound", "Repository not found"};
  auto revision = repos_.find(repo, name);
  if (!revision) throw Refused{404, "RevisionNotFound", "Invalid rev id: " + name};
  return revision;
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

ApiAnswer HubApi::revision(const Repo& repo, const std::string& name) {
  const auto revision = revision_of(repo, name);
  Plain files = Plain::array();
  for (const auto& [path, file] : revision->files) files.push_back({{"rfilename", path}});
  return {{{"id", repo.id}, {"sha", revision->commit}, {"private", false}, {"siblings", files}}};
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
