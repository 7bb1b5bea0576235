// Is a cache what its names say? (cache_management.h)
#include <fstream>
#include <map>

#include "hotswap/base/error.h"
#include "hotswap/hub/cache/cache_management.h"
#include "hotswap/hub/cache/cache_names_impl.h"
#include "hotswap/hub/cache/partial_file.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadBytes = 1 << 20;

class Verification {
 public:
  Verification(const HubCache& cache, const CachedRepo& repo, const std::function<void(int64_t)>& advanced)
      : cache_(cache), repo_(repo), advanced_(advanced) {}

  CacheVerdict run() {
    blobs();
    for (const CachedRevision& revision : repo_.revisions) snapshot(revision.commit);
    return std::move(verdict_);
  }

 private:
  void problem(const fs::path& file, std::string what, bool wrong_content = false) {
    verdict_.problems.push_back({file, std::move(what), wrong_content});
  }

  void hash(const fs::path& file, const std::string& etag) {
    std::error_code code;
    const auto size = static_cast<int64_t>(fs::file_size(file, code));
    ContentHash hash(etag, size);
    if (!hash.known()) {
      ++verdict_.unknown;
      return;
    }
    std::ifstream in(file, std::ios::binary);
    if (code || !in) return problem(file, "cannot be read");
    std::string buffer(kReadBytes, '\0');
    int64_t seen = 0;
    while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())), in.gcount() > 0) {
      hash.update(std::string_view(buffer.data(), static_cast<size_t>(in.gcount())));
      seen += in.gcount();
      if (advanced_) advanced_(in.gcount());
    }
    ++verdict_.files;
    verdict_.bytes += seen;
    const std::string got = hash.finish();
    if (seen != size || in.bad()) return problem(file, "cannot be read to its end");
    if (got != etag) problem(file, cat("its content has the hash ", got, ", not ", etag), true);
  }

  void blobs() {
    std::error_code code;
    for (fs::directory_iterator at(repo_.folder / "blobs", code), end; !code && at != end; at.increment(code)) {
      const std::string name = at->path().filename().string();
      if (!blob_of_unfinished(name).empty()) continue;
      if (at->is_symlink() || !at->is_regular_file()) {
        problem(at->path(), "is no file");
        continue;
      }
      hash(at->path(), name);
    }
  }

  void snapshot(const std::string& commit) {
    std::map<std::string, std::string> etags;
    if (const auto tree = cache_.read_tree(repo_.repo, commit)) {
      for (const TreeEntry& entry : *tree) etags[entry.path] = entry.etag();
    }
    const fs::path folder = repo_.folder / "snapshots" / commit;
    std::error_code code;
    for (fs::recursive_directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
      const bool link = at->is_symlink();
      if (!link && at->is_directory()) continue;
      const auto known = etags.find(at->path().lexically_relative(folder).generic_string());
      if (!link) {
        if (!at->is_regular_file()) {
          problem(at->path(), "is no file");
        } else if (known == etags.end()) {
          ++verdict_.unknown;
        } else {
          hash(at->path(), known->second);
        }
        continue;
      }
      const std::string blob = blob_of_link(at->path(), repo_.folder);
      if (blob.empty()) {
        problem(at->path(), "leads out of the repository's blobs: " + shown(fs::read_symlink(at->path()).string()));
      } else if (!fs::is_regular_file(repo_.folder / "blobs" / blob)) {
        problem(at->path(), cat("its blob ", blob, " is not there; the next use downloads it"));
      } else if (known != etags.end() && known->second != blob) {
        problem(at->path(), cat("shows the blob ", blob, "; the commit has ", known->second), true);
      }
    }
  }

  const HubCache& cache_;
  const CachedRepo& repo_;
  const std::function<void(int64_t)>& advanced_;
  CacheVerdict verdict_;
};

}  // namespace

CacheVerdict verify_cached(const HubCache& cache, const CachedRepo& repo,
                           const std::function<void(int64_t)>& advanced) {
  return Verification(cache, repo, advanced).run();
}

}  // namespace hotswap
