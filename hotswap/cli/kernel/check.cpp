// kernel hash, check, verify: what can be said of a package by its files alone. Nothing of it is loaded or run.
#include <cstdio>

#include "hotswap/base/error.h"
#include "hotswap/base/json.h"
#include "hotswap/cli/kernel/hub.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/hub/install.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/package/abi_check.h"
#include "hotswap/hub/package/build_toml.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/hub/package/lockfile.h"
#include "hotswap/hub/sign/signature.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> need_variants(const fs::path& path) {
  auto found = built_variants(path);
  if (!found.empty()) return found;
  throw Error({.wanted = "a package's folder, or a variant's with its metadata.json",
               .got = path.string() + ", which has neither",
               .next = "check the path"});
}

void hash(const fs::path& path, const std::string& algorithm) {
  for (const fs::path& variant : need_variants(path)) {
    const size_t files = write_digests(variant, algorithm);
    std::printf("%s: %s of %zu files\n", variant.filename().c_str(), algorithm.c_str(), files);
  }
}

// One line a problem; returns their number.
size_t report(const std::string& what, const std::vector<std::string>& problems) {
  if (problems.empty()) std::printf("%s: good\n", what.c_str());
  for (const std::string& problem : problems) std::printf("%s: %s\n", what.c_str(), problem.c_str());
  return problems.size();
}

size_t check_source(const fs::path& path) {
  const BuildToml build = read_build_toml(path / "build.toml");
  std::vector<std::string> problems = check_build(build, path);
  if (build.edition < 5) {
    problems.push_back(cat("edition ", build.edition, " of the format, ",
                           build.edition == 4 ? "which kernel-builder upgrades: add edition = 5 to [general]"
                                              : "which kernel-builder refuses: run its update-build"));
  }
  return report("build.toml", problems);
}

void check(const fs::path& path) {
  const bool source = fs::is_regular_file(path / "build.toml");
  size_t problems = source ? check_source(path) : 0;
  for (const fs::path& variant : source ? built_variants(path) : need_variants(path)) {
    problems += report(variant.filename(), check_variant(variant));
  }
  if (problems == 0) return;
  throw Error({.wanted = "a package that builds and loads wherever its variants promise",
               .got = cat(problems, problems == 1 ? " problem" : " problems"),
               .next = "the lines above name each"});
}

struct VerifyFlags {
  std::string path, trust_root, signers, lock, repo;
  bool unsigned_too = false, json = false, all_variants = false;
};

// "" where the variant is as it was locked.
std::string lock_problem(const VerifyFlags& flags, const fs::path& variant) {
  if (flags.lock.empty()) return "";
  try {
    verify_locked_variant(Lockfile::read(flags.lock).at(flags.repo), variant);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

void verify(const VerifyFlags& flags) {
  const TrustRoot root = flags.trust_root.empty() ? TrustRoot::current() : TrustRoot::read(flags.trust_root);
  const auto signers =
      flags.signers.empty() ? default_signers() : parse_signers(Json::read_toml(flags.signers).child("signer"));
  size_t bad = 0;
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  const bool here = fs::is_directory(flags.path);
  for (const fs::path& variant : here ? need_variants(flags.path) : download_to_look(flags.path, flags.all_variants)) {
    VariantVerdict verdict = verify_variant(variant, root, signers);
    std::string shown = outcome_name(verdict.outcome);
    if (verdict.outcome == Outcome::kBundleMissing && flags.unsigned_too) {
      // Its files must still be what its metadata says.
      const auto problems = check_variant(variant);
      verdict.outcome = problems.empty() ? Outcome::kSuccess : Outcome::kDigestFailure;
      verdict.reason = join(problems, "; ");
      shown = problems.empty() ? "Unsigned" : outcome_name(verdict.outcome);
    }
    std::string why = lock_problem(flags, variant);
    if (!why.empty()) shown = "LockVerificationFailure";
    if (why.empty()) why = verdict.reason;
    const bool good = verdict.outcome == Outcome::kSuccess && shown != "LockVerificationFailure";
    bad += !good;
    if (flags.json) {
      out.push_back({{"variant", variant.filename().string()}, {"result", shown}, {"good", good}, {"reason", why}});
      if (!verdict.by.signer.empty()) out.back()["signer"] = verdict.by.signer;
    } else {
      std::printf("%s %s: %s%s%s\n", good ? "\u2705" : "\u274c", variant.filename().c_str(), shown.c_str(),
                  verdict.by.signer.empty() ? "" : (", signed by " + verdict.by.signer).c_str(),
                  why.empty() ? "" : (": " + why).c_str());
    }
  }
  if (flags.json) std::printf("%s\n", out.dump(2).c_str());
  if (bad == 0) return;
  throw Error({.wanted = "variants that are signed, and as their signers left them",
               .got = cat(bad, " that ", bad == 1 ? "is" : "are", " not"),
               .next = "do not run them; --allow-unsigned takes those that nobody signed"});
}

}  // namespace

void add_kernel_checks(CLI::App& kernel) {
  struct HashFlags {
    std::string path, algorithm = "sha256";
  };
  auto hash_flags = std::make_shared<HashFlags>();
  auto* hash_verb = kernel.add_subcommand("hash", "Write the digests of all files into metadata.json");
  hash_verb->add_option("path", hash_flags->path, "A variant's folder, or a package's")
      ->required()
      ->check(CLI::ExistingDirectory);
  hash_verb->add_option("--algorithm", hash_flags->algorithm, "sha256 or sha512")
      ->check(CLI::IsMember({"sha256", "sha512"}));
  hash_verb->callback([hash_flags] { hash(hash_flags->path, hash_flags->algorithm); });

  auto path = std::make_shared<std::string>();
  auto* check_verb = kernel.add_subcommand(
      "check", "build.toml, metadata, digests and the libraries' symbols: glibc, torch's stable ABI, Python's");
  check_verb->add_option("path", *path, "A package's source, a built package or a variant")
      ->required()
      ->check(CLI::ExistingDirectory);
  check_verb->callback([path] { check(*path); });

  auto flags = std::make_shared<VerifyFlags>();
  auto* verify_verb =
      kernel.add_subcommand("verify", "Verify signatures, digests and locks of a package on disk or on the Hub");
  verify_verb->add_option("path", flags->path, "A package's folder, a variant's, or org/name[@revision]")
      ->required()
      ->check(check_folder_or_repo_argument);
  verify_verb->add_flag("--all-variants", flags->all_variants, "Of org/name: not only the one for this machine");
  verify_verb
      ->add_option("--trust-root", flags->trust_root,
                   "A trusted_root.json instead of HOTSWAP_TRUST_ROOT's or Sigstore's")
      ->check(CLI::ExistingFile);
  verify_verb
      ->add_option("--signers", flags->signers,
                   "TOML with [[signer]] tables: who may sign, instead of kernels-community")
      ->check(CLI::ExistingFile);
  verify_verb->add_flag("--allow-unsigned", flags->unsigned_too, "Digests are enough where there is no signature");
  auto* lock = verify_verb->add_option("--lock", flags->lock, "A kernels.lock that the files must fit")
                   ->check(CLI::ExistingFile);
  verify_verb->add_option("--repo", flags->repo, "The repository's name in the lock")->needs(lock);
  lock->needs("--repo");
  verify_verb->add_flag("--json", flags->json, "Print JSON");
  verify_verb->callback([flags] { verify(*flags); });
}

}  // namespace hotswap
