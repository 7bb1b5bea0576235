// A package that was built here, put into the folder behind serve-hub, so that its commits stay.
//
//   const Published done = publish_package("build/packages/norm", "/srv/hub", "acme/norm", "v1.2.0");
//
// A client sees the old commit or the new one, and who has locked the old one still finds it (served_repository.h).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hotswap {

struct Published {
  std::string repo, commit;
  std::vector<std::string> refs;  // that name this commit now
};

// tag: "v1.2.0", or empty for none; a tag that names another commit is an Error, and so is a package that `kernel
// install` would refuse.
Published publish_package(const std::filesystem::path& package, const std::filesystem::path& folder,
                          const std::string& repo, const std::string& tag);

}  // namespace hotswap
