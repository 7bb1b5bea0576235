// kernel hash, check, verify: what can be said of a package by its files. Only check loads its library, in a process of
// its own.
#include "hotswap/cli/kernel/check.h"

#include <cstdio>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/cli/child.h"
#include "hotswap/cli/kernel/hub.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/hub/install.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/package/abi_check.h"
#include "hotswap/hub/package/build_toml.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/hub/package/lockfile.h"
#include "hotswap/hub/sign/signature.h"
#include "hotswap/kernelize/foreign/foreign.h"
#include "hotswap/kernelize/package/package.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> need_variants(const fs::path& path) {
  auto found = built_variants(path);
  if (!found.empty()) return found;
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = "a package's folder (with build/VARIANT/metadata.json), or a variant's (with metadata.json)",
               .got = path.string() + ", which has neither file",
               .next = "check the path; in a source folder run `hotswap kernel build` first"});
}

void hash(const fs::path& path, const std::string& algorithm) {
  for (const fs::path& variant : need_variants(path)) {
    const size_t files = write_digests(variant, algorithm);
    std::printf("%s: %s of %zu files\n", variant.filename().c_str(), algorithm.c_str(), files);
  }
}

struct CheckFlags {
  std::string path, only_load;
  bool strict = false, files_only = false;
};

// One line a problem or note; returns the number of problems.
size_t report(const std::string& what, const VariantFindings& found, bool strict) {
  const size_t wrong = found.problems.size() + (strict ? found.notes.size() : 0);
  if (wrong == 0) std::printf("%s: good\n", what.c_str());
  for (const std::string& problem : found.problems) std::printf("%s: %s\n", what.c_str(), problem.c_str());
  for (const std::string& note : found.notes) std::printf("%s: not checked: %s\n", what.c_str(), note.c_str());
  return wrong;
}

// In the process of its own: a line for each thing that is wrong.
void only_load(const fs::path& variant) {
  try {
    load_package(read_package(variant, {}));
  } catch (const Error& error) {
    std::printf("%s\n", error.got().c_str());
  }
}

void load_apart(const fs::path& variant, VariantFindings& found) {
  bool fits = false;
  for (const char* kind : {"cpu", "cuda"}) {
    const std::vector<std::string> alone = {variant.filename().string()};
    fits = fits || choose_variant(alone, this_system(kind)).chosen.has_value();
  }
  if (!fits) {
    found.notes.emplace_back("the ops that its library registers: it is not for this machine");
    return;
  }
  const int status = run_self({"kernel", "check", "--only-load", variant.string()},
                              [&](const std::string& line) { found.problems.push_back(line); });
  if (status != 0) found.problems.push_back(cat("the process that loaded its library ended with status ", status));
}

size_t check_source(const CheckFlags& flags) {
  const fs::path path = flags.path;
  const BuildToml build = read_build_toml(path / "build.toml");
  std::vector<std::string> problems = check_build(build, path);
  if (build.edition < 5) {
    problems.push_back(cat("edition ", build.edition, " of the format, ",
                           build.edition == 4 ? "which kernel-builder upgrades: add edition = 5 to [general]"
                                              : "which kernel-builder refuses: run its update-build"));
  }
  const size_t wrong = report("build.toml", {.problems = problems, .notes = {}}, flags.strict);
  if (!fs::is_regular_file(path / "layers.json")) return wrong;
  VariantFindings layers;
  try {
    parse_layers(read_file(path / "layers.json"), path / "layers.json");
  } catch (const Error& error) {
    layers.problems.emplace_back(error.what());
  }
  return wrong + report("layers.json", layers, flags.strict);
}

void check_package(const CheckFlags& flags) {
  if (!flags.only_load.empty()) return only_load(flags.only_load);
  const fs::path path = flags.path;
  const bool source = fs::is_regular_file(path / "build.toml");
  size_t problems = source ? check_source(flags) : 0;
  const auto variants = source ? built_variants(path) : need_variants(path);
  for (const fs::path& variant : variants) {
    VariantFindings found = check_built(variant, !flags.files_only);
    if (flags.files_only) found.notes.emplace_back("the ops that its library registers, because of --files-only");
    problems += report(variant.filename(), found, flags.strict);
  }
  if (variants.empty()) std::printf("build: not checked: nothing is built\n");
  problems += flags.strict && variants.empty();
  if (problems == 0) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = "a package that builds and loads wherever its variants promise",
               .got = cat(problems, problems == 1 ? " problem" : " problems"),
               .next = "the lines above name each"});
}

}  // namespace

VariantFindings check_built(const fs::path& variant, bool load) {
  VariantFindings found{.problems = check_variant(variant), .notes = {}};
  if (!fs::is_regular_file(variant / "layers.json")) {
    found.notes.emplace_back("its layers: without layers.json a C++ host finds none");
    return found;
  }
  try {
    parse_layers(read_layers_text(variant), variant / "layers.json");
  } catch (const Error& error) {
    found.problems.emplace_back(error.what());
  }
  if (load && found.problems.empty()) load_apart(variant, found);
  return found;
}

namespace {

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
    if (verdict.outcome == SignatureOutcome::kBundleMissing && flags.unsigned_too) {
      verdict = verify_files(variant);  // they must still be what its metadata says
      shown = verdict.outcome == SignatureOutcome::kSuccess ? "Unsigned" : outcome_name(verdict.outcome);
    }
    std::string why = lock_problem(flags, variant);
    if (!why.empty()) shown = "LockVerificationFailure";
    if (why.empty()) why = verdict.reason;
    const bool good = verdict.outcome == SignatureOutcome::kSuccess && shown != "LockVerificationFailure";
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
  throw Error(
      {.kind = ErrorKind::kCorrupt,
       .wanted = cat("variants that are ", flags.unsigned_too ? "" : "signed, and ",
                     flags.lock.empty() ? "" : "as they were locked, and ", "as their metadata.json has them"),
       .got = cat(bad, " that ", bad == 1 ? "is" : "are", " not"),
       .next = cat("do not run them", flags.unsigned_too ? "" : "; --allow-unsigned takes those that nobody signed")});
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

  auto check_flags = std::make_shared<CheckFlags>();
  auto* check_verb = kernel.add_subcommand(
      "check",
      "build.toml, layers.json and its contracts, metadata, digests, the libraries' symbols (glibc, torch's stable "
      "ABI,\n"
      "Python's), and the ops that a library registers: it is loaded for that, in a process of its own");
  auto* path = check_verb->add_option("path", check_flags->path, "A package's source, a built package or a variant")
                   ->check(CLI::ExistingDirectory);
  check_verb->add_flag("--strict", check_flags->strict, "A check that cannot run here is an error; for CI");
  check_verb->add_flag("--files-only", check_flags->files_only, "Load nothing: of a package that you would not run");
  auto* alone = check_verb->add_option("--only-load", check_flags->only_load)->check(CLI::ExistingDirectory)->group("");
  path->excludes(alone);
  check_verb->callback([check_flags] {
    if (check_flags->path.empty() && check_flags->only_load.empty())
      throw usage_error("check wants a package's folder");
    check_package(*check_flags);
  });

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
                   "TOML with [[signer]] tables: allowed signers, instead of kernels-community")
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
