// Python's own huggingface_hub and kernels, unmodified, against our server and on our cache; and we on theirs.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <thread>

#include "hotswap/base/json.h"
#include "hotswap/base/test_support.h"
#include "hotswap/hub/hub.h"
#include "hotswap/hub/server.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::TempFolder;

const Repo kModel{RepoType::kModel, "acme/tiny"}, kKernel{RepoType::kKernel, "acme/norm"};

// Reads jobs of argv[1] one by one, writes what came out to argv[2]: a value, or "ErrorClass: text".
constexpr const char* kScript = R"py(
import json, os, sys
from pathlib import Path
import huggingface_hub as hh
def relative(path): return str(Path(path).relative_to(os.environ["HF_HUB_CACHE"]))
def files(folder): return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())
def snapshot(repo, **more):
    folder = hh.snapshot_download(repo, **more)
    return {"folder": relative(folder), "files": files(folder)}
def download(repo, name, **more): return relative(hh.hf_hub_download(repo, name, **more))
def info(repo): return hh.HfApi().model_info(repo).sha
def refs(repo): return sorted(b.name + " " + b.target_commit for b in hh.HfApi().list_repo_refs(repo, repo_type="kernel").branches)
def tree(repo, revision): return sorted(e.path for e in hh.HfApi().list_repo_tree(repo, repo_type="kernel", revision=revision, recursive=True))
def absent(repo, name): return hh.try_to_load_from_cache(repo, name) is hh.file_download._CACHED_NO_EXIST
def scan():
    found = hh.scan_cache_dir()
    return {"repos": sorted(r.repo_id for r in found.repos), "warnings": [str(w) for w in found.warnings]}
def kernel(repo, **more):
    import kernels
    module = kernels.get_kernel(repo, **more)
    return {"answer": module.answer(), "place": relative(module.__file__)}
def org(name): return hh.HfApi().get_organization_overview(name).trustedKernelPublisher
def has(repo, **more):
    import kernels
    return kernels.has_kernel(repo, **more)
out = []
for name, args, more in json.load(open(sys.argv[1])):
    try: out.append(globals()[name](*args, **more))
    except Exception as e: out.append(f"{type(e).__name__}: {e}" + (f" (after {e.__context__!r})" if e.__context__ else ""))
json.dump(out, open(sys.argv[2], "w"))
)py";

class AgainstPython : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system((python + " -c 'import huggingface_hub' >/dev/null 2>&1").c_str()) != 0) {
      GTEST_SKIP() << python << " with the package 'huggingface_hub' is not there";
    }
    served.write("models/acme/tiny/main/config.json", "{\"a\":1}");
    served.write("models/acme/tiny/main/sub/folder/notes.txt", "notes");
    served.write("models/acme/tiny/main/empty", "");
    served.write("models/acme/tiny/main/model.safetensors", std::string(3 << 20, 'm') + "end");
    for (const char* version : {"v1", "v2"}) {
      const std::string place = cat("kernels/acme/norm/", version, "/build/torch-universal/");
      served.write(place + "metadata.json",
                   cat(R"({"name":"norm","id":"_norm_)", version, R"(","version":)", version + 1,
                       R"(,"license":"apache-2.0","python-depends":[],"kernel-depends":[],"backend":{"type":"cpu"}})"));
      served.write(place + "__init__.py", cat("def answer():\n    return '", version, "'\n"));
      served.write(place + "_ops.py", "# none\n");
    }
    served.write("trusted_publishers.txt", "acme\n");
    scratch.write("script.py", kScript);
    server = std::make_unique<HubServer>(
        HubServerOptions{.folder = served.path(), .large_from = 1 << 20, .page = 3, .rescan_s = 0});
    server->start();
  }

  // Runs jobs in one Python process; answers in the same order.
  std::vector<nlohmann::json> ask(const nlohmann::json& jobs, bool offline = false) const {
    const fs::path in = scratch.write("in.json", jobs.dump()), out = scratch.path() / "out.json";
    fs::remove(out);
    const std::string command =
        cat("env -u HF_TOKEN -u KERNELS_CACHE -u LOCAL_KERNELS -u HF_HUB_DISABLE_TELEMETRY -u DISABLE_TELEMETRY -u "
            "DO_NOT_TRACK HF_ENDPOINT=",
            server->url(), " HF_HOME=", scratch.path().string(), "/home HF_HUB_CACHE=", cache().string(),
            " HF_HUB_OFFLINE=", offline ? 1 : 0, " HF_HUB_DISABLE_PROGRESS_BARS=1 PYTHONDONTWRITEBYTECODE=1 ", python,
            " ", scratch.path().string(), "/script.py ", in.string(), " ", out.string());
    EXPECT_EQ(std::system(command.c_str()), 0);
    return nlohmann::json::parse(read_file(out));
  }
  fs::path cache() const { return scratch.path() / "cache"; }
  HubOptions options(bool offline = false) const {
    HubOptions o{
        .endpoint = server->url(), .cache = cache(), .kernels_cache = cache(), .offline = offline, .progress = false};
    return o;
  }

  const std::string python = HOTSWAP_TEST_PYTHON;
  TempFolder served, scratch;
  std::unique_ptr<HubServer> server;
};

TEST_F(AgainstPython, TheirClientOnOurServerAndWeOnTheirCache) {
  const auto answers = ask({{"info", {"acme/tiny"}, nlohmann::json::object()},
                            {"refs", {"acme/norm"}, nlohmann::json::object()},
                            {"tree", {"acme/norm", "v1"}, nlohmann::json::object()},
                            {"snapshot", {"acme/tiny"}, nlohmann::json::object()},
                            {"download", {"acme/tiny", "sub/folder/notes.txt"}, nlohmann::json::object()},
                            {"download", {"acme/tiny", "none.json"}, nlohmann::json::object()},
                            {"download", {"acme/tiny", "config.json"}, {{"revision", "v9"}}},
                            {"download", {"acme/nobody", "config.json"}, nlohmann::json::object()}});
  Hub online(options());
  const std::string commit = online.client().commit(kModel, "main");
  EXPECT_EQ(answers[0], commit);
  const RepoRefs refs = online.client().refs(kKernel);
  EXPECT_EQ(answers[1], (nlohmann::json{"v1 " + refs.branches[0].commit, "v2 " + refs.branches[1].commit}));
  EXPECT_EQ(answers[2], (nlohmann::json{"build", "build/torch-universal", "build/torch-universal/__init__.py",
                                        "build/torch-universal/_ops.py", "build/torch-universal/metadata.json"}))
      << "in pages of three";
  const std::string folder = "models--acme--tiny/snapshots/" + commit;
  EXPECT_EQ(answers[3]["folder"], folder) << answers[3];
  EXPECT_EQ(answers[3]["files"], (nlohmann::json{"config.json", "empty", "model.safetensors", "sub/folder/notes.txt"}));
  EXPECT_EQ(answers[4], folder + "/sub/folder/notes.txt");
  EXPECT_EQ(answers[5].get<std::string>().substr(0, 24), "RemoteEntryNotFoundError");
  EXPECT_EQ(answers[6].get<std::string>().substr(0, 21), "RevisionNotFoundError");
  EXPECT_EQ(answers[7].get<std::string>().substr(0, 23), "RepositoryNotFoundError");

  Hub offline(options(true));
  EXPECT_EQ(offline.snapshot(kModel, "main"), cache() / folder);
  EXPECT_EQ(read_file(offline.file(kModel, "main", "model.safetensors")), std::string(3 << 20, 'm') + "end");
  EXPECT_EQ(offline.tree(kModel, "main").size(), 4u) << "their list of files";
  EXPECT_EQ(offline.find_file(kModel, "main", "none.json"), std::nullopt) << "their .no_exist";
  const int64_t sent = server->bytes_sent();
  EXPECT_EQ(online.snapshot(kModel, "main"), cache() / folder);
  EXPECT_EQ(online.client().requests(), 2) << "the two of this test: their refs are young enough";
  EXPECT_EQ(server->bytes_sent(), sent);
}

TEST_F(AgainstPython, TheirClientOnOurCache) {
  std::string commit;
  {
    Hub hub(options());
    hub.snapshot(kModel, "main");
    EXPECT_EQ(hub.find_file(kModel, "main", "none.json"), std::nullopt);
    hub.snapshot(kKernel, "v1");
    commit = hub.commit(kModel, "main");
  }
  const int64_t sent = server->bytes_sent();
  const nlohmann::json jobs = {{"snapshot", {"acme/tiny"}, nlohmann::json::object()},
                               {"download", {"acme/tiny", "model.safetensors"}, nlohmann::json::object()},
                               {"absent", {"acme/tiny", "none.json"}, nlohmann::json::object()},
                               {"scan", nlohmann::json::array(), nlohmann::json::object()}};
  for (const bool offline : {true, false}) {
    const auto answers = ask(jobs, offline);
    const std::string folder = "models--acme--tiny/snapshots/" + commit;
    EXPECT_EQ(answers[0]["folder"], folder) << answers[0];
    EXPECT_EQ(answers[0]["files"].size(), 4u);
    EXPECT_EQ(answers[1], folder + "/model.safetensors");
    EXPECT_EQ(answers[2], true);
    EXPECT_EQ(answers[3]["repos"], (nlohmann::json{"acme/norm", "acme/tiny"}));
    EXPECT_EQ(answers[3]["warnings"], nlohmann::json::array()) << "nothing of ours puzzles their tools";
  }
  EXPECT_EQ(server->bytes_sent(), sent) << "they had nothing to download";
}

TEST_F(AgainstPython, OneDownloadForBothAtTheSameTime) {
  const std::string content(24 << 20, 'x');
  served.write("models/acme/tiny/main/model.safetensors", content);
  Hub(options()).client().commit(kModel, "main");  // the server has its hashes before anybody is timed
  const int64_t before = server->bytes_sent();
  std::thread theirs([&] {
    const auto answers = ask({{"download", {"acme/tiny", "model.safetensors"}, nlohmann::json::object()}});
    EXPECT_NE(answers[0].get<std::string>().find("model.safetensors"), std::string::npos) << answers[0];
  });
  std::vector<std::thread> ours;
  for (int i = 0; i < 3; ++i) {
    ours.emplace_back([&, i] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300 * i));
      EXPECT_EQ(read_file(Hub(options()).file(kModel, "main", "model.safetensors")), content);
    });
  }
  theirs.join();
  for (std::thread& one : ours) one.join();
  EXPECT_EQ(server->bytes_sent() - before, static_cast<int64_t>(content.size()));
  EXPECT_EQ(std::distance(fs::directory_iterator(cache() / "models--acme--tiny/blobs"), fs::directory_iterator()), 1)
      << "no half files are left";
}

TEST_F(AgainstPython, KernelsByVersionAndOffline) {
  if (std::system((python + " -c 'import importlib.util as u, sys; sys.exit(not u.find_spec(\"kernels\"))'").c_str()) !=
      0) {
    GTEST_SKIP() << python << " with the package 'kernels' is not there";
  }
  const nlohmann::json by_version = {{"version", 1}};
  const auto online = ask({{"kernel", {"acme/norm"}, by_version},
                           {"kernel", {"acme/norm"}, {{"revision", "v2"}}},
                           {"kernel", {"acme/norm"}, {{"version", 7}}},
                           {"has", {"acme/norm"}, by_version},
                           {"has", {"acme/nothing"}, by_version}});
  EXPECT_EQ(online[0]["answer"], "v1") << online[0];
  EXPECT_EQ(online[1]["answer"], "v2") << online[1];
  EXPECT_NE(online[2].dump().find("available versions: 1, 2"), std::string::npos) << online[2];
  EXPECT_EQ(online[3], true);
  EXPECT_NE(online[4], true);

  served.write("trusted_publishers.txt", "someone-else\n");
  fs::remove_all(cache());
  const auto untrusted = ask({{"kernel", {"acme/norm"}, by_version},
                              {"kernel", {"acme/norm"}, {{"version", 1}, {"trust_remote_code", true}}}});
  EXPECT_NE(untrusted[0].dump().find("not from a trusted publisher"), std::string::npos) << untrusted[0];
  EXPECT_EQ(untrusted[1]["answer"], "v1") << untrusted[1];

  // Ours writes refs/v1, so that theirs finds the version offline.
  fs::remove_all(cache());
  Hub(options()).snapshot(kKernel, "v1");
  const auto offline = ask({{"kernel", {"acme/norm"}, by_version}}, true);
  EXPECT_EQ(offline[0]["answer"], "v1") << offline[0];
}

}  // namespace
}  // namespace hotswap
