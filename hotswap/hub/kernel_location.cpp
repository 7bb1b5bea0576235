#include "hotswap/hub/kernel_location.h"

#include <algorithm>

#include "hotswap/base/log.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxRedirects = 4;
constexpr const char* kStatusFile = "kernel-status.toml";

void settle_trust(Hub& hub, const KernelRequest& request, const Repo& repo, const std::string& led_from) {
  if (!request.check_trust) return;
  TrustQuestion question{.repo = repo.id, .entry_trust = request.ref.trust(), .redirected_from = led_from};
  if (needs_publisher(request.trust, question)) {
    if (hub.offline()) {
      question.publisher = Standing::kOffline;
    } else {
      try {
        question.publisher = hub.publisher(repo).trusted ? Standing::kTrusted : Standing::kUntrusted;
      } catch (const HubError& error) {
        question.publisher = Standing::kNoAnswer;
        question.no_answer = error.what();
      }
    }
  }
  const TrustDecision decision = require_trust(request.trust, question);
  if (!decision.warning.empty()) log_warning(decision.warning);
}

// The lock's word on the repository; null: it says none. `ref`: what was asked of it; null: a redirect leads to it.
const LockedKernel* find_lock(const Lockfile* lock, const std::string& repo, const KernelRef* ref) {
  if (lock == nullptr) return nullptr;
  const bool asks = ref != nullptr && ref->named();
  std::vector<std::string> others;
  for (const LockedKernel& kernel : lock->kernels) {
    const Dependency& locked = kernel.dependency;
    if (locked.repo != repo) continue;
    if (!asks) {
      lock->at(repo);  // more than one: an Error
    } else if (lock->form == Lockfile::Form::kDependencies &&
               (locked.version != ref->version() || locked.revision != ref->revision())) {
      others.push_back(locked.str());
      continue;
    } else if (is_commit(ref->revision()) && ref->revision() != kernel.commit) {
      others.push_back(cat("commit ", kernel.commit));
      continue;
    }
    if (!kernel.path.empty()) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("a commit of ", repo, " in the lock"),
                   .got = cat("the folder ", kernel.path),
                   .next = "name the folder itself as the kernel"});
    }
    return &kernel;
  }
  if (others.empty()) return nullptr;
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = cat(ref->str(), " in the lock file"),
               .got = cat("only ", join(others)),
               .next = "add it with `hotswap kernel lock`, or request a version that is locked"});
}

void require_lock(const KernelRequest& request, const KernelLocation& location) {
  if (!request.ref.locked() || location.locked != nullptr) return;
  if (request.lock != nullptr) request.lock->at(location.repo);
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = cat("a lock of ", location.repo),
               .got = cat("Kernel `", location.repo, "` is not locked: there is no kernels.lock"),
               .next = "run `hotswap kernel lock` on the project, and name the project"});
}

// Does the cache have a snapshot by one of these names?
bool in_cache(const Hub& hub, const Repo& repo, const std::vector<std::string>& names) {
  const HubCache& cache = hub.cache(repo);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    std::error_code code;
    const auto commit = cache.read_ref(repo, name);
    return commit && fs::is_directory(cache.snapshot(repo, *commit), code);
  });
}

// Offline a kernel may lie where Python's kernels before 0.14 put it. name: of a ref, or a commit; empty: any ref.
RepoType type_of(const Hub& hub, const std::string& id, const std::string& name) {
  const Repo kernel{RepoType::kKernel, id}, old{RepoType::kOldKernel, id};
  const auto names = [&](const Repo& repo) {
    return name.empty() ? hub.cache(repo).refs(repo) : std::vector<std::string>{name};
  };
  const bool is_old = hub.offline() && !in_cache(hub, kernel, names(kernel)) && in_cache(hub, old, names(old));
  return is_old ? RepoType::kOldKernel : RepoType::kKernel;
}

// A name that the Hub does not know is told with all those that it does.
std::string resolved_commit(Hub& hub, const Repo& repo, const std::string& revision) {
  try {
    return hub.commit(repo, revision);
  } catch (const HubError& error) {
    if (error.reason() == HubReason::kRevisionNotFound)
      resolve_revision(hub.refs(repo, /*anew=*/true), revision, repo.id);
    throw;
  }
}

void resolve(Hub& hub, const KernelRef& ref, KernelLocation& location) {
  const Repo repo = location.repository();
  if (!ref.revision().empty() && !ref.is_specifier()) {
    location.asked = ref.revision();
    location.commit = resolved_commit(hub, repo, ref.revision());
    return;
  }
  const auto find = [&](const RepoRefs& refs) {
    return ref.is_specifier() ? resolve_specifier(refs, ref.revision(), repo.id)
                              : resolve_version(refs, ref.version().value_or(1), repo.id);
  };
  const RepoRefs refs = hub.refs(repo);
  ResolvedRef found;
  try {
    found = find(refs);
  } catch (const Error&) {  // it may be out since they were asked
    found = find(hub.refs(repo, /*anew=*/true));
  }
  if (!found.warning.empty()) log_warning(found.warning);
  location.asked = found.ref;
  location.commit = found.commit;
  hub.remember(repo, found.ref, found.commit);
}

std::vector<TreeEntry> list_files(Hub& hub, const Repo& repo, const std::string& commit) {
  const HubCache& cache = hub.cache(repo);
  if (auto known = cache.read_tree(repo, commit)) return *std::move(known);
  const fs::path folder = cache.snapshot(repo, commit);
  std::error_code code;
  if (!hub.offline() || !fs::is_directory(folder, code)) return hub.tree(repo, commit);
  // An installed package, or an older client's: what is there is what there is.
  std::vector<TreeEntry> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back({.path = entry.path().lexically_relative(folder).generic_string()});
  }
  std::sort(files.begin(), files.end(), [](const TreeEntry& a, const TreeEntry& b) { return a.path < b.path; });
  return files;
}

}  // namespace

std::optional<Redirect> redirect_of(Hub& hub, const Repo& repo, const std::string& commit,
                                    const std::vector<TreeEntry>& files) {
  const bool there =
      std::any_of(files.begin(), files.end(), [](const TreeEntry& entry) { return entry.path == kStatusFile; });
  if (!there) return std::nullopt;
  return parse_status(Json::read_toml(hub.file(repo, commit, kStatusFile)));
}

std::vector<std::string> variant_names(const std::vector<TreeEntry>& files) {
  constexpr std::string_view kBuild = "build/";
  std::vector<std::string> names;
  for (const TreeEntry& entry : files) {
    if (!entry.path.starts_with(kBuild)) continue;
    const size_t slash = entry.path.find('/', kBuild.size());
    if (slash == entry.path.npos) continue;  // a file beside the variants
    std::string name = entry.path.substr(kBuild.size(), slash - kBuild.size());
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

KernelLocation locate_kernel(Hub& hub, const KernelRequest& request) {
  const KernelRef& ref = request.ref;
  if (ref.repo().empty()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a kernel of the Hub as org/repo[@revision]",
                 .got = "'" + ref.str() + "'",
                 .next = "only repositories of the Hub are downloaded, no local folders"});
  }
  KernelLocation location;
  location.repo = ref.repo();
  settle_trust(hub, request, location.repository(), "");
  location.locked = find_lock(request.lock, location.repo, &ref);
  location.type = type_of(hub, location.repo,
                          location.locked != nullptr ? location.locked->commit
                          : ref.is_specifier()       ? ""
                          : ref.revision().empty()   ? cat("v", ref.version().value_or(1))
                                                     : ref.revision());
  if (location.locked != nullptr) {
    location.asked = location.commit = location.locked->commit;
  } else {
    resolve(hub, ref, location);
  }
  location.files = list_files(hub, location.repository(), location.commit);
  std::vector<std::string> way = {location.str()};
  while (const auto redirect = redirect_of(hub, location.repository(), location.commit, location.files)) {
    log_warning("'", location.repo, "' redirected to '", redirect->destination, "'");
    settle_trust(hub, request, {RepoType::kKernel, redirect->destination}, location.repo);
    if (location.led_from.empty()) location.led_from = location.repo;
    location.repo = redirect->destination;
    location.asked = redirect->revision;
    location.locked = find_lock(request.lock, location.repo, nullptr);
    location.type =
        type_of(hub, location.repo, location.locked != nullptr ? location.locked->commit : redirect->revision);
    location.commit = location.locked != nullptr ? location.locked->commit
                                                 : resolved_commit(hub, location.repository(), redirect->revision);
    const bool circle = std::find(way.begin(), way.end(), location.str()) != way.end();
    way.push_back(location.str());
    if (circle || way.size() > kMaxRedirects + 1) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("redirects of ", ref.repo(), " that lead somewhere"),
                   .got = cat(circle ? "a circle: " : "too many: ", join(way, " -> ")),
                   .next = "tell the repositories' owners"});
    }
    location.files = list_files(hub, location.repository(), location.commit);
  }
  require_lock(request, location);
  const std::vector<std::string> names = variant_names(location.files);
  for (const std::string& name : names) {
    if (!VariantName::parse(name)) log_warning(location.repo, " contains an invalid build variant: ", shown(name));
  }
  location.choice = choose_variant(names, request.system);
  return location;
}

}  // namespace hotswap
