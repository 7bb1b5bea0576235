// `hotswap serve-hub` as a cluster runs it: the real program on a free port, asked by the real program.
#include <fcntl.h>
#include <signal.h>

#include "hotswap/base/test_support.h"
#include "hotswap/cli/test_program.h"
#include "hotswap/hub/net/test_certificate.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using OutJson = nlohmann::json;
using test_support::Cli;
using test_support::CliModel;
using test_support::expect_has;
using test_support::Outcome;
using test_support::tiny_model;

// The program as a child, from the line with its address on until stop().
class Served {
 public:
  Served(const fs::path& program, std::vector<std::string> arguments, const fs::path& log) {
    arguments.insert(arguments.begin(), {"hotswap", "serve-hub", "--port", "0"});
    std::vector<char*> argv;
    for (std::string& word : arguments) argv.push_back(word.data());
    argv.push_back(nullptr);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    const std::string path = program.string(), log_path = log.string();
    pid_ = fork();
    if (pid_ == 0) {
      const int file = open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(ends[1], STDOUT_FILENO);
      dup2(file, STDERR_FILENO);
      execv(path.c_str(), argv.data());
      _exit(127);
    }
    close(ends[1]);
    FILE* from = fdopen(ends[0], "r");
    char line[256] = "";
    if (std::fgets(line, sizeof line, from) != nullptr) url = std::string(line, std::strcspn(line, "\n"));
    std::fclose(from);
  }
  ~Served() { stop(); }
  // Its exit status after SIGTERM.
  int stop() {
    if (pid_ <= 0) return -1;
    kill(pid_, SIGTERM);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }
  std::string url;

 private:
  pid_t pid_ = -1;
};

// A folder with the small model and the package norm, as links to where they are.
class ServeHub : public CliModel {
 protected:
  void SetUp() override {
    CliModel::SetUp();
    fs::create_directories(file("hub/models/acme/stories"));
    fs::create_directory_symlink(fs::canonical(tiny_model()), file("hub/models/acme/stories/main"));
    write_file(file("hub/trusted_publishers.txt"), "acme\n");
    write_file(file("ids.json"), golden()["cases"][0]["input_ids"].dump());
  }
  std::string generate(const std::string& model_name) const {
    return "generate --model " + model_name + " --ids " + file("ids.json").string() + " --max-new-tokens 8 --json";
  }
  // Each with a cache of its own, unless told the same.
  std::string client(const std::string& url, const std::string& home, const std::string& more = "") const {
    return "env -u SSL_CERT_FILE -u HF_TOKEN -u HF_HUB_CACHE -u KERNELS_CACHE no_proxy=127.0.0.1 "
           "HF_HUB_DISABLE_PROGRESS_BARS=1 "
           "HF_ENDPOINT=" +
           url + " HF_HOME=" + file(home).string() + " " + more + " ";
  }
  OutJson tokens(const Outcome& outcome) const {
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.status == 0 ? OutJson::parse(outcome.out)["token_ids"] : OutJson();
  }
};

TEST_F(ServeHub, ModelsByNameUntilItEndsAndAfter) {
  const OutJson want = tokens(run(generate(tiny_model().string())));
  Served server(program(), {file("hub").string()}, file("log"));
  ASSERT_EQ(server.url.rfind("http://127.0.0.1:", 0), 0u) << server.url << read_file(file("log"));
  EXPECT_EQ(tokens(run_with(client(server.url, "home"), generate("acme/stories"))), want);
  expect_has(read_file(file("log")), {"GET /api/models/acme/stories", "model.safetensors"});
  const Outcome nothing = run_with(client(server.url, "home"), generate("acme/nothing"));
  EXPECT_EQ(nothing.status, 1);
  expect_has(nothing.err, {"acme/nothing"});
  const OutJson listed = OutJson::parse(run_with(client(server.url, "home"), "cache ls --json").out);
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0]["name"], "acme/stories");

  EXPECT_EQ(server.stop(), 0) << "SIGTERM is its orderly end";
  EXPECT_EQ(tokens(run_with(client(server.url, "home"), generate("acme/stories"))), want) << "all of it is cached";
  EXPECT_EQ(run_with(client(server.url, "empty"), generate("acme/stories")).status, 75);
}

TEST_F(ServeHub, ATokenForAll) {
  Served server(program(), {file("hub").string(), "--token", "hf_secret", "--quiet"}, file("log"));
  const Outcome none = run_with(client(server.url, "home"), generate("acme/stories"));
  EXPECT_EQ(none.status, 1);
  expect_has(none.err, {"401"});
  EXPECT_EQ(run_with(client(server.url, "home", "HF_TOKEN=hf_wrong"), generate("acme/stories")).status, 1);
  EXPECT_FALSE(tokens(run_with(client(server.url, "home", "HF_TOKEN=hf_secret"), generate("acme/stories"))).empty());
  EXPECT_EQ(read_file(file("log")).find("GET /"), std::string::npos) << "--quiet";
  EXPECT_EQ(read_file(file("log")).find("hf_"), std::string::npos);
}

TEST_F(ServeHub, ATokenOutOfAFile) {
  write_file(file("token"), " hf_secret\n");
  Served server(program(), {file("hub").string(), "--token-file", file("token").string(), "--quiet"}, file("log"));
  EXPECT_EQ(run_with(client(server.url, "home", "HF_TOKEN=hf_wrong"), generate("acme/stories")).status, 1);
  EXPECT_FALSE(tokens(run_with(client(server.url, "home", "HF_TOKEN=hf_secret"), generate("acme/stories"))).empty());
  write_file(file("empty"), "\n");
  const Outcome empty = run("serve-hub --port 0 --token-file " + file("empty").string() + " " + file("hub").string());
  EXPECT_EQ(empty.status, 1);
  expect_has(empty.err, {"expected a secret", file("empty").string()});
  EXPECT_EQ(run("serve-hub --token a --token-file " + file("token").string() + " " + file("hub").string()).status, 2);
  EXPECT_EQ(run("serve-hub --trusted-proxy nginx " + file("hub").string()).status, 2);
}

TEST_F(ServeHub, HttpsWithACertificateOfOnesOwn) {
  test_support::write_certificate(file("c.pem"), file("k.pem"));
  Served server(program(),
                {file("hub").string(), "--certificate", file("c.pem").string(), "--key", file("k.pem").string()},
                file("log"));
  ASSERT_EQ(server.url.rfind("https://127.0.0.1:", 0), 0u) << server.url << read_file(file("log"));
  const Outcome strict = run_with(client(server.url, "home"), generate("acme/stories"));
  EXPECT_EQ(strict.status, 75);
  expect_has(strict.err, {"certificate"});
  const std::string trusting = client(server.url, "home", "SSL_CERT_FILE=" + file("c.pem").string());
  EXPECT_FALSE(tokens(run_with(trusting, generate("acme/stories"))).empty());
}

TEST_F(ServeHub, AMirrorOfItIsFilledByOneCommand) {
  Served there(program(), {file("hub").string(), "--quiet"}, file("log"));
  const std::string mirror = "hub mirror acme/stories --type model " + file("mirror").string();
  const Outcome first = run_with(client(there.url, "home"), mirror);
  EXPECT_EQ(first.status, 0) << first.err;
  expect_has(first.out, {"models/acme/stories ", " main: ", " files, "});
  expect_has(run_with(client(there.url, "home"), mirror).out, {"here already"});
  there.stop();
  Served here(program(), {file("mirror").string(), "--quiet"}, file("log"));
  EXPECT_FALSE(tokens(run_with(client(here.url, "other"), generate("acme/stories"))).empty());
  EXPECT_EQ(run_with(client(here.url, "home"), "hub mirror " + file("mirror").string()).status, 2) << "of what?";
  EXPECT_EQ(run_with(client(here.url, "home"), "hub mirror acme/none " + file("mirror").string()).status, 1);
}

TEST_F(ServeHub, PreparesAndEnds) {
  const Outcome prepared = run("serve-hub --prepare " + file("hub").string());
  EXPECT_EQ(prepared.status, 0) << prepared.err;
  expect_has(prepared.out, {"models/acme/stories main ", " files, "});
  EXPECT_TRUE(fs::exists(file("hub/.serve-hub-hashes")));
}

TEST_F(Cli, ServeHubRefusesWhatItCannotServe) {
  EXPECT_EQ(run("serve-hub " + file("x").string() + " --certificate c.pem").status, 2);
  const Outcome nowhere = run("serve-hub --port 0 " + file("nowhere").string());
  EXPECT_EQ(nowhere.status, 1);
  expect_has(nowhere.err, {"expected a folder"});
}

}  // namespace
}  // namespace hotswap
