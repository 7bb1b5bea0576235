// hub publish: packages for the folder behind serve-hub.
#include <cstdio>
#include <memory>

#include "hotswap/cli/verbs.h"
#include "hotswap/hub/publish.h"

namespace hotswap {
namespace {

struct PublishFlags {
  std::string package, folder, as, tag;
};

void publish(const PublishFlags& flags) {
  const Published done = publish_package(flags.package, flags.folder, flags.as, flags.tag);
  std::printf("%s %s\n", done.repo.c_str(), done.commit.c_str());
  for (const std::string& ref : done.refs) std::printf("  %s\n", ref.c_str());
}

}  // namespace

void add_hub(CLI::App& app) {
  auto* hub = app.add_subcommand("hub", "Fill the folder behind `hotswap serve-hub`.");
  hub->require_subcommand(1);
  auto* verb = hub->add_subcommand(
      "publish",
      "Copy a built package into DIR as one commit, and let main, v<version> and the tag name it. Clients see the\n"
      "old commit or the new one; old commits stay for those who have locked them.");
  auto flags = std::make_shared<PublishFlags>();
  verb->add_option("PACKAGE", flags->package, "a folder with build/<variant>/, or one variant")->required();
  verb->add_option("DIR", flags->folder, "the folder to be served")->required();
  verb->add_option("--as", flags->as, "ORG/NAME")->required();
  verb->add_option("--tag", flags->tag, "v and a version with dots, such as v1.2.0; tags never move");
  verb->callback([flags] { publish(*flags); });
}

}  // namespace hotswap
