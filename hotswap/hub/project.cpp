#include "hotswap/hub/project.h"

#include "hotswap/base/env.h"
#include "hotswap/base/error.h"
#include "hotswap/hub/text.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

void read_own(const fs::path& file, Project& project) {
  const Json json = Json::read_toml(file);
  json.only({"dependencies", "trust", "signer"});
  if (json.has("dependencies")) project.dependencies = read_dependencies(file);
  if (const auto trust = json.find("trust")) project.trust = parse_trust(*trust);
  if (const auto signers = json.find("signer")) project.signers = parse_signers(*signers);
}

bool has_dependencies(const fs::path& pyproject) {
  const auto tool = Json::read_toml(pyproject).find("tool");
  const auto kernels = tool ? tool->find("kernels") : std::nullopt;
  return kernels && kernels->has("dependencies");
}

}  // namespace

Project Project::read(const fs::path& folder, bool with_lock) {
  Project project{.folder = folder};
  const fs::path own = folder / "hotswap.toml", python = folder / "pyproject.toml", lock = folder / "kernels.lock";
  const bool has_own = fs::is_regular_file(own), has_python = fs::is_regular_file(python);
  const bool has_lock = fs::is_regular_file(lock);
  if (!has_own && !has_python && !has_lock) {
    throw Error({.wanted = cat("hotswap.toml, pyproject.toml or kernels.lock in ", folder.string()),
                 .got = fs::is_directory(folder) ? "a folder without them" : "no such folder",
                 .next = "name the project's folder"});
  }
  if (has_own) read_own(own, project);
  if (has_python && project.dependencies.empty() && has_dependencies(python)) {
    project.dependencies = read_dependencies(python);
  }
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
