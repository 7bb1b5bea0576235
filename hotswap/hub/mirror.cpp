#include "hotswap/hub/mirror.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/base/log.h"
#include "hotswap/hub/cache/tree_file.h"
#include "hotswap/hub/get_kernel.h"
#include "hotswap/hub/install.h"
#include "hotswap/hub/served_repository.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

class Mirror {
 public:
  Mirror(const HubOptions& source, const fs::path& folder, const Project& project)
      : folder_(folder), project_(project), hub_(source) {}

  std::vector<MirroredCommit> bring(const MirrorWish& wish) {
    for (const std::string& pattern : project_.trust.deny) {
      if (!matches_repo(pattern, wish.repo.id)) continue;
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "a repository that hotswap.toml allows",
                   .got = cat(wish.repo.id, ", which [trust] deny names as ", pattern),
                   .next = "do not mirror it, or remove the pattern from [trust] deny in hotswap.toml"});
    }
    if (wish.repo.type == RepoType::kKernel) note_publisher(wish.repo);
    std::vector<MirroredCommit> all = meant(wish);
    const ServedRepository served(folder_, wish.repo);
    for (MirroredCommit& one : all) {
      one.was_here = served.has(one.commit);
      if (!one.was_here) fetch(wish.repo, served, one);
      for (const std::string& name : one.names) served.point(name, one.commit);
    }
    fs::remove_all(hub_.cache(wish.repo).folder(wish.repo));
    return all;
  }

 private:
  // The commits and the names that lead to each.
  std::vector<MirroredCommit> meant(const MirrorWish& wish) {
    if (!wish.revision.empty() || wish.repo.type != RepoType::kKernel) {
      const std::string revision = wish.revision.empty() ? "main" : wish.revision;
      const std::string name = !wish.name.empty() ? wish.name : is_commit(revision) ? "" : revision;
      MirroredCommit one{.commit = hub_.commit(wish.repo, revision)};
      if (!name.empty()) add_name(one, name);
      return {one};
    }
    const RepoRefs refs = hub_.refs(wish.repo, /*anew=*/true);
    std::vector<MirroredCommit> all;
    for (const auto* list : {&refs.branches, &refs.tags}) {
      for (const RepoRef& ref : *list) {
        auto known = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.commit == ref.commit; });
        if (known == all.end()) known = all.insert(all.end(), MirroredCommit{.commit = ref.commit});
        add_name(*known, ref.name);
      }
    }
    return all;
  }

  static void add_name(MirroredCommit& one, const std::string& name) {
    if (name.find('/') == name.npos && name.front() != '.') return one.names.push_back(name);
    log_warning("not mirrored: the name ", name, ", which serve-hub has no place for; its commit is ", one.commit);
  }

  void fetch(const Repo& repo, const ServedRepository& served, MirroredCommit& one) {
    std::vector<TreeEntry> files = hub_.tree(repo, one.commit);
    const fs::path snapshot = hub_.snapshot(repo, one.commit, {.files = &files});
    if (repo.type == RepoType::kKernel) verify(repo, snapshot, files, one);
    served.add(
        one.commit,
        [&](const fs::path& to) {
          for (const TreeEntry& file : files) {
            const fs::path from = fs::canonical(snapshot / file.path), target = to / file.path;
            fs::create_directories(target.parent_path());
            std::error_code code;
            fs::create_hard_link(from, target, code);  // the cache beside it goes when all is here
            if (code) fs::copy_file(from, target);
            one.bytes += static_cast<int64_t>(fs::file_size(target));
          }
        },
        tree_as_lines(files));
    one.files = files.size();
  }

  void verify(const Repo& repo, const fs::path& snapshot, const std::vector<TreeEntry>& files, MirroredCommit& one) {
    if (const auto redirect = redirect_of(hub_, repo, one.commit, files)) {
      log_warning(repo.id, " redirects to ", redirect->destination, ": mirror that, too");
    }
    KernelLocation location;
    location.repo = repo.id;
    location.commit = one.commit;
    location.files = files;
    if (project_.lock) {
      for (const LockedKernel& locked : project_.lock->kernels) {
        if (locked.dependency.repo == repo.id && locked.commit == one.commit) location.locked = &locked;
      }
    }
    for (const fs::path& variant : built_variants(snapshot)) {
      const VariantVerdict digest = verify_files(variant);
      if (digest.outcome == SignatureOutcome::kDigestMissing) {
        log_warning(repo.id, ": ", digest.reason, ": clients run it only where [trust] skip-digest names it");
      } else if (digest.outcome != SignatureOutcome::kSuccess) {
        throw Error(
            {.kind = ErrorKind::kCorrupt,
             .wanted = cat("the variant ", variant.filename().string(), " of ", repo.id, " as its publisher built it"),
             .got = cat(outcome_name(digest.outcome), ": ", digest.reason),
             .next = "tell its publisher; it was not mirrored"});
      }
      const std::string signer =
          verify_signed({.trust = project_.trust, .signers = project_.signers}, location, variant);
      if (!signer.empty()) one.signers.push_back(signer);
      if (location.locked != nullptr && location.locked->variants.contains(variant.filename()))
        verify_locked(location, variant);
    }
  }

  bool trusted_there(const Repo& repo) {
    try {
      return hub_.publisher(repo).trusted;
    } catch (const HubError& error) {
      if (error.status() != 404) throw;
      return false;  // a user's name, of whom the Hub says nothing
    }
  }

  void note_publisher(const Repo& repo) {
    const fs::path file = folder_ / "trusted_publishers.txt";
    const std::string known = fs::exists(file) ? read_file(file) : "", publisher = publisher_of(repo);
    if (cat("\n", known, "\n").find(cat("\n", publisher, "\n")) != std::string::npos) return;
    if (trusted_there(repo)) {
      write_file(file, cat(known, known.empty() || known.back() == '\n' ? "" : "\n", publisher, "\n"));
    } else {
      log_warning("the Hub does not call ", publisher,
                  " trusted: clients run its kernels where they allow it, or where ", file.string(), " names it");
    }
  }

  const fs::path folder_;
  const Project& project_;
  Hub hub_;
};

}  // namespace

std::vector<MirroredCommit> mirror_repo(HubOptions source, const MirrorWish& wish, const fs::path& folder,
                                        const Project& project) {
  check_repo_with_publisher(wish.repo);
  const FileLock one_at_a_time(folder / ".mirror/.lock");
  source.cache = source.kernels_cache = folder / ".mirror";  // what was cut off is gone on with
  source.ttl_s = 0;
  return Mirror(source, folder, project).bring(wish);
}

std::vector<MirrorWish> locked_wishes(const Project& project) {
  std::vector<MirrorWish> wishes;
  if (!project.lock) return wishes;
  for (const LockedKernel& locked : project.lock->kernels) {
    if (!locked.path.empty()) continue;  // a folder of this machine
    MirrorWish wish{.repo = {RepoType::kKernel, locked.dependency.repo}, .revision = locked.commit};
    if (locked.dependency.version) wish.name = cat("v", *locked.dependency.version);
    wishes.push_back(std::move(wish));
  }
  return wishes;
}

}  // namespace hotswap
