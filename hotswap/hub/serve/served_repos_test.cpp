// The folder behind serve-hub: what is hashed, when, and what the next start still knows.
#include "hotswap/hub/serve/served_repos.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::TempFolder;

const Repo kTiny{RepoType::kModel, "acme/tiny"};

class Served : public testing::Test {
 protected:
  void SetUp() override {
    served.write("models/acme/tiny/main/config.json", "{\"a\":1}");
    served.write("models/acme/tiny/v2/config.json", "{\"a\":2}");
    served.write("models/acme/tiny/v2/more.json", "{}");
  }
  // As a process that has just started sees it.
  std::string sha256() const {
    return ServedRepos(served.path(), 1, 0).find(kTiny, "main")->files.at("config.json").sha256;
  }
  fs::path kept() const { return served / ".serve-hub-hashes"; }
  size_t lines() const {
    const std::string text = read_file(kept());
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  TempFolder served;
};

TEST_F(Served, TheNextStartKnowsTheHashes) {
  const std::string real = sha256();
  ASSERT_EQ(lines(), 1u);
  // Another hash in what is kept tells whether the file was read again.
  std::string text = read_file(kept());
  text.replace(text.find(real), 64, std::string(64, 'f'));
  write_file(kept(), "nonsense\n1 2 3\n" + text);
  EXPECT_EQ(sha256(), std::string(64, 'f'));

  // The same size and the same time of modification: it is another file all the same.
  const fs::path file = served / "models/acme/tiny/main/config.json";
  const auto before = fs::last_write_time(file);
  served.write("models/acme/tiny/main/config.json", "{\"a\":3}");
  fs::last_write_time(file, before);
  const std::string changed = sha256();
  EXPECT_NE(changed, std::string(64, 'f'));
  EXPECT_NE(changed, real);

  write_file(kept(), text.substr(0, text.size() - 10));  // what makes no sense is as if it were not there
  EXPECT_EQ(sha256(), changed);
}

TEST_F(Served, AnotherProcessPreparesForOneThatRuns) {
  ServedRepos running(served.path(), 1, 0);
  const std::string real = running.find(kTiny, "main")->files.at("config.json").sha256;
  ServedRepos(served.path(), 1, 0).prepare([](const Repo&, const ServedRevision&) {});
  std::string text = read_file(kept());
  const std::string v2 = ServedRepos(served.path(), 1, 0).find(kTiny, "v2")->files.at("config.json").sha256;
  text.replace(text.find(v2), 64, std::string(64, 'f'));
  write_file(kept(), text);
  EXPECT_EQ(running.find(kTiny, "main")->files.at("config.json").sha256, real);
  EXPECT_EQ(running.find(kTiny, "v2")->files.at("config.json").sha256, std::string(64, 'f')) << "not read again";
}

TEST_F(Served, ABranchIsNotKeptWaitingByItsNeighbour) {
  ServedRepos repos(served.path(), 1, 0);
  const std::string commit = repos.find(kTiny, "main")->commit;
  EXPECT_NE(repos.find(kTiny, commit), nullptr);
  EXPECT_EQ(lines(), 1u) << "v2 was not read for it";
  EXPECT_EQ(repos.find(kTiny, std::string(40, 'a')), nullptr);
  EXPECT_EQ(lines(), 3u);
}

TEST_F(Served, PrepareForgetsWhatIsGone) {
  std::vector<std::string> seen;
  const auto prepare = [&] {
    ServedRepos(served.path(), 1, 0).prepare([&](const Repo& repo, const ServedRevision& revision) {
      seen.push_back(repo.id + " " + revision.name);
    });
  };
  prepare();
  EXPECT_EQ(seen, (std::vector<std::string>{"acme/tiny main", "acme/tiny v2"}));
  EXPECT_EQ(lines(), 3u);
  fs::remove_all(served / "models/acme/tiny/v2");
  prepare();
  EXPECT_EQ(lines(), 1u);
}

TEST_F(Served, ANameThatIsNotUtf8IsLeftOutAndTheRestIsServed) {
  served.write("models/acme/tiny/main/caf\xe9.txt", "latin");
  served.write("models/acme/tiny/main/caf\xc3\xa9.txt", "utf-8");
  testing::internal::CaptureStderr();
  ServedRepos repos(served.path(), 1, 0);
  for (int walks = 0; walks < 2; ++walks) {
    const auto revision = repos.find(kTiny, "main");
    ASSERT_EQ(revision->files.size(), 2u);
    EXPECT_TRUE(revision->files.contains("caf\xc3\xa9.txt"));
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("not UTF-8"), said.npos) << said;
  EXPECT_EQ(said.find("not UTF-8"), said.rfind("not UTF-8")) << "once";
}

TEST_F(Served, AFolderThatCannotBeWrittenIsServedAllTheSame) {
  fs::create_directory(kept());  // nobody can put a file there
  EXPECT_EQ(sha256().size(), 64u);
}

}  // namespace
}  // namespace hotswap
