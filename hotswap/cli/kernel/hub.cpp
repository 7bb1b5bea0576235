// kernel info, versions, has of a repository on the Hub, with the output and the exit codes of Python's `kernels`.
#include "hotswap/cli/kernel/hub.h"

#include <algorithm>
#include <cstdio>

#include "hotswap/base/file.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/package/metadata.h"
#include "hotswap/kernelize/package/device.h"
#include "hotswap/kernelize/package/package.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using OutJson = nlohmann::ordered_json;

struct KernelHubFlags {
  std::string repo;
  bool json = false;
};

OutJson variants_json(const VariantChoice& choice) {
  OutJson variants = OutJson::array();
  for (const auto& [variant, verdict] : choice.trace) variants.push_back({{"variant", variant}, {"verdict", verdict}});
  return variants;
}

void versions(const KernelHubFlags& flags) {
  Hub hub(HubOptions::from_env());
  const Repo repo{RepoType::kKernel, KernelRef(flags.repo).repo()};
  const RepoRefs refs = hub.refs(repo);
  const std::vector<int64_t> known = branch_versions(refs);
  const System system = kernel_system();
  OutJson out = OutJson::array();
  if (known.empty() && !flags.json) std::printf("Repository does not support kernel versions: %s\n", repo.id.c_str());
  for (const int64_t version : known) {
    const std::string commit = resolve_version(refs, version, repo.id).commit;
    const VariantChoice choice = choose_variant(variant_names(hub.tree(repo, commit)), system);
    if (flags.json) {
      out.push_back({{"version", version}, {"commit", commit}, {"variants", variants_json(choice)}});
    } else {
      std::printf("Version %lld:\n\n%s\n", static_cast<long long>(version), choice.trace_lines().c_str());
    }
  }
  if (flags.json) std::printf("%s\n", out.dump(2).c_str());
}

void has(const KernelHubFlags& flags) {
  Hub hub(HubOptions::from_env());
  const KernelLocation location = look_up(hub, flags.repo);
  const std::string needed = cat("build/", location.choice.chosen.value_or(""), "/metadata.json");
  const bool complete = location.choice.chosen && std::any_of(location.files.begin(), location.files.end(),
                                                              [&](const TreeEntry& e) { return e.path == needed; });
  if (flags.json) {
    const OutJson out = {{"repo_id", location.repo},
                         {"commit", location.commit},
                         {"has", complete},
                         {"variant", complete ? OutJson(*location.choice.chosen) : OutJson(nullptr)},
                         {"variants", variants_json(location.choice)}};
    std::printf("%s\n", out.dump(2).c_str());
  } else if (complete) {
    std::printf("%s: %s\n", location.str().c_str(), location.choice.chosen->c_str());
  }
  if (complete) return;
  if (!location.choice.chosen) throw no_variant(location.choice, location.repo, location.asked);
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = needed + " in " + location.str(),
               .got = "none",
               .next = "request a complete build from its publisher"});
}

}  // namespace

System kernel_system() { return this_system(cuda_available() ? "cuda" : "cpu"); }

KernelLocation look_up(Hub& hub, const KernelRef& ref) {
  return locate_kernel(hub, {.ref = ref, .system = kernel_system(), .check_trust = false});
}

std::vector<fs::path> download_to_look(const KernelRef& ref, bool all_variants) {
  Hub hub(HubOptions::from_env());
  KernelLocation location = look_up(hub, ref);
  if (!all_variants && !location.choice.chosen) throw no_variant(location.choice, location.repo, location.asked);
  const auto names = all_variants ? variant_names(location.files) : std::vector<std::string>{*location.choice.chosen};
  if (names.empty()) throw no_variant(location.choice, location.repo, location.asked);
  const fs::path snapshot = fetch_variants(hub, location, all_variants ? "" : names.front());
  std::vector<fs::path> folders;
  for (const std::string& name : names) folders.push_back(snapshot / "build" / name);
  return folders;
}

std::string check_repo_argument(const std::string& text) {
  try {
    if (!KernelRef(text).repo().empty()) return "";
    return "expected org/name[@revision], got '" + text + "'";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string check_folder_or_repo_argument(const std::string& text) {
  return fs::is_directory(text) ? "" : check_repo_argument(text);
}

void show_hub_kernel(const KernelRef& asked, bool json) {
  Hub hub(HubOptions::from_env());
  KernelRef ref = asked;
  if (!ref.named()) {  // the newest version, else main
    const auto known = branch_versions(hub.refs({RepoType::kKernel, ref.repo()}));
    ref = known.empty() ? KernelRef(ref.repo(), {.version = {}, .revision = "main"})
                        : KernelRef(ref.repo(), {.version = known.back()});
  }
  const KernelLocation location = look_up(hub, ref);
  if (location.choice.trace.empty()) throw no_variant(location.choice, location.repo, location.asked);
  const std::string variant = location.choice.trace.front().first;
  const fs::path file = hub.file(location.repository(), location.commit, cat("build/", variant, "/metadata.json"));
  const KernelMetadata m = parse_metadata(read_file(file), file.string());
  std::set<std::string> backends;
  for (const auto& [name, verdict] : location.choice.trace) {
    const auto parsed = VariantName::parse(name);
    if (!parsed) continue;
    backends.insert(parsed->framework == Framework::kNoarch ? parsed->noarch : parsed->backend.name());
  }
  const auto or_null = [](const std::string& text) { return text.empty() ? OutJson(nullptr) : OutJson(text); };
  if (json) {
    const OutJson out = {{"repo_id", location.repo},
                         {"revision", location.asked},
                         {"name", m.name},
                         {"version", m.version},
                         {"license", m.license},
                         {"upstream", or_null(m.upstream)},
                         {"source", or_null(m.source)},
                         {"python_depends", m.python_depends},
                         {"backends", backends},
                         {"commit", location.commit},
                         {"variants", variants_json(location.choice)}};
    std::printf("%s\n", out.dump(2).c_str());
    return;
  }
  const auto line = [](const char* what, const std::string& value) {
    std::printf("%s: %s\n", what, value.empty() ? "-" : value.c_str());
  };
  line("Repository", location.repo);
  line("Revision",
       location.asked == location.commit ? location.commit : cat(location.asked, " (", location.commit, ")"));
  line("Name", m.name);
  line("Version", cat(m.version));
  line("License", m.license);
  line("Upstream", m.upstream);
  line("Source", m.source);
  line("Python dependencies", join(m.python_depends));
  line("Backends", join(backends));
}

void add_kernel_hub(CLI::App& kernel) {
  auto flags = std::make_shared<KernelHubFlags>();
  auto* list =
      kernel.add_subcommand("versions", "The versions of a repository on the Hub, and which variants fit here");
  list->add_option("REPO", flags->repo, "org/name")->required()->check(check_repo_argument);
  list->add_flag("--json", flags->json, "Print JSON");
  list->callback([flags] { versions(*flags); });

  auto* ask = kernel.add_subcommand("has", "Does a repository on the Hub have a variant for this machine? Exit 0: yes");
  ask->add_option("REPO", flags->repo, "org/name[@revision]; without one: version 1")
      ->required()
      ->check(check_repo_argument);
  ask->add_flag("--json", flags->json, "Print JSON");
  ask->callback([flags] { has(*flags); });
}

}  // namespace hotswap
