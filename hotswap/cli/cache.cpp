// cache ls, verify, rm, and ls, rm of models: the Hub's cache, as this program and Python's share it.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "hotswap/base/error.h"
#include "hotswap/base/progress.h"
#include "hotswap/cli/flags/value_checks.h"
#include "hotswap/cli/print/table.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/hub/cache/cache_management.h"
#include "hotswap/hub/net/options.h"
#include "hotswap/hub/verify_file_lists.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

const std::map<std::string, RepoType> kCacheTypes = {{"model", RepoType::kModel},
                                                     {"kernel", RepoType::kKernel},
                                                     {"dataset", RepoType::kDataset},
                                                     {"space", RepoType::kSpace}};

std::string type_name(RepoType type) {
  for (const auto& [name, value] : kCacheTypes) {
    if (value == type) return name;
  }
  return "";
}

struct CacheFlags {
  std::vector<std::string> names;
  std::string type;
  bool json = false, dry_run = false, unfinished = false, remove_wrong = false, online = false;
  double minutes = 10;
};

// One or two: kernels may have a cache of their own.
std::vector<HubCache> caches() {
  const HubOptions options = HubOptions::from_env();
  std::vector<HubCache> all = {HubCache(options.cache, options.symlinks)};
  if (options.kernels_cache != options.cache) all.emplace_back(options.kernels_cache, options.symlinks);
  return all;
}

struct Found {
  HubCache cache;
  CachedRepo repo;
};

std::vector<Found> everything() {
  std::vector<Found> all;
  for (const HubCache& cache : caches()) {
    for (CachedRepo& repo : list_cache(cache)) all.push_back({cache, std::move(repo)});
  }
  return all;
}

// What ORG/NAME is in the cache; of --type where two things have one name.
Found find(const std::string& id, const std::string& type) {
  std::vector<Found> hits;
  for (const HubCache& cache : caches()) {
    for (const auto& [name, value] : kCacheTypes) {
      if (!type.empty() && type != name) continue;
      if (auto repo = list_repo(cache, {value, id})) hits.push_back({cache, std::move(*repo)});
    }
  }
  if (hits.size() == 1) return std::move(hits.front());
  std::vector<std::string> which;
  for (const Found& hit : hits) which.push_back(hit.repo.folder.string());
  throw Error({.kind = hits.empty() ? ErrorKind::kNotFound : ErrorKind::kInvalidArgument,
               .wanted = "one " + (type.empty() ? std::string("repository") : type) + " '" + id + "' in the cache",
               .got = hits.empty() ? "none" : join(which, " and "),
               .next = hits.empty() ? "`hotswap cache ls` lists what is there" : "say which with --type"});
}

std::vector<Found> selected(const CacheFlags& flags) {
  if (flags.names.empty()) {
    std::vector<Found> all = everything();
    std::erase_if(
        all, [&](const Found& found) { return !flags.type.empty() && type_name(found.repo.repo.type) != flags.type; });
    return all;
  }
  std::vector<Found> some;
  for (const std::string& name : flags.names) some.push_back(find(name, flags.type));
  return some;
}

std::string size_text(int64_t bytes) {
  return bytes < 1000000 ? fixed(static_cast<double>(bytes) / 1e3, 1) + " kB"
                         : fixed(static_cast<double>(bytes) / 1e6, 1) + " MB";
}

void list(const CacheFlags& flags) {
  const std::vector<Found> all = selected(flags);
  if (flags.json) {
    OutJson out = OutJson::array();
    for (const auto& [cache, repo] : all) {
      OutJson revisions = OutJson::array(), unfinished = OutJson::array();
      for (const CachedRevision& r : repo.revisions) {
        revisions.push_back({{"commit", r.commit}, {"refs", r.refs}, {"files", r.files}, {"bytes", r.bytes}});
      }
      for (const UnfinishedFile& f : repo.unfinished) {
        unfinished.push_back(
            {{"path", f.file.string()}, {"bytes", f.bytes}, {"age_s", std::max(0.0, f.age_s)}, {"busy", f.busy}});
      }
      out.push_back({{"type", type_name(repo.repo.type)},
                     {"name", repo.repo.id},
                     {"path", repo.folder.string()},
                     {"bytes", repo.bytes},
                     {"revisions", revisions},
                     {"unfinished", unfinished}});
    }
    std::printf("%s\n", out.dump(2).c_str());
    return;
  }
  Table table({"type", "name", "revision", "files", "size", "known as"});
  int64_t total = 0;
  for (const auto& [cache, repo] : all) {
    total += repo.bytes;
    for (const CachedRevision& r : repo.revisions) {
      table.row({type_name(repo.repo.type), repo.repo.id, r.commit.substr(0, 12), cat(r.files), size_text(r.bytes),
                 join(r.refs)});
    }
    if (repo.revisions.empty()) {
      table.row({type_name(repo.repo.type), repo.repo.id, "none", "0", size_text(repo.bytes), ""});
    }
  }
  std::printf("%s", table.text().c_str());
  for (const auto& [cache, repo] : all) {
    for (const UnfinishedFile& f : repo.unfinished) {
      std::printf("unfinished: %s, %s, %s\n", f.file.c_str(), size_text(f.bytes).c_str(),
                  f.busy ? "a download runs" : cat(static_cast<int64_t>(f.age_s / 60), " minutes old").c_str());
    }
  }
  for (const HubCache& cache : caches()) std::printf("%s\n", cache.root().c_str());
  std::printf("%s on the disk\n", size_text(total).c_str());
}

OutJson removed_json(const Removed& removed) {
  OutJson files = OutJson::array();
  for (const RemovedFile& file : removed.files) files.push_back({{"path", file.path.string()}, {"bytes", file.bytes}});
  return {{"removed", files}, {"bytes", removed.bytes()}, {"kept", removed.kept}};
}

void show(const Removed& removed, bool dry_run) {
  for (const RemovedFile& file : removed.files) {
    std::printf("%s %s  %s\n", dry_run ? "would remove" : "removed", file.path.c_str(), size_text(file.bytes).c_str());
  }
  for (const std::string& kept : removed.kept) std::printf("kept %s\n", kept.c_str());
}

void add(Removed& sum, Removed one) {
  std::move(one.files.begin(), one.files.end(), std::back_inserter(sum.files));
  std::move(one.kept.begin(), one.kept.end(), std::back_inserter(sum.kept));
}

void verify_cache(const CacheFlags& flags) {
  const std::vector<Found> all = selected(flags);
  int64_t bytes = 0, files = 0, unknown = 0;
  for (const auto& [cache, repo] : all) bytes += repo.bytes;
  OutJson out = OutJson::array();
  Removed removed;
  size_t problems = 0;
  std::optional<Hub> hub;
  if (flags.online) hub.emplace(HubOptions::from_env());
  {
    Progress bar("verify", bytes, HubOptions::from_env().progress && bytes > (100 << 20));
    for (const auto& [cache, repo] : all) {
      CacheVerdict verdict = verify_cached(cache, repo, [&](int64_t seen) { bar.advance(seen); });
      if (hub) {
        for (CacheProblem& problem : verify_file_lists(*hub, repo).problems)
          verdict.problems.push_back(std::move(problem));
      }
      files += verdict.files;
      unknown += verdict.unknown;
      problems += verdict.problems.size();
      for (const CacheProblem& problem : verdict.problems) {
        if (!flags.json) std::printf("%s: %s\n", problem.file.c_str(), problem.what.c_str());
        out.push_back({{"path", problem.file.string()}, {"problem", problem.what}});
      }
      if (flags.remove_wrong) add(removed, remove_wrong(cache, repo.repo, verdict));
    }
  }
  if (flags.json) {
    OutJson whole = {{"files", files}, {"without_hash", unknown}, {"problems", out}};
    whole.update(removed_json(removed));
    std::printf("%s\n", whole.dump(2).c_str());
  } else {
    show(removed, false);
    std::printf("%lld files hashed, %lld whose name holds no hash, %zu problems\n", static_cast<long long>(files),
                static_cast<long long>(unknown), problems);
  }
  if (problems == 0) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = "a cache whose files are what their names say",
               .got = cat(problems, problems == 1 ? " problem" : " problems"),
               .next = flags.remove_wrong ? "what was wrong is removed; the next use downloads it"
                                          : "`hotswap cache verify --remove` removes files of wrong content"});
}

void remove(const CacheFlags& flags) {
  if (flags.names.empty() && !flags.unfinished)
    throw usage_error("rm wants ORG/NAME, ORG/NAME@REVISION or --unfinished");
  const RemoveOptions options{.dry_run = flags.dry_run, .unfinished_s = flags.minutes * 60};
  // All names are looked up before anything goes: a wrong one changes nothing.
  std::vector<std::pair<Found, std::string>> targets;
  for (const std::string& name : flags.names) {
    const size_t at = name.find('@');
    if (at != name.npos && flags.unfinished) throw usage_error("--unfinished goes with ORG/NAME, not with a revision");
    const std::string revision = at == name.npos ? "" : name.substr(at + 1);
    if (at != name.npos && revision.empty()) throw usage_error("'" + name + "' names no revision after '@'");
    targets.emplace_back(find(name.substr(0, at), flags.type), revision);
    if (!revision.empty()) {
      remove_revision(targets.back().first.cache, targets.back().first.repo.repo, revision, {.dry_run = true});
    }
  }
  if (flags.names.empty()) {
    for (Found& found : selected(flags)) targets.emplace_back(std::move(found), "");
  }
  Removed sum;
  for (const auto& [found, revision] : targets) {
    const auto& [cache, repo] = found;
    add(sum, flags.unfinished   ? remove_unfinished(cache, repo.repo, options)
             : revision.empty() ? remove_repo(cache, repo.repo, options)
                                : remove_revision(cache, repo.repo, revision, options));
  }
  if (flags.json) {
    std::printf("%s\n", removed_json(sum).dump(2).c_str());
    return;
  }
  show(sum, flags.dry_run);
  std::printf("%s %s\n", size_text(sum.bytes()).c_str(), flags.dry_run ? "would be freed" : "freed");
}

constexpr const char* kLs = "Repositories, their revisions and sizes, and downloads that never ended";
constexpr const char* kRm = "Remove repositories, revisions or unfinished downloads; prints what was removed";

void add_common(CLI::App* verb, const std::shared_ptr<CacheFlags>& flags) {
  verb->add_option("--type", flags->type, "model, kernel, dataset or space")
      ->check(CLI::IsMember({"model", "kernel", "dataset", "space"}))
      ->capture_default_str();
  verb->add_flag("--json", flags->json, "Print JSON");
}

void add_ls(CLI::App& app, const std::string& type, const std::string& help) {
  auto flags = std::make_shared<CacheFlags>();
  flags->type = type;
  auto* verb = app.add_subcommand("ls", help);
  verb->add_option("NAME", flags->names, "ORG/NAME; none: everything");
  add_common(verb, flags);
  verb->callback([flags] { list(*flags); });
}

void add_rm(CLI::App& app, const std::string& type, const std::string& help) {
  auto flags = std::make_shared<CacheFlags>();
  flags->type = type;
  auto* verb = app.add_subcommand("rm", help);
  verb->add_option("NAME", flags->names, "ORG/NAME, or ORG/NAME@REVISION: a name or a commit's first 7 digits or more");
  add_common(verb, flags);
  verb->add_flag("--unfinished", flags->unfinished, "Only the remains of interrupted downloads");
  verb->add_option("--minutes", flags->minutes, "Remove unfinished files that are at least this old")
      ->check(zero_or_more())
      ->capture_default_str();
  verb->add_flag("--dry-run", flags->dry_run, "Only print what would be removed");
  verb->callback([flags] { remove(*flags); });
}

void add_verify(CLI::App& app) {
  auto flags = std::make_shared<CacheFlags>();
  auto* verb = app.add_subcommand("verify", "Hash every file and compare with its name; follow every link");
  verb->add_option("NAME", flags->names, "ORG/NAME; none: everything");
  add_common(verb, flags);
  verb->add_flag("--online", flags->online, "Compare the lists of files with the Hub's current ones");
  verb->add_flag("--remove", flags->remove_wrong, "Remove files of wrong content: the next use downloads them");
  verb->callback([flags] { verify_cache(*flags); });
}

}  // namespace

void add_cache(CLI::App& app) {
  auto* verb = app.add_subcommand("cache", "The Hub's cache on this disk, shared with Python: list, verify, remove");
  verb->require_subcommand(1);
  add_ls(*verb, "", kLs);
  add_verify(*verb);
  add_rm(*verb, "", kRm);
  add_ls(app, "model", "The models on this disk: `cache ls` of one type");
  add_rm(app, "model", "Remove models from this disk: `cache rm` of one type");
}

}  // namespace hotswap
