// From the Hub's answers to our types, and from its refusals to HubError.
#include <charconv>

#include "hotswap/base/json.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/net/client.h"
#include "hotswap/hub/net/url.h"

namespace hotswap {
namespace {

std::string plain_etag(std::string etag) {
  if (etag.rfind("W/", 0) == 0) etag = etag.substr(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return etag;
}

// The ETag becomes a file's name in the cache: what could be a path, or hide as one, is refused.
void check_etag(const std::string& etag, const std::string& url) {
  bool good = !etag.empty() && etag.size() <= 128 && etag.front() != '.';
  for (const char c : etag) {
    good = good && (is_alpha(c) || is_digit(c) || c == '-' || c == '_' || c == '.');
  }
  if (good) return;
  throw HubError({.wanted = "an ETag of letters and digits for " + url_shown(url),
                  .got = etag.empty() ? "none" : "'" + etag.substr(0, 100) + "'",
                  .next = "check HF_ENDPOINT and the proxy: one of them does not speak the Hub's protocol"},
                 {.reason = HubReason::kBadAnswer, .url = url});
}

int64_t parse_size(const std::string& text, const std::string& url) {
  int64_t value = -1;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code == std::errc() && end == text.data() + text.size() && value >= 0 && value <= kMaxFileBytes) {
    return value;
  }
  throw HubError({.wanted = cat("a size of at most ", kMaxFileBytes, " bytes for ", url_shown(url)),
                  .got = "'" + text.substr(0, 100) + "'",
                  .next = "check HF_ENDPOINT and the proxy: one of them does not speak the Hub's protocol"},
                 {.reason = HubReason::kBadAnswer, .url = url});
}

std::vector<RepoRef> parse_ref_list(const Json& answer, std::string_view key) {
  std::vector<RepoRef> refs;
  const auto list = answer.find(key);
  if (!list) return refs;
  for (const Json& item : list->elements()) {
    RepoRef ref{.name = item.at<std::string>("name"), .commit = item.at<std::string>("targetCommit")};
    check_relative_path(ref.name, "revision");
    if (!is_commit(ref.commit)) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = item.where() + ".targetCommit as 40 hexadecimal digits",
                   .got = "'" + ref.commit.substr(0, 100) + "'",
                   .next = "check HF_ENDPOINT: the server there does not speak the Hub's protocol"});
    }
    refs.push_back(std::move(ref));
  }
  return refs;
}

std::string message_in(const HttpResponse& answer) {
  if (std::string message = answer.header("x-error-message"); !message.empty()) return message.substr(0, 500);
  if (answer.body.empty() || answer.body.front() != '{') return "";
  const auto parsed = nlohmann::json::parse(answer.body, nullptr, false);  // an error page may be anything
  if (!parsed.is_object() || !parsed.contains("error") || !parsed["error"].is_string()) return "";
  return parsed["error"].get<std::string>().substr(0, 500);
}

std::string request_id_in(const HttpResponse& answer) {
  for (const char* name : {"x-request-id", "x-amzn-trace-id", "x-amz-cf-id"}) {
    if (std::string id = answer.header(name); !id.empty()) return id.substr(0, 200);
  }
  return "";
}

struct Refusal {
  HubReason reason;
  const char* next;
};

Refusal refusal(const HttpResponse& answer, const std::string& message) {
  const std::string code = answer.header("x-error-code");
  if (code == "RevisionNotFound") {
    return {HubReason::kRevisionNotFound, "choose one of the repository's branches, tags or commits"};
  }
  if (code == "EntryNotFound") return {HubReason::kEntryNotFound, "look at the repository's list of files"};
  if (code == "GatedRepo") {
    return {HubReason::kGatedRepo, "accept its terms on its page, then set HF_TOKEN to a token of that account"};
  }
  if (message == "Access to this resource is disabled.")
    return {HubReason::kDisabledRepo, "contact its owner or the Hub"};
  const bool bad_token = message == "Invalid credentials in Authorization header";
  if (code == "RepoNotFound" || (answer.status == 401 && !bad_token)) {
    return {HubReason::kRepoNotFound, "check the name; a private repository needs HF_TOKEN"};
  }
  if (answer.status == 401 || answer.status == 403) {
    return {HubReason::kUnauthorized, "check HF_TOKEN or the token file, and the token's rights"};
  }
  if (answer.status == 429) return {HubReason::kRateLimited, "wait, or set HF_TOKEN: known users have a higher limit"};
  if (answer.status == 404) return {HubReason::kHttp, "check the name and HF_ENDPOINT"};
  return {HubReason::kHttp, answer.status >= 500 ? "try again later" : "check the names and HF_ENDPOINT"};
}

}  // namespace

RepoRefs parse_refs(const std::string& json, const std::string& where) {
  const Json answer = Json::parse(json, where);
  return {parse_ref_list(answer, "branches"), parse_ref_list(answer, "tags")};
}

std::vector<TreeEntry> parse_tree(const std::string& json, const std::string& where) {
  std::vector<TreeEntry> entries;
  for (const Json& item : Json::parse(json, where).elements()) {
    TreeEntry entry{.path = item.at<std::string>("path"),
                    .folder = item.at<std::string>("type") != "file",
                    .size = item.get<int64_t>("size", 0),
                    .oid = item.get<std::string>("oid", "")};
    check_relative_path(entry.path, "file");
    if (const auto lfs = item.find("lfs")) {
      entry.sha256 = lfs->at<std::string>("oid");
      entry.lfs_size = lfs->at<int64_t>("size");
    }
    entry.xet_hash = item.get<std::string>("xetHash", "");
    if (!entry.folder) check_etag(entry.etag(), where);
    for (const int64_t size : {entry.size, entry.lfs_size}) {
      if (size >= 0 && size <= kMaxFileBytes) continue;
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat(item.where(), " with sizes from 0 to ", kMaxFileBytes),
                   .got = cat(size),
                   .next = "check HF_ENDPOINT: the server there does not speak the Hub's protocol"});
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

FileMeta parse_file_meta(const HttpResponse& head) {
  FileMeta meta{.commit = head.header("x-repo-commit")};
  if (!is_commit(meta.commit)) {
    throw HubError({.wanted = "X-Repo-Commit, 40 hexadecimal digits, for " + url_shown(head.url),
                    .got = meta.commit.empty() ? "none" : "'" + meta.commit.substr(0, 100) + "'",
                    .next = "check HF_ENDPOINT: this does not seem to be a Hub"},
                   {.reason = HubReason::kBadAnswer, .status = head.status, .url = head.url});
  }
  const std::string linked = head.header("x-linked-etag");
  meta.etag = plain_etag(linked.empty() ? head.header("etag") : linked);
  check_etag(meta.etag, head.url);
  const bool redirect = head.status >= 300 && head.status < 400;
  std::string size = head.header("x-linked-size");
  // Of an encoded answer the length is not the file's.
  if (size.empty() && !redirect && head.header("content-encoding").empty()) size = head.header("content-length");
  if (!size.empty()) meta.size = parse_size(size, head.url);
  return meta;
}

HubError hub_error(const HttpResponse& answer, const std::string& subject) {
  const std::string message = message_in(answer), id = request_id_in(answer);
  const Refusal why = refusal(answer, message);
  std::string got = cat("status ", answer.status);
  if (!message.empty()) got += " '" + message + "'";
  got += " from " + url_shown(answer.url);
  if (!id.empty()) got += " (request " + id + ")";
  std::string next = why.next;
  if (why.reason == HubReason::kRateLimited) {
    const double wait = asked_wait(answer, std::time(nullptr));
    if (wait >= 0)
      next = cat("the Hub asks to wait ", wait, " s; then try again, or set HF_TOKEN: known users have a higher limit");
  }
  return {{.wanted = subject, .got = got, .next = next},
          {.reason = why.reason,
           .status = answer.status,
           .transient = is_transient_status(answer.status),
           .server_message = message,
           .request_id = id,
           .url = answer.url,
           .commit = answer.header("x-repo-commit")}};
}

}  // namespace hotswap
