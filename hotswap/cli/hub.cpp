// hub publish, hub mirror: what fills the folder behind serve-hub.
#include <cstdio>
#include <memory>

#include "hotswap/base/error.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/hub/mirror.h"
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

struct MirrorFlags {
  std::vector<std::string> words;  // ORG/NAME[@REVISION]..., then the folder
  std::string type = "kernel", project;
};

const std::map<std::string, RepoType> kHubTypes = {{"kernel", RepoType::kKernel},
                                                   {"model", RepoType::kModel},
                                                   {"dataset", RepoType::kDataset},
                                                   {"space", RepoType::kSpace}};

void mirror(const MirrorFlags& flags) {
  const Project project = flags.project.empty() ? Project::current() : Project::read(flags.project);
  const std::string folder = flags.words.back();
  std::vector<MirrorWish> wishes;
  for (size_t i = 0; i + 1 < flags.words.size(); ++i) {
    const std::string& word = flags.words[i];
    const size_t at = std::min(word.find('@'), word.size());
    wishes.push_back({.repo = {kHubTypes.at(flags.type), word.substr(0, at)},
                      .revision = at < word.size() ? word.substr(at + 1) : ""});
  }
  for (MirrorWish& wish : locked_wishes(project)) wishes.push_back(std::move(wish));
  if (wishes.empty()) throw usage_error("mirror wants ORG/NAME... DIR, or --project with a kernels.lock and DIR");
  for (const MirrorWish& wish : wishes) {
    for (const MirroredCommit& one : mirror_repo(HubOptions::from_env(), wish, folder, project)) {
      std::printf("%s/%s %s %s: ", plural(wish.repo.type), wish.repo.id.c_str(), one.commit.c_str(),
                  join(one.names).c_str());
      if (one.was_here) {
        std::printf("here already\n");
      } else {
        std::printf("%zu files, %.1f MB%s%s\n", one.files, static_cast<double>(one.bytes) / 1e6,
                    one.signers.empty() ? "" : ", signed by ", join(one.signers).c_str());
      }
    }
  }
}

}  // namespace

void add_hub(CLI::App& app) {
  auto* hub = app.add_subcommand("hub", "Fill the folder that `hotswap serve-hub` serves.");
  hub->require_subcommand(1);
  auto* verb = hub->add_subcommand(
      "publish",
      "Copy a built package into DIR as one commit, and let main, v<version> and the tag name it. Clients see the\n"
      "old commit or the new one; old commits stay for clients that locked them.");
  auto flags = std::make_shared<PublishFlags>();
  verb->add_option("PACKAGE", flags->package, "a folder with build/<variant>/, or one variant")->required();
  verb->add_option("DIR", flags->folder, "the folder to be served")->required();
  verb->add_option("--as", flags->as, "ORG/NAME")->required();
  verb->add_option("--tag", flags->tag, "v and a version with dots, such as v1.2.0; tags never move");
  verb->callback([flags] { publish(*flags); });

  auto* mirror_verb = hub->add_subcommand(
      "mirror",
      "Bring repositories of the Hub (HF_ENDPOINT) into DIR, under the commits that they have there: locks made there\n"
      "hold here. Of a kernel every branch and tag, of all else main; verified before it appears.");
  auto mirrored = std::make_shared<MirrorFlags>();
  mirror_verb
      ->add_option("ORG/NAME", mirrored->words, "repositories, each perhaps with @REVISION; then the folder, DIR")
      ->required();
  mirror_verb->add_option("--type", mirrored->type, "kernel, model, dataset or space")
      ->check(CLI::IsMember({"kernel", "model", "dataset", "space"}))
      ->capture_default_str();
  mirror_verb
      ->add_option("--project", mirrored->project,
                   "also the commits of its kernels.lock; signatures and locks as it requires; default HOTSWAP_PROJECT")
      ->type_name("PROJECT")
      ->check(CLI::ExistingDirectory);
  mirror_verb->callback([mirrored] { mirror(*mirrored); });
}

}  // namespace hotswap
