// Python's own huggingface_hub and kernels, unmodified, against our server and on our cache; and we on theirs.
#include <gtest/gtest.h>

#include <thread>

#include "hotswap/hub/test_python.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

const Repo kPythonModel{RepoType::kModel, "acme/tiny"}, kPythonKernel{RepoType::kKernel, "acme/norm"};

class AgainstPython : public test_support::PythonPeer {
 protected:
  void SetUp() override {
    PythonPeer::SetUp();
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
  }
};

TEST_F(AgainstPython, TheirClientOnOurServerAndWeOnTheirCache) {
  const auto answers =
      ask({{"info", {"acme/tiny"}, nlohmann::json::object()},
           {"refs", {"acme/norm"}, nlohmann::json::object()},
           {"tree", {"acme/norm", "v1"}, nlohmann::json::object()},
           {"snapshot", {"acme/tiny"}, nlohmann::json::object()},
           {"download", {"acme/tiny", "sub/folder/notes.txt"}, nlohmann::json::object()},
           {"download", {"acme/tiny", "none.json"}, nlohmann::json::object()},
           {"download", {"acme/tiny", "config.json"}, {{"revision", "v9"}}},
           {"download", {"acme/nobody", "config.json"}, nlohmann::json::object()},
           {"paths", {"acme/tiny", {"empty", "sub", "none", "model.safetensors"}}, nlohmann::json::object()}});
  Hub online(options());
  const std::string commit = online.client().commit(kPythonModel, "main");
  EXPECT_EQ(answers[0], commit);
  const RepoRefs refs = online.client().refs(kPythonKernel);
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
  const std::string large = describe_file(served.path() / "models/acme/tiny/main/model.safetensors", 1).sha256;
  EXPECT_EQ(answers[8], (nlohmann::json{"empty 0 e69d", "sub/", "model.safetensors 3145731 " + large.substr(0, 4)}))
      << "what is not there is left out";

  Hub offline(options(true));
  EXPECT_EQ(offline.snapshot(kPythonModel, "main"), cache() / folder);
  EXPECT_EQ(read_file(offline.file(kPythonModel, "main", "model.safetensors")), std::string(3 << 20, 'm') + "end");
  EXPECT_EQ(offline.tree(kPythonModel, "main").size(), 4u) << "their list of files";
  EXPECT_EQ(offline.find_file(kPythonModel, "main", "none.json"), std::nullopt) << "their .no_exist";
  const int64_t sent = server->bytes_sent();
  EXPECT_EQ(online.snapshot(kPythonModel, "main"), cache() / folder);
  EXPECT_EQ(online.client().requests(), 2) << "the two of this test: their refs are young enough";
  EXPECT_EQ(server->bytes_sent(), sent);
}

TEST_F(AgainstPython, TheRestOfTheirApi) {
  const auto answers = ask({{"rest", {"acme/tiny"}, nlohmann::json::object()}});
  ASSERT_TRUE(answers[0].is_object()) << answers[0];
  const nlohmann::json large = 3145731;
  EXPECT_EQ(answers[0]["files"]["model.safetensors"], (nlohmann::json{large, large})) << answers[0];
  EXPECT_EQ(answers[0]["files"]["config.json"], (nlohmann::json{7, nullptr}));
  const std::string commit = Hub(options()).client().commit(kPythonModel, "main");
  EXPECT_EQ(answers[0]["commits"].dump(), cat("[[\"", commit, "\",[\"acme\"]]]"));
  EXPECT_EQ(answers[0]["who"], "reader");
  EXPECT_EQ(answers[0]["models"], nlohmann::json{"acme/tiny"});
  EXPECT_EQ(answers[0]["kernels"], nlohmann::json::array()) << "a kernel is no model";
}

TEST_F(AgainstPython, TheirClientOnOurCache) {
  std::string commit;
  {
    Hub hub(options());
    hub.snapshot(kPythonModel, "main");
    EXPECT_EQ(hub.find_file(kPythonModel, "main", "none.json"), std::nullopt);
    hub.snapshot(kPythonKernel, "v1");
    commit = hub.commit(kPythonModel, "main");
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

TEST_F(AgainstPython, WhatIsNotedOfARepositoryThatWasRefusedIsNoCorruption) {
  Hub hub(options());
  hub.publisher(kPythonKernel);  // all that is asked of a kernel whose publisher is not trusted
  hub.refs({RepoType::kKernel, "acme/norm"});
  EXPECT_NE(test_support::message_of([&] { hub.refs({RepoType::kModel, "acme/nothing"}); }), "no error");
  const auto answers = ask({{"scan", nlohmann::json::array(), nlohmann::json::object()}});
  EXPECT_EQ(answers[0]["repos"], (nlohmann::json{"acme/norm"}));
  EXPECT_EQ(answers[0]["warnings"], nlohmann::json::array());
}

TEST_F(AgainstPython, OneDownloadForBothAtTheSameTime) {
  const std::string content(24 << 20, 'x');
  served.write("models/acme/tiny/main/model.safetensors", content);
  Hub(options()).client().commit(kPythonModel, "main");  // the server has its hashes before anybody is timed
  const int64_t before = server->bytes_sent();
  std::thread theirs([&] {
    const auto answers = ask({{"download", {"acme/tiny", "model.safetensors"}, nlohmann::json::object()}});
    EXPECT_NE(answers[0].get<std::string>().find("model.safetensors"), std::string::npos) << answers[0];
  });
  std::vector<std::thread> ours;
  for (int i = 0; i < 3; ++i) {
    ours.emplace_back([&, i] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300 * i));
      EXPECT_EQ(read_file(Hub(options()).file(kPythonModel, "main", "model.safetensors")), content);
    });
  }
  theirs.join();
  for (std::thread& one : ours) one.join();
  EXPECT_EQ(server->bytes_sent() - before, static_cast<int64_t>(content.size()));
  EXPECT_EQ(std::distance(fs::directory_iterator(cache() / "models--acme--tiny/blobs"), fs::directory_iterator()), 1)
      << "no half files are left";
}

TEST_F(AgainstPython, KernelsByVersionAndOffline) {
  if (!has_kernels()) {
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
  Hub(options()).snapshot(kPythonKernel, "v1");
  const auto offline = ask({{"kernel", {"acme/norm"}, by_version}}, true);
  EXPECT_EQ(offline[0]["answer"], "v1") << offline[0];
}

}  // namespace
}  // namespace hotswap
