#include "hotswap/kernelize/hub_kernels.h"

#include "hotswap/kernelize/package/package.h"

namespace hotswap {

HubKernels::HubKernels(bool allow_all_kernels, const std::filesystem::path& project)
    : project_(project.empty() ? Project::current() : Project::read(project)) {
  if (allow_all_kernels) project_.trust.allow_all_kernels = true;
}

KernelRequest HubKernels::request() const {
  return {.trust = project_.trust, .lock = project_.lock_or_null(), .signers = project_.signers};
}

const Result<HubKernel>& HubKernels::get(const KernelRef& ref, const std::string& device_kind) {
  const KernelRef bare(ref.repo(), {.version = ref.version(), .revision = ref.revision()});
  const std::string key = cat(bare.str(), ref.trust() ? " trusted " : " ", ref.locked() ? "locked " : "", device_kind);
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  if (!hub_) hub_ = std::make_unique<Hub>(HubOptions::from_env());
  KernelRequest asked = request();
  asked.ref = ref;
  asked.system = this_system(device_kind);
  KernelLocation location = locate_kernel(*hub_, asked);
  if (!location.choice.chosen) {
    const std::string trace = location.choice.trace_text(), nearest = location.choice.nearest_text();
    return known_
        .emplace(key, Reason{cat("no variant of ", location.str(), " fits ", device_kind, ": ",
                                 trace.empty() ? "it has none at all" : trace,
                                 nearest.empty() ? "" : "; nearest: " + nearest)})
        .first->second;
  }
  return known_.emplace(key, fetch_kernel(*hub_, asked, std::move(location))).first->second;
}

void HubKernels::verify(const HubKernel& kernel, const FilesInMemory& files) const {
  verify_signed(request(), kernel.location, kernel.folder, files);
  if (kernel.digest_checked) verify_listed(kernel.location, kernel.folder, files);
  verify_locked(kernel.location, kernel.folder, files);
}

std::string origin_of(const HubKernel& kernel) {
  const KernelLocation& location = kernel.location;
  std::string text = cat("from ", location.str());
  if (location.asked != location.commit) text += cat(" (", location.asked, ")");
  text += ", " + kernel.variant;
  if (!location.led_from.empty()) text += cat(", where ", location.led_from, " redirects to");
  if (location.locked != nullptr) text += ", as locked";
  if (!kernel.signer.empty()) text += ", signed by " + kernel.signer;
  if (!kernel.digest_checked) text += ", its files not checked";
  return text;
}

}  // namespace hotswap
