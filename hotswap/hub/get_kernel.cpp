#include "hotswap/hub/get_kernel.h"

#include <algorithm>
#include <set>

#include "hotswap/base/file.h"
#include "hotswap/base/log.h"
#include "hotswap/hub/cache/partial_file.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/hub/package/metadata.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

// The choice once the GPU code of the variants is known, as far as it decides: their metadata.json is read from the
// best on until one's code runs here.
VariantChoice judged_by_code(Hub& hub, const KernelRequest& request, const KernelLocation& location) {
  const System& system = request.system;
  if (!location.choice.chosen || (!system.capability && system.gfx.empty())) return location.choice;
  std::vector<VariantCandidate> candidates;
  for (const std::string& name : variant_names(location.files)) candidates.push_back({name});
  std::set<std::string> read;
  for (;;) {
    VariantChoice choice = choose_variant(candidates, system);
    if (!choice.chosen || !read.insert(*choice.chosen).second) return choice;
    const std::string path = cat("build/", *choice.chosen, "/metadata.json");
    const fs::path file = hub.file(location.repository(), location.commit, path);
    const auto mine = std::find_if(candidates.begin(), candidates.end(),
                                   [&](const VariantCandidate& c) { return c.name == *choice.chosen; });
    mine->archs = parse_metadata(read_file(file), file.string()).archs;
  }
}

void verify_digest_of(const KernelRequest& request, HubKernel& kernel) {
  const fs::path file = kernel.folder / "metadata.json";
  const KernelMetadata metadata = parse_metadata(read_file(file), file.string());
  for (const std::string& part : metadata.dirty()) {
    log_warning(kernel.location.repo, ": the ", part, " had changes that no commit records when this was built");
  }
  if (skips_digest(request.trust, kernel.location.repo)) {
    kernel.digest_checked = false;
    log_warning(kernel.location.repo, ": its files are not checked, because of [trust] skip-digest");
    return;
  }
  if (!metadata.digests) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("a digest (checksums of the package's files) in ", file.string()),
                 .got = "none, so that its files cannot be verified",
                 .next = cat("ask its publisher for a build with one, or list ", kernel.location.repo,
                             " in [trust] skip-digest of hotswap.toml; nothing of it was run")});
  }
  verify_digests(kernel.folder, *metadata.digests);
}

}  // namespace

fs::path fetch_variants(Hub& hub, KernelLocation& location, const std::string& variant) {
  return hub.snapshot(location.repository(), location.commit,
                      {.allow = {variant.empty() ? "build/*" : cat("build/", variant, "/*")},
                       .ignore = {"*.pyc", "*/__pycache__/*"},
                       .files = &location.files});
}

std::string verify_signed(const KernelRequest& request, const KernelLocation& location, const fs::path& variant_folder,
                          const FilesInMemory& files) {
  if (!requires_signature(request.trust, location.repo)) return "";
  const auto signers = request.signers.empty() ? default_signers() : request.signers;
  const VariantVerdict verdict = verify_variant(variant_folder, TrustRoot::current(), signers, files);
  if (verdict.outcome == SignatureOutcome::kSuccess) return verdict.by.signer;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("a good signature of ", location.str(), ", as [trust] require-signature wants"),
               .got = cat(outcome_name(verdict.outcome), ": ", verdict.reason),
               .next = "download the package again, or report it to its publisher; nothing of it was run"});
}

void verify_listed(const KernelLocation& location, const fs::path& variant_folder, const FilesInMemory& files) {
  const std::string path = cat("build/", variant_folder.filename().string(), "/metadata.json");
  for (const TreeEntry& entry : location.files) {
    if (entry.path != path || entry.etag().empty()) continue;
    const auto in_memory = files.find("metadata.json");
    const std::string bytes = in_memory == files.end()
                                  ? read_file(variant_folder / "metadata.json")
                                  : std::string(in_memory->second.begin(), in_memory->second.end());
    ContentHash hash(entry.etag(), static_cast<int64_t>(bytes.size()));
    hash.update(bytes);
    const std::string got = hash.finish();
    if (got.empty() || got == entry.etag()) return;
    throw Error(
        {.kind = ErrorKind::kCorrupt,
         .wanted = cat((variant_folder / "metadata.json").string(), " as ", location.str(), " has it, ", entry.etag()),
         .got = got,
         .next = cat("remove it with `hotswap cache verify --remove ", location.repo,
                     "` and download it again; nothing of it was run")});
  }
}

void verify_locked(const KernelLocation& location, const fs::path& variant_folder, const FilesInMemory& files) {
  // The other form of lock pins the commit; what that holds, the cache has checked file by file.
  if (location.locked == nullptr || !location.locked->pins_files()) return;
  const std::string below = cat("build/", variant_folder.filename().string(), "/");
  const bool listed =
      std::any_of(location.files.begin(), location.files.end(), [](const TreeEntry& e) { return e.size > 0; });
  const IsLfs is_lfs = [&](const std::string& path) {
    return std::any_of(location.files.begin(), location.files.end(),
                       [&](const TreeEntry& entry) { return entry.path == below + path && !entry.sha256.empty(); });
  };
  verify_locked_variant(*location.locked, variant_folder, listed ? is_lfs : nullptr, files);
}

HubKernel fetch_kernel(Hub& hub, const KernelRequest& request, KernelLocation location) {
  location.choice = judged_by_code(hub, request, location);
  if (!location.choice.chosen && !hub.offline()) {  // the list that the cache has may have come cut short
    location.files = hub.tree(location.repository(), location.commit, /*anew=*/true);
    location.choice = choose_variant(variant_names(location.files), request.system);
    location.choice = judged_by_code(hub, request, location);
  }
  if (!location.choice.chosen) throw no_variant(location.choice, location.repo, location.asked);
  HubKernel kernel;
  kernel.variant = *location.choice.chosen;
  kernel.folder = fetch_variants(hub, location, kernel.variant) / "build" / kernel.variant;
  kernel.location = std::move(location);
  kernel.signer = verify_signed(request, kernel.location, kernel.folder);
  verify_digest_of(request, kernel);
  if (kernel.digest_checked) verify_listed(kernel.location, kernel.folder);
  verify_locked(kernel.location, kernel.folder);
  return kernel;
}

HubKernel get_kernel(Hub& hub, const KernelRequest& request) {
  return fetch_kernel(hub, request, locate_kernel(hub, request));
}

}  // namespace hotswap
