#include "hotswap/hub/hub.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "hotswap/base/json.h"
#include "hotswap/base/log.h"
#include "hotswap/base/progress.h"
#include "hotswap/hub/cache/download.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

HubError offline_error(const Repo& repo, const std::string& wanted, const std::string& missing) {
  return {{.wanted = wanted,
           .got = "offline mode (HF_HUB_OFFLINE), and the cache lacks " + missing,
           .next = cat("unset HF_HUB_OFFLINE for one run that downloads it, or copy the cache's folder ",
                       repo_folder_name(repo), " from a machine that has it")},
          {.reason = HubReason::kOffline}};
}

// The Hub is out of reach, or out of order: what we know from before is better than nothing. What it says no to is not.
bool unreachable(const HubError& error) { return error.reason() == HubReason::kConnection || error.status() >= 500; }

std::string list_of(const std::vector<std::string>& names) {
  const std::vector<std::string> some(names.begin(),
                                      names.begin() + static_cast<ptrdiff_t>(std::min<size_t>(names.size(), 10)));
  return cat(join(some), names.size() > some.size() ? cat(" and ", names.size() - some.size(), " more") : "");
}

std::string list_of(const std::vector<TreeEntry>& files) {
  std::vector<std::string> names;
  for (const TreeEntry& entry : files) names.push_back(entry.path);
  return list_of(names);
}

std::vector<TreeEntry> selected(const std::vector<TreeEntry>& files, const SnapshotOptions& options) {
  std::vector<TreeEntry> some;
  for (const TreeEntry& entry : files) {
    if (is_selected(entry.path, options.allow, options.ignore)) some.push_back(entry);
  }
  return some;
}

int64_t size_of(const TreeEntry& entry) { return entry.sha256.empty() ? entry.size : entry.lfs_size; }

}  // namespace

Hub::Hub(HubOptions options)
    : client_(options), cache_(options.cache, options.symlinks), kernels_(options.kernels_cache, options.symlinks) {}

std::string Hub::commit(const Repo& repo, const std::string& revision) {
  const HubCache& store = cache(repo);
  const double ttl = client_.options().ttl_s;
  if (const auto known = store.read_ref(repo, revision, offline() ? -1 : ttl)) return *known;
  const std::string wanted = "revision " + revision + " of " + repo.id;
  if (offline()) {
    const auto names = store.refs(repo);
    throw offline_error(repo, wanted, cat("refs/", revision, names.empty() ? "" : "; it knows " + list_of(names)));
  }
  const auto older = store.read_ref(repo, revision);
  try {
    std::string commit = client_.commit(repo, revision, older.has_value());
    store.write_ref(repo, revision, commit);
    return commit;
  } catch (const HubError& error) {
    if (!older || !unreachable(error)) throw;
    log_warning(error.what(), "; going on with ", *older, ", which it was when last seen");
    return *older;
  }
}

void Hub::remember(const Repo& repo, const std::string& name, const std::string& commit) {
  // It may come from an answer of some age: a ref that says the same is none the younger for it.
  constexpr double kEver = 1e18;
  if (cache(repo).read_ref(repo, name, kEver) != commit) cache(repo).write_ref(repo, name, commit);
}

// A JSON answer about names, from the cache while it is young, and `believed` where that is given.
std::string Hub::answer(const Repo& repo, const std::string& what, const std::function<std::string(bool quick)>& ask,
                        const std::function<bool(const std::string& json)>& believed) {
  const HubCache& store = cache(repo);
  const std::string key = client_.options().endpoint + " " + what;
  const auto known = store.read_answer(repo, key, offline() ? -1 : client_.options().ttl_s);
  if (known && (offline() || !believed || believed(*known))) return *known;
  if (offline()) throw offline_error(repo, what + " of " + repo.id, "the Hub's answer");
  const auto older = store.read_answer(repo, key);
  try {
    std::string fresh = ask(older.has_value());
    store.write_answer(repo, key, fresh);
    return fresh;
  } catch (const HubError& error) {
    if (!older || !unreachable(error)) throw;
    log_warning(error.what(), "; going on with the last answer");
    return *older;
  }
}

// Offline: the last answer, with what refs/ has beside it or otherwise. That may be Python's, or an installed
// package's, and is what the snapshots on this disk were fetched by.
RepoRefs Hub::known_refs(const Repo& repo) {
  const HubCache& store = cache(repo);
  RepoRefs known;
  if (const auto json = store.read_answer(repo, client_.options().endpoint + " refs")) {
    known = parse_refs(*json, "the cached refs of " + repo.id);
  }
  for (const std::string& name : store.refs(repo)) {
    const auto commit = store.read_ref(repo, name);
    if (!commit) continue;
    const auto same = [&](const RepoRef& ref) { return ref.name == name; };
    const auto branch = std::find_if(known.branches.begin(), known.branches.end(), same);
    const auto tag = std::find_if(known.tags.begin(), known.tags.end(), same);
    if (branch != known.branches.end()) {
      branch->commit = *commit;
    } else if (tag != known.tags.end()) {
      tag->commit = *commit;
    } else {
      known.branches.push_back({name, *commit});
    }
  }
  if (known.branches.empty() && known.tags.empty()) {
    throw offline_error(repo, "the versions of " + repo.id, "everything of that repository");
  }
  return known;
}

RepoRefs Hub::refs(const Repo& repo, bool anew) {
  if (offline()) return known_refs(repo);
  const auto ask = [&](bool quick) {
    const RepoRefs refs = client_.refs(repo, quick);
    nlohmann::ordered_json out = {{"branches", nlohmann::ordered_json::array()},
                                  {"tags", nlohmann::ordered_json::array()}};
    for (const auto& [key, list] : {std::pair("branches", &refs.branches), std::pair("tags", &refs.tags)}) {
      for (const RepoRef& ref : *list) out[key].push_back({{"name", ref.name}, {"targetCommit", ref.commit}});
    }
    return out.dump();
  };
  const std::string json = answer(repo, "refs", ask, [&](const std::string&) { return !anew; });
  return parse_refs(json, "the cached refs of " + repo.id);
}

Publisher Hub::publisher(const Repo& repo) {
  const std::string org = publisher_of(repo);
  if (org.empty()) return {};  // no organization stands behind "name": nobody vouches for it
  const auto ask = [&](bool quick) {
    const Publisher publisher = client_.publisher(org, quick);
    return nlohmann::ordered_json{{"name", publisher.name}, {"trusted", publisher.trusted}}.dump();
  };
  const auto parsed = [&](const std::string& json) -> Publisher {
    const Json standing = Json::parse(json, "the cached standing of " + org);
    return {.name = standing.at<std::string>("name"), .trusted = standing.at<bool>("trusted")};
  };
  return parsed(answer(repo, "publisher", ask, [&](const std::string& known) { return parsed(known).trusted; }));
}

std::vector<TreeEntry> Hub::tree(const Repo& repo, const std::string& revision, bool anew) {
  constexpr size_t kPage = 1000;  // entries, as the Hub cuts its lists
  const std::string at = commit(repo, revision);
  const HubCache& store = cache(repo);
  if (!anew) {
    if (auto known = store.read_tree(repo, at)) return *known;
  }
  if (offline()) throw offline_error(repo, "the files of " + repo.id + "@" + at, "its list of files");
  std::vector<TreeEntry> entries = client_.tree(repo, at);
  const bool maybe_cut = entries.size() == kPage;  // one full page: the header that names the next may be lost
  std::erase_if(entries, [](const TreeEntry& entry) { return entry.folder; });
  if (!maybe_cut) store.write_tree(repo, at, entries);
  return entries;
}

std::optional<fs::path> Hub::find_file(const Repo& repo, const std::string& revision, const std::string& path) {
  try {
    return file(repo, revision, path);
  } catch (const HubError& error) {
    const bool plain_404 = error.status() == 404 && error.reason() == HubReason::kHttp;  // mirrors without X-Error-Code
    if (error.reason() == HubReason::kEntryNotFound || plain_404) return std::nullopt;
    throw;
  }
}

fs::path Hub::file(const Repo& repo, const std::string& revision, const std::string& path) {
  check_relative_path(path, "file");
  const HubCache& store = cache(repo);
  const auto known = store.read_ref(repo, revision, offline() ? -1 : client_.options().ttl_s);
  if (known) {
    if (auto there = store.find(repo, *known, path)) return *there;
    if (store.known_absent(repo, *known, path)) {
      throw HubError({.wanted = path + " of " + repo.id + "@" + revision,
                      .got = "no such file in commit " + *known + ", as the Hub reported before",
                      .next = "look at the repository's list of files"},
                     {.reason = HubReason::kEntryNotFound, .status = 404});
    }
  }
  if (offline()) {
    throw offline_error(repo, path + " of " + repo.id + "@" + revision,
                        known ? "that file of commit " + *known : "refs/" + revision);
  }
  return download(repo, known.value_or(revision), path);
}

fs::path Hub::download(const Repo& repo, const std::string& revision, const std::string& path) {
  const HubCache& store = cache(repo);
  const auto older = store.read_ref(repo, revision);
  const auto there = older ? store.find(repo, *older, path) : std::nullopt;
  FileMeta meta;
  try {
    // Where a copy is at hand the Hub gets one chance; where not, every retry there is.
    meta = client_.file_meta(repo, revision, path, there.has_value());
  } catch (const HubError& error) {
    if (there && unreachable(error)) {
      log_warning(error.what(), "; going on with the copy of commit ", *older);
      return *there;
    }
    const std::string& absent_in = error.commit().empty() ? revision : error.commit();
    if (error.reason() == HubReason::kEntryNotFound && is_commit(absent_in)) {
      store.mark_absent(repo, absent_in, path);
      store.write_ref(repo, revision, absent_in);
    }
    throw;
  }
  if (is_commit(revision) && meta.commit != revision) {
    throw HubError({.wanted = path + " of commit " + revision,
                    .got = "commit " + meta.commit,
                    .next = "check HF_ENDPOINT and the proxy: one of them mixes up commits"},
                   {.reason = HubReason::kBadAnswer});
  }
  store.write_ref(repo, revision, meta.commit);
  if (auto present = store.find(repo, meta.commit, path)) return *present;
  Progress bar(path, meta.size, client_.options().progress && meta.size > (8 << 20));
  std::mutex mutex;
  const auto advanced = [&](int64_t bytes) {
    const std::lock_guard lock(mutex);
    bar.advance(bytes);
  };
  return fetch_file(client_, store,
                    {.repo = repo,
                     .commit = meta.commit,
                     .path = path,
                     .etag = meta.etag,
                     .size = meta.size,
                     .connections = client_.options().parallel,
                     .advanced = advanced});
}

fs::path Hub::snapshot(const Repo& repo, const std::string& revision, const SnapshotOptions& options) {
  const std::string at = commit(repo, revision);
  const HubCache& store = cache(repo);
  fs::path folder = store.snapshot(repo, at);
  std::error_code code;
  auto known = options.files != nullptr ? std::nullopt : store.read_tree(repo, at);
  if (options.files == nullptr && !known) {
    // Put there by hand or by an older client, with no list of files to hold it against: taken as it is.
    if (offline() && fs::is_directory(folder, code)) return folder;
    known = tree(repo, at);
  }
  const std::vector<TreeEntry>& all = known ? *known : *options.files;
  const std::vector<TreeEntry> files = store.lacking(repo, at, selected(all, options));
  if (files.empty()) return store.begin_snapshot(repo, at);
  if (offline()) throw offline_error(repo, repo.id + "@" + revision, list_of(files));
  try {
    fetch_all(repo, at, files);
  } catch (const HubError& error) {
    if (error.reason() != HubReason::kBadAnswer && error.reason() != HubReason::kEntryNotFound) throw;
    std::vector<TreeEntry> fresh = tree(repo, at, /*anew=*/true);
    if (fresh == all) throw;
    log_warning(error.what(), "; the Hub's current list of files differs and is used");
    fetch_all(repo, at, store.lacking(repo, at, selected(fresh, options)));
    if (options.files != nullptr) *options.files = std::move(fresh);
  }
  return folder;
}

void Hub::fetch_all(const Repo& repo, const std::string& at, std::vector<TreeEntry> files) {
  const HubCache& store = cache(repo);
  int64_t total = 0;
  for (const TreeEntry& entry : files) total += size_of(entry);
  // The largest first: the small ones fill the gaps at the end.
  std::stable_sort(files.begin(), files.end(),
                   [](const TreeEntry& a, const TreeEntry& b) { return size_of(a) > size_of(b); });
  Progress bar(repo.id, total, client_.options().progress);
  std::mutex mutex;
  std::exception_ptr failure;
  std::atomic<size_t> next = 0;
  std::atomic<bool> stop = false;
  const size_t parallel = static_cast<size_t>(std::max(1, client_.options().parallel));
  const size_t threads = std::min(parallel, files.size());
  const auto advanced = [&](int64_t bytes) {
    const std::lock_guard lock(mutex);
    bar.advance(bytes);
  };
  const auto work = [&] {
    for (size_t mine; !stop && (mine = next++) < files.size();) {
      const TreeEntry& entry = files[mine];
      try {
        fetch_file(client_, store,
                   {.repo = repo,
                    .commit = at,
                    .path = entry.path,
                    .etag = entry.etag(),
                    .size = size_of(entry),
                    .connections = static_cast<int>((parallel + threads - 1) / threads),
                    .advanced = advanced});
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        stop = true;
      }
    }
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace hotswap
