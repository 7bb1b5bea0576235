#include "hotswap/hub/project.h"

#include "hotswap/base/env.h"
#include "hotswap/base/error.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

void read_own(const fs::path& file, Project& project) {
  const Json json = Json::read_toml(file);
  json.only({"dependencies", "trust", "signer"});
  if (json.has("dependencies")) project.dependencies = parse_dependencies(json.child("dependencies"), /*ours=*/true);
  if (const auto trust = json.find("trust")) project.trust = parse_trust(*trust);
  if (const auto signers = json.find("signer")) project.signers = parse_signers(*signers);
}

// [tool.kernels.dependencies]; the rest of the file is others'.
void read_python(const fs::path& file, Project& project) {
  std::optional<Json> table = Json::read_toml(file);
  for (const char* key : {"tool", "kernels", "dependencies"}) {
    if (table) table = table->find(key);
  }
  if (table) project.dependencies = parse_dependencies(*table, /*ours=*/false);
}

}  // namespace

Project Project::read(const fs::path& folder, bool with_lock) {
  Project project{.folder = folder};
  const fs::path own = folder / "hotswap.toml", python = folder / "pyproject.toml", lock = folder / "kernels.lock";
  const bool has_own = fs::is_regular_file(own), has_python = fs::is_regular_file(python);
  const bool has_lock = fs::is_regular_file(lock);
  if (!has_own && !has_python && !has_lock) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("hotswap.toml, pyproject.toml or kernels.lock in ", folder.string()),
                 .got = fs::is_directory(folder) ? "a folder without them" : "no such folder",
                 .next = "name the project's folder"});
  }
  if (has_own) read_own(own, project);
  if (has_python && project.dependencies.empty()) read_python(python, project);
  if (has_lock && with_lock) project.lock = Lockfile::read(lock);
  return project;
}

Project Project::current() {
  const auto folder = env(EnvVar::kProject);
  return folder ? read(*folder) : Project();
}

KernelRef Project::named(const KernelRef& ref) const {
  if (ref.repo().empty() || ref.named()) return ref;
  for (const Dependency& dependency : dependencies) {
    if (dependency.repo != ref.repo()) continue;
    return {
        ref.repo() + (ref.layer().empty() ? "" : ":" + ref.layer()),
        {.version = dependency.version, .revision = dependency.revision, .trust = ref.trust(), .locked = ref.locked()}};
  }
  return ref;
}

}  // namespace hotswap
