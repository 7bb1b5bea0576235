// The whole way: serve-hub on one side, Hub and its cache on the other.
#include "hotswap/hub/hub.h"

#include <fstream>

#include "hotswap/base/test_support.h"
#include "hotswap/hub/serve/server.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::noise;
using test_support::TempFolder;

const Repo kKernel{RepoType::kKernel, "acme/norm"}, kModel{RepoType::kModel, "acme/tiny"};

class HubTest : public testing::Test {
 protected:
  void SetUp() override {
    served.write("kernels/acme/norm/main/README.md", "# norm\n");
    served.write("kernels/acme/norm/v1/build/torch-cpu/metadata.json", "{\"version\":1}");
    served.write("kernels/acme/norm/v1/build/torch-cpu/__init__.py", "");
    served.write("kernels/acme/norm/v2/build/torch-cpu/metadata.json", "{\"version\":2}");
    served.write("kernels/acme/norm/v2/build/torch-cuda/big.so", noise(40 << 10));
    served.write("kernels/acme/norm/v1.2.0/x", "tagged");
    served.write("models/acme/tiny/main/config.json", "{}");
    served.write("models/acme/tiny/main/model.safetensors", noise(5 << 20));
    served.write("trusted_publishers.txt", "acme\n");
    start({});
  }
  void start(HubServerOptions options) {
    options.folder = served.path();
    options.large_from = options.large_from == 10 << 20 ? 16 << 10 : options.large_from;
    options.rescan_s = 0;
    options.on_request = [this](const std::string& line) {
      const std::lock_guard lock(mutex);
      requests.push_back(line);
    };
    server = std::make_unique<HubServer>(options);
    server->start();
  }
  HubOptions options(const std::string& token = "") const {
    HubOptions o{.endpoint = server->url(),
                 .token = token,
                 .cache = cache.path() / "hub",
                 .kernels_cache = cache.path() / "hub"};
    o.progress = false;
    o.http.sleep = [this](double seconds) {
      const std::lock_guard lock(mutex);
      waits.push_back(seconds);
    };
    return o;
  }
  size_t asked() const {
    const std::lock_guard lock(mutex);
    return requests.size();
  }
  std::string content(const std::string& place) const { return read_file(served.path() / place); }

  TempFolder served, cache;
  mutable std::mutex mutex;
  std::vector<std::string> requests;
  mutable std::vector<double> waits;
  std::unique_ptr<HubServer> server;
};

TEST_F(HubTest, RefsPublisherTree) {
  Hub hub(options());
  const RepoRefs refs = hub.refs(kKernel);
  ASSERT_EQ(refs.branches.size(), 3u);
  EXPECT_EQ(refs.branches[1].name, "v1");
  ASSERT_EQ(refs.tags.size(), 1u);
  EXPECT_EQ(refs.tags[0].name, "v1.2.0");
  EXPECT_EQ(hub.commit(kKernel, "v1"), refs.branches[1].commit);
  EXPECT_EQ(hub.commit(kKernel, refs.tags[0].commit), refs.tags[0].commit);
  EXPECT_TRUE(hub.publisher(kKernel).trusted);
  EXPECT_EQ(hub.tree(kKernel, "v2").size(), 2u);
  EXPECT_EQ(hub.tree(kKernel, "v2")[0].path, "build/torch-cpu/metadata.json");
  const auto top = hub.client().tree(kKernel, "v2", "build", false);
  ASSERT_EQ(top.size(), 2u);
  EXPECT_TRUE(top[0].folder);
  EXPECT_EQ(top[1].path, "build/torch-cuda");
}

TEST_F(HubTest, OneFileTwiceIsOneDownload) {
  Hub hub(options());
  const fs::path file = hub.file(kModel, "main", "model.safetensors");
  EXPECT_EQ(read_file(file), content("models/acme/tiny/main/model.safetensors"));
  EXPECT_TRUE(fs::is_symlink(file));
  EXPECT_EQ(file.parent_path().filename(), hub.commit(kModel, "main"));
  const size_t before = asked();
  EXPECT_EQ(hub.file(kModel, "main", "model.safetensors"), file);
  Hub other(options());  // another process
  EXPECT_EQ(other.file(kModel, "main", "model.safetensors"), file);
  EXPECT_EQ(asked(), before);
  EXPECT_EQ(server->bytes_sent(), 5 << 20);
}

TEST_F(HubTest, AColdFileTakesTwoRequests) {
  Hub hub(options());
  hub.file(kModel, "main", "config.json");
  EXPECT_EQ(asked(), 2u) << "HEAD and GET";
  EXPECT_EQ(hub.find_file(kModel, "main", "generation_config.json"), std::nullopt);
  EXPECT_EQ(hub.find_file(kModel, "main", "generation_config.json"), std::nullopt);
  EXPECT_EQ(asked(), 3u) << "an absent file is asked for once";
}

TEST_F(HubTest, SnapshotOfWhatIsSelected) {
  Hub hub(options());
  const fs::path folder = hub.snapshot(kKernel, "v2", {.allow = {"build/torch-cuda/*"}});
  EXPECT_EQ(read_file(folder / "build/torch-cuda/big.so"), content("kernels/acme/norm/v2/build/torch-cuda/big.so"));
  EXPECT_FALSE(fs::exists(folder / "build/torch-cpu"));
  EXPECT_EQ(hub.snapshot(kKernel, "v2"), folder);
  EXPECT_EQ(read_file(folder / "build/torch-cpu/metadata.json"), "{\"version\":2}");
}

TEST_F(HubTest, WarmIsZeroRequestsWithinTheTtl) {
  Hub hub(options());
  const auto everything = [&](Hub& h) {
    h.refs(kKernel);
    h.publisher(kKernel);
    h.snapshot(kKernel, "v1", {.allow = {"build/torch-cpu/*"}});
    h.tree(kKernel, "v1");
    h.find_file(kKernel, "v1", "kernel-status.toml");
    h.file(kKernel, "v1", "build/torch-cpu/metadata.json");
  };
  everything(hub);
  const size_t cold = asked();
  Hub warm(options());
  everything(warm);
  EXPECT_EQ(asked(), cold);
  EXPECT_EQ(warm.client().requests(), 0);
  HubOptions impatient = options();
  impatient.ttl_s = 0;
  Hub late(impatient);
  everything(late);
  EXPECT_GT(asked(), cold);
  EXPECT_EQ(server->bytes_sent(), 13) << "asked again about names, never for bytes";
}

TEST_F(HubTest, ABranchThatMoved) {
  HubOptions impatient = options();
  impatient.ttl_s = 0;
  Hub hub(impatient);
  const fs::path before = hub.file(kModel, "main", "config.json");
  served.write("models/acme/tiny/main/config.json", "{\"new\":1}");
  const fs::path after = hub.file(kModel, "main", "config.json");
  EXPECT_NE(before, after);
  EXPECT_EQ(read_file(after), "{\"new\":1}");
  EXPECT_EQ(read_file(before), "{}") << "the old commit stays what it was";
}

TEST_F(HubTest, OfflineEverythingThatWasThere) {
  fs::path file, folder;
  {
    Hub hub(options());
    file = hub.file(kModel, "main", "config.json");
    folder = hub.snapshot(kKernel, "v1");
    hub.refs(kKernel);
    hub.publisher(kKernel);
  }
  const size_t online = asked();
  HubOptions o = options();
  o.offline = true;
  o.ttl_s = 0;  // age does not matter here
  Hub hub(o);
  EXPECT_EQ(hub.file(kModel, "main", "config.json"), file);
  EXPECT_EQ(hub.snapshot(kKernel, "v1"), folder);
  EXPECT_EQ(hub.refs(kKernel).branches.size(), 3u);
  EXPECT_TRUE(hub.publisher(kKernel).trusted);
  expect_has(message_of([&] { hub.file(kModel, "main", "model.safetensors"); }),
             {"model.safetensors", "HF_HUB_OFFLINE", "models--acme--tiny"});
  expect_has(message_of([&] { hub.commit(kKernel, "v7"); }), {"refs/v7", "v1"});
  expect_has(message_of([&] { hub.snapshot({RepoType::kModel, "no/where"}, "main"); }), {"no/where", "refs/main"});
  EXPECT_EQ(asked(), online);
}

TEST_F(HubTest, OfflinePartialSnapshotNamesWhatIsMissing) {
  Hub(options()).snapshot(kKernel, "v2", {.allow = {"build/torch-cpu/*"}});
  HubOptions o = options();
  o.offline = true;
  Hub hub(o);
  EXPECT_NO_THROW(hub.snapshot(kKernel, "v2", {.allow = {"build/torch-cpu/*"}}));
  expect_has(message_of([&] { hub.snapshot(kKernel, "v2"); }), {"build/torch-cuda/big.so"});
}

TEST_F(HubTest, HandMadeSnapshotWorksOffline) {
  const std::string sha(40, 'c');
  const fs::path repo = cache.path() / "hub/kernels--acme--placed";
  fs::create_directories(repo / "refs");
  fs::create_directories(repo / "snapshots" / sha / "build/x");
  write_file(repo / "refs/v1", sha);
  write_file(repo / "snapshots" / sha / "build/x/metadata.json", "{}");
  HubOptions o = options();
  o.offline = true;
  Hub hub(o);
  const Repo placed{RepoType::kKernel, "acme/placed"};
  EXPECT_EQ(hub.snapshot(placed, "v1"), repo / "snapshots" / sha);
  EXPECT_EQ(read_file(hub.file(placed, "v1", "build/x/metadata.json")), "{}");
}

TEST_F(HubTest, TheHubIsDownButWeKnow) {
  HubOptions impatient = options();
  impatient.ttl_s = 0;
  Hub hub(impatient);
  const fs::path file = hub.file(kModel, "main", "config.json");
  hub.refs(kKernel);
  const std::string commit = hub.commit(kModel, "main");
  server->stop();
  waits.clear();
  EXPECT_EQ(hub.file(kModel, "main", "config.json"), file);
  EXPECT_EQ(hub.commit(kModel, "main"), commit);
  EXPECT_EQ(hub.refs(kKernel).tags.size(), 1u);
  EXPECT_EQ(waits.size(), 0u) << "with an answer at hand nobody waits for a Hub that is down";
  EXPECT_NE(message_of([&] { hub.file(kModel, "main", "model.safetensors"); }), "no error");
}

TEST_F(HubTest, RefusalsOfTheServer) {
  Hub hub(options());
  const auto kind = [&](const std::function<void()>& call) {
    try {
      call();
    } catch (const HubError& error) {
      return error.reason();
    }
    return HubReason::kOffline;
  };
  EXPECT_EQ(kind([&] { hub.file({RepoType::kModel, "acme/none"}, "main", "x"); }), HubReason::kRepoNotFound);
  EXPECT_EQ(kind([&] { hub.file(kModel, "v9", "x"); }), HubReason::kRevisionNotFound);
  EXPECT_EQ(kind([&] { hub.file(kModel, "main", "x"); }), HubReason::kEntryNotFound);
  EXPECT_EQ(kind([&] {
              hub.commit(kModel, std::string(40, 'f'));
              hub.tree(kModel, std::string(40, 'f'));
            }),
            HubReason::kRevisionNotFound);
}

TEST_F(HubTest, Tokens) {
  server.reset();
  start({.token = "right"});
  EXPECT_NO_THROW(Hub(options("right")).file(kModel, "main", "config.json"));
  const auto kind = [&](const std::string& token) {
    try {
      Hub(options(token)).file(kModel, "main", "model.safetensors");
    } catch (const HubError& error) {
      return error.reason();
    }
    return HubReason::kOffline;
  };
  EXPECT_EQ(kind(""), HubReason::kRepoNotFound);
  EXPECT_EQ(kind("wrong"), HubReason::kUnauthorized);
}

TEST_F(HubTest, LargeFilesFromAnotherHostWithoutTheToken) {
  std::mutex lines_mutex;
  std::vector<std::string> lines;
  HubServer cdn({.folder = served.path(), .large_from = 16 << 10, .on_request = [&](const std::string& line) {
                   const std::lock_guard lock(lines_mutex);
                   lines.push_back(line);
                 }});
  cdn.start();
  HubOptions direct = options();
  direct.endpoint = cdn.url();
  HubClient(direct).commit(kModel, "main");  // it learns its contents
  server.reset();
  start({.token = "right", .large_at = cdn.url()});
  Hub hub(options("right"));
  EXPECT_EQ(read_file(hub.file(kModel, "main", "model.safetensors")),
            content("models/acme/tiny/main/model.safetensors"));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1].substr(0, 9), "GET /cdn/");
  EXPECT_EQ(server->bytes_sent(), 0);
}

TEST_F(HubTest, RangesOfOneLargeFile) {
  HubOptions o = options();
  o.parallel_from = 1 << 20;
  o.segment = 1 << 20;
  o.parallel = 4;
  Hub hub(o);
  EXPECT_EQ(read_file(hub.file(kModel, "main", "model.safetensors")),
            content("models/acme/tiny/main/model.safetensors"));
  EXPECT_EQ(asked(), 1u + 5u) << "HEAD, and a GET for each of five segments";
  EXPECT_EQ(server->bytes_sent(), 5 << 20);
}

TEST_F(HubTest, PagedTree) {
  for (int i = 0; i < 25; ++i) served.write(cat("models/acme/many/main/d", i % 3, "/f", i), "x");
  server.reset();
  start({.page = 10});
  const auto entries = Hub(options()).tree({RepoType::kModel, "acme/many"}, "main");
  EXPECT_EQ(entries.size(), 25u);
  EXPECT_EQ(asked(), 1u + 3u) << "25 files and 3 folders, ten at a time";
}

TEST_F(HubTest, ACacheWithoutLinks) {
  HubOptions o = options();
  o.symlinks = false;
  Hub hub(o);
  const fs::path folder = hub.snapshot(kModel, "main");
  EXPECT_FALSE(fs::is_symlink(folder / "config.json"));
  EXPECT_EQ(read_file(folder / "model.safetensors"), content("models/acme/tiny/main/model.safetensors"));
  const size_t before = asked();
  EXPECT_EQ(hub.snapshot(kModel, "main"), folder);
  EXPECT_EQ(asked(), before);
}

TEST_F(HubTest, TheServerStaysInItsFolder) {
  served.write("secret.txt", "s3cret");
  fs::create_symlink(served.path() / "secret.txt", served.path() / "models/acme/tiny/main/link.txt");
  Http http({.retries = 0});
  for (const char* path :
       {"/../secret.txt", "/%2e%2e/secret.txt", "/acme/tiny/resolve/main/..%2f..%2f..%2f..%2fsecret.txt",
        "/acme/tiny/resolve/../secret.txt", "/acme/tiny/resolve/main/%2Fetc%2Fpasswd", "/api/models/../..",
        "/api/models/acme/tiny/tree/main/..%2F..", "/api/organizations/../overview", "/%zz",
        "/acme/tiny/resolve/main/%00"}) {
    const HttpResponse answer = http.send({.url = server->url() + path});
    EXPECT_GE(answer.status, 400) << path;
    EXPECT_EQ(answer.body.find("s3cret"), std::string::npos) << path;
  }
  EXPECT_EQ(http.send({.url = server->url() + "/acme/tiny/resolve/main/config.json", .first = 5}).status, 416);
  EXPECT_EQ(http.send({.url = server->url() + "/acme/tiny/resolve/main/config.json", .first = 1, .last = 900}).body,
            "}");
}

}  // namespace
}  // namespace hotswap
