// kernel lock, download, verify-signature: as Python's `kernels`, where it is right.
#include <algorithm>
#include <cstdio>

#include "hotswap/cli/flags/value_checks.h"
#include "hotswap/cli/kernel/hub.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/hub/lock_kernels.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/hub/package/metadata.h"
#include "hotswap/hub/project.h"
#include "hotswap/hub/sign/signature.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

struct LockFlags {
  std::string folder, form = "dependencies";
};

void lock(const LockFlags& flags) {
  const Project project = Project::read(flags.folder, /*with_lock=*/false);
  if (project.dependencies.empty()) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("[dependencies] in hotswap.toml or [tool.kernels.dependencies] in pyproject.toml of ",
                               flags.folder),
                 .got = "none",
                 .next = "add them: \"org/kernel\" = 1"});
  }
  Hub hub(HubOptions::from_env());
  const auto form = flags.form == "variants" ? Lockfile::Form::kVariants : Lockfile::Form::kDependencies;
  lock_dependencies(hub, project.dependencies, form).write(fs::path(flags.folder) / "kernels.lock");
  if (form == Lockfile::Form::kVariants) return;
  std::fprintf(stderr,
               "%s: commits alone, as Python's kernels 0.17 and newer reads it; --form variants, which 0.16 and older "
               "reads, has a place for the hash of every variant\n",
               (fs::path(flags.folder) / "kernels.lock").c_str());
}

struct LockDownloadFlags {
  std::string what, project;
  bool all_variants = false, allow_all = false;
};

// Downloads and verifies; false, with the reason on stderr, where no variant fits.
bool download_one(Hub& hub, const KernelRequest& request, bool all_variants, bool show) {
  KernelLocation location = locate_kernel(hub, request);
  std::fprintf(stderr, "Downloading `%s` with SHA: %s\n", location.repo.c_str(), location.commit.c_str());
  if (location.locked != nullptr && !location.locked->pins_files()) {
    std::fprintf(stderr,
                 "its lock pins that commit and no hashes; its files are compared with the Hub's list of them\n");
  }
  if (all_variants) {
    const fs::path build = fetch_variants(hub, location, "") / "build";
    for (const std::string& variant : variant_names(location.files)) {
      const bool left_out = location.locked != nullptr && location.locked->pins_files() &&
                            !variant.starts_with("torch") && !location.locked->variants.contains(variant);
      if (left_out) continue;  // Python's locks hold torch's variants only
      verify_locked(location, build / variant);
      if (show) std::printf("%s\n", (build / variant).c_str());
    }
    return true;
  }
  if (!location.choice.chosen) {
    std::fprintf(stderr, "%s\n", no_variant(location.choice, location.repo, location.asked).what());
    return false;
  }
  const HubKernel kernel = fetch_kernel(hub, request, std::move(location));
  if (show) std::printf("%s\n", kernel.folder.c_str());
  return true;
}

void download(const LockDownloadFlags& flags) {
  const bool project_named = fs::is_directory(flags.what);
  Project project = project_named           ? Project::read(flags.what)
                    : flags.project.empty() ? Project::current()
                                            : Project::read(flags.project);
  if (flags.allow_all) project.trust.allow_all_kernels = true;
  Hub hub(HubOptions::from_env());
  KernelRequest request{
      .system = kernel_system(), .trust = project.trust, .lock = project.lock_or_null(), .signers = project.signers};
  if (!project_named) {
    request.ref = project.named(flags.what);
    if (download_one(hub, request, flags.all_variants, /*show=*/true)) return;
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = "a variant of " + flags.what + " for this machine",
                 .got = "none",
                 .next = "`hotswap kernel versions` lists what its versions have; `hotswap env` tells what fits here"});
  }
  if (!project.lock) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = "kernels.lock",
                 .got = "No kernels.lock file found in: " + flags.what,
                 .next = "run `hotswap kernel lock " + flags.what + "`"});
  }
  size_t missing = 0;
  for (const LockedKernel& locked : project.lock->kernels) {
    if (!locked.path.empty()) continue;  // a folder of this machine
    request.ref = {locked.dependency.repo,
                   {.version = locked.dependency.version, .revision = locked.dependency.revision}};
    missing += !download_one(hub, request, flags.all_variants, /*show=*/false);
  }
  if (missing == 0) return;
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = "a variant of every locked kernel for this machine",
               .got = cat(missing, " without one"),
               .next = "the messages above name the nearest"});
}

struct SignatureFlags {
  std::string repo;
  int64_t version = 0;
  bool all_variants = false, skip_unsigned = false, skip_no_digest = false;
};

void verify_signature(const SignatureFlags& flags) {
  const KernelRef ref(flags.repo, {.version = flags.version});
  const TrustRoot root = TrustRoot::current();
  size_t bad = 0;
  for (const fs::path& folder : download_to_look(ref, flags.all_variants)) {
    const VariantVerdict verdict = verify_variant(folder, root, default_signers());
    const std::string variant = folder.filename().string();
    const auto failed = [&](const std::string& why) {
      std::printf("\u274c %s: %s\n", variant.c_str(), why.c_str());
      ++bad;
    };
    switch (verdict.outcome) {
      case SignatureOutcome::kBundleMissing:
        if (!flags.skip_unsigned) failed("cannot verify kernel integrity, signature not found");
        break;
      case SignatureOutcome::kBundleInvalid:
        failed("cannot verify kernel integrity, invalid signature bundle:\n" + verdict.reason);
        break;
      case SignatureOutcome::kMetadataInvalid:
        failed("cannot verify kernel integrity, invalid metadata:\n" + verdict.reason);
        break;
      case SignatureOutcome::kMetadataMissing:
      case SignatureOutcome::kDigestMissing:
        if (!flags.skip_no_digest) failed("cannot verify kernel integrity, metadata does not have a digest");
        break;
      case SignatureOutcome::kDigestFailure:
        failed("kernel integrity check failed\n" + verdict.reason);
        break;
      case SignatureOutcome::kSignatureFailure:
        failed("metadata signature verification failed:\n" + verdict.reason);
        break;
      case SignatureOutcome::kSuccess:
        std::printf("\u2705 %s: kernel metadata is correctly signed\n", variant.c_str());
        break;
    }
  }
  if (bad == 0) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = "variants that are signed, and as their signers left them",
               .got = cat(bad, " that ", bad == 1 ? "is" : "are", " not"),
               .next = "do not run them"});
}

}  // namespace

void add_kernel_lock(CLI::App& kernel) {
  auto lock_flags = std::make_shared<LockFlags>();
  auto* lock_verb =
      kernel.add_subcommand("lock", "Write kernels.lock: the commits that a project's kernels mean today");
  lock_verb->add_option("DIR", lock_flags->folder, "The project, with hotswap.toml or pyproject.toml")
      ->required()
      ->check(CLI::ExistingDirectory);
  lock_verb
      ->add_option(
          "--form", lock_flags->form,
          "dependencies: version and commit, read by Python's kernels 0.17 and newer; variants: commit and the "
          "hash of every variant, read by kernels 0.16 and older. Both are read here")
      ->check(CLI::IsMember({"variants", "dependencies"}))
      ->capture_default_str();
  lock_verb->callback([lock_flags] { lock(*lock_flags); });

  auto flags = std::make_shared<LockDownloadFlags>();
  auto* download_verb = kernel.add_subcommand(
      "download", "Fetch the kernels of a project's kernels.lock, or one by name, into the cache, and verify them");
  download_verb->add_option("DIR|REPO", flags->what, "A project with kernels.lock, or org/name[@revision]")
      ->required()
      ->check(check_folder_or_repo_argument);
  download_verb->add_flag("--all-variants", flags->all_variants, "Not only the one for this machine");
  download_verb->add_flag("--allow-all-kernels", flags->allow_all, "Whoever published them");
  download_verb->add_option("--project", flags->project, "Trust and locks for REPO; default HOTSWAP_PROJECT")
      ->type_name("DIR")
      ->check(CLI::ExistingDirectory);
  download_verb->callback([flags] { download(*flags); });

  auto signature = std::make_shared<SignatureFlags>();
  auto* signature_verb =
      kernel.add_subcommand("verify-signature", "Verify the signatures of a version on the Hub, as Python's `kernels`");
  signature_verb->add_option("REPO", signature->repo, "org/name")->required()->check(check_repo_argument);
  signature_verb->add_option("VERSION", signature->version, "")->required()->check(zero_or_more());
  signature_verb->add_flag("--all-variants", signature->all_variants, "Not only the one for this machine");
  signature_verb->add_flag("--filter-unsigned", signature->skip_unsigned, "Skip variants that nobody signed");
  signature_verb->add_flag("--filter-no-digest", signature->skip_no_digest, "Skip variants without a digest");
  signature_verb->callback([signature] { verify_signature(*signature); });
}

}  // namespace hotswap
