// The verbs that ask the Hub, against serve-hub: output, exit statuses, what is downloaded and what is refused.
#include "hotswap/cli/kernel/hub.h"

#include <algorithm>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/cli/test_program.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/hub/serve/server.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::Cli;
using test_support::Outcome;

class CliHub : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    const fs::path packages = program().parent_path().parent_path() / "packages";
    for (const char* version : {"v1", "v2"}) {
      const fs::path place = file("served/kernels/acme/norm") / version;
      fs::create_directories(place);
      fs::copy(packages / "norm/build", place / "build", fs::copy_options::recursive);
    }
    write("served/kernels/acme/norm/v2/more.txt", "so that it is another commit");
    write("served/kernels/acme/plain/main/README.md", "# no versions\n");
    write("served/kernels/acme/plain/main/build/torch-neuron/metadata.json", read_file(metadata()));
    write("served/trusted_publishers.txt", "acme\n");
    server = std::make_unique<HubServer>(HubServerOptions{.folder = file("served"), .rescan_s = 0});
    server->start();
  }
  void write(const std::string& name, const std::string& bytes) const {
    fs::create_directories(file(name).parent_path());
    write_file(file(name), bytes);
  }
  // Of the variant that this system takes: a build with CUDA kernels stages one for each backend.
  fs::path metadata() const {
    std::vector<std::string> names;
    const fs::path build = file("served/kernels/acme/norm/v1/build");
    for (const auto& entry : fs::directory_iterator(build)) names.push_back(entry.path().filename());
    const VariantChoice choice = choose_variant(names, kernel_system());
    if (!choice.chosen) throw no_variant(choice, "acme/norm", "v1");
    return build / *choice.chosen / "metadata.json";
  }
  Outcome ask(const std::string& arguments, const std::string& more = "") const {
    return run_with(
        "env -u HF_TOKEN -u KERNELS_CACHE -u HOTSWAP_PROJECT HF_HUB_OFFLINE=0 HF_HUB_DISABLE_PROGRESS_BARS=1 "
        "HF_ENDPOINT=" +
            server->url() + " HF_HUB_CACHE=" + file("cache").string() + " " + more,
        arguments);
  }
  nlohmann::json ask_json(const std::string& arguments) const {
    const Outcome outcome = ask(arguments + " --json");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.status == 0 ? nlohmann::json::parse(outcome.out) : nlohmann::json();
  }
  static bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }
  std::unique_ptr<HubServer> server;
};

TEST_F(CliHub, VersionsInfoHas) {
  const Outcome versions = ask("kernel versions acme/norm");
  EXPECT_EQ(versions.status, 0) << versions.err;
  EXPECT_EQ(versions.out.find("Version 1:\n\n"), 0u) << versions.out;
  EXPECT_TRUE(has(versions.out, "Version 2:\n\n") && has(versions.out, "compatible, preferred")) << versions.out;
  EXPECT_EQ(ask("kernel versions acme/plain").out, "Repository does not support kernel versions: acme/plain\n");
  EXPECT_EQ(ask("kernel versions acme/nothing").status, 1);
  EXPECT_EQ(ask("kernel versions nothing").status, 2);
  EXPECT_EQ(ask_json("kernel versions acme/norm")[1]["version"], 2);

  const Outcome newest = ask("kernel info acme/norm");
  EXPECT_EQ(newest.status, 0) << newest.err;
  for (const char* line : {"Repository: acme/norm\n", "Revision: v2 (", "Name: norm\n", "Version: 1\n",
                           "License: ", "Upstream: ", "Source: ", "Python dependencies: -\n", "Backends: "}) {
    EXPECT_TRUE(has(newest.out, line)) << line << newest.out;
  }
  const auto info = ask_json("kernel info acme/norm --version 1");
  std::set<std::string> keys;
  for (const auto& [key, value] : info.items()) keys.insert(key);
  EXPECT_EQ(keys, (std::set<std::string>{"backends", "commit", "license", "name", "python_depends", "repo_id",
                                         "revision", "source", "upstream", "variants", "version"}));
  EXPECT_EQ(info["revision"], "v1");
  EXPECT_EQ(ask_json("kernel info acme/plain")["revision"], "main") << "no version: main";
  EXPECT_EQ(ask("kernel info acme/norm --version 1 --revision main").status, 2);
  EXPECT_EQ(ask("kernel info acme/norm --version 9").status, 1);
  EXPECT_EQ(ask("kernel info norm --version 1").status, 2) << "a bundled package has one";

  EXPECT_EQ(ask("kernel has acme/norm@v2").status, 0);
  EXPECT_EQ(ask_json("kernel has acme/norm")["has"], true);
  const Outcome lacks = ask("kernel has acme/plain@main");
  EXPECT_EQ(lacks.status, 1);
  EXPECT_TRUE(has(lacks.err, "Cannot find a build variant for this system in acme/plain (revision: main)"))
      << lacks.err;
  // A variant that fits by its name alone is none.
  const std::string name = metadata().parent_path().filename();
  write("served/kernels/acme/half/v1/build/" + name + "/x.so", "x");
  const Outcome half = ask("kernel has acme/half");
  EXPECT_EQ(half.status, 1);
  EXPECT_TRUE(has(half.err, "metadata.json in acme/half@")) << half.err;
}

TEST_F(CliHub, LockThenDownload) {
  const std::string project = file("project").string();
  write("project/hotswap.toml", "[dependencies]\n\"acme/norm\" = 1\n");
  const Outcome unlocked = ask("kernel download " + project);
  EXPECT_EQ(unlocked.status, 1);
  EXPECT_TRUE(has(unlocked.err, "No kernels.lock file found in: " + project)) << unlocked.err;

  const Outcome locked = ask("kernel lock --form variants " + project);
  EXPECT_EQ(locked.status, 0) << locked.err;
  EXPECT_EQ(locked.out, "");
  const std::string text = read_file(file("project/kernels.lock"));
  const auto lock = nlohmann::json::parse(text);
  EXPECT_EQ(lock[0]["repo_id"], "acme/norm");
  EXPECT_FALSE(lock[0]["variants"].empty());
  const Outcome downloaded = ask("kernel download " + project);
  EXPECT_EQ(downloaded.status, 0) << downloaded.err;
  EXPECT_EQ(downloaded.out, "");
  EXPECT_TRUE(has(downloaded.err, "Downloading `acme/norm` with SHA: " + lock[0]["sha"].get<std::string>()));
  EXPECT_EQ(ask("kernel download --all-variants " + project).status, 0);

  auto other = lock;
  for (auto& [variant, hash] : other[0]["variants"].items()) hash["hash"] = "sha256-" + std::string(64, 'a');
  write("project/kernels.lock", other.dump());
  for (const char* verb : {"kernel download ", "kernel download --all-variants "}) {
    const Outcome refused = ask(verb + project);
    EXPECT_EQ(refused.status, 1);
    EXPECT_TRUE(has(refused.err, "as they were locked")) << refused.err;
  }
  // A lock with no variant left is none that lets everything through.
  other[0]["variants"] = nlohmann::json::object();
  write("project/kernels.lock", other.dump());
  EXPECT_TRUE(has(ask("kernel download " + project).err, "in the lock file; got no build of it"));
  EXPECT_EQ(ask("kernel download --all-variants " + project).status, 1);

  const Outcome by_commit = ask("kernel lock " + project);
  EXPECT_EQ(by_commit.status, 0);
  EXPECT_TRUE(has(by_commit.err, "commits alone, as Python's kernels 0.17 and newer reads it")) << by_commit.err;
  const auto by_version = nlohmann::json::parse(read_file(file("project/kernels.lock")));
  ASSERT_EQ(by_version.size(), 1u);
  EXPECT_EQ(by_version[0]["dependency"]["version"], 1);
  EXPECT_EQ(by_version[0]["lock"]["commit"], lock[0]["sha"]);
  EXPECT_TRUE(has(ask("kernel download " + project).err, "pins that commit and no hashes"));
  EXPECT_EQ(ask("kernel download acme/norm --project " + project).status, 0);
  EXPECT_EQ(ask("kernel download acme/norm@v2 --project " + project).status, 1) << "locked is version 1";

  write("empty/pyproject.toml", "[project]\nname = \"x\"\n");
  EXPECT_EQ(ask("kernel lock " + file("empty").string()).status, 1);
  EXPECT_EQ(ask("kernel lock /nowhere").status, 2);
}

TEST_F(CliHub, OneByName) {
  const Outcome done = ask("kernel download acme/norm@v2");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_TRUE(fs::is_regular_file(fs::path(done.out.substr(0, done.out.size() - 1)) / "layers.json")) << done.out;
  EXPECT_EQ(ask("kernel download acme/norm@v2", "HF_HUB_OFFLINE=1 ").status, 0);
  const Outcome missing = ask("kernel download acme/norm@v1", "HF_HUB_OFFLINE=1 ");
  EXPECT_EQ(missing.status, 75);
  EXPECT_TRUE(has(missing.err, "the cache lacks")) << missing.err;

  write("served/trusted_publishers.txt", "");
  fs::remove_all(file("cache"));
  const Outcome untrusted = ask("kernel download acme/norm@v2");
  EXPECT_EQ(untrusted.status, 1);
  EXPECT_TRUE(has(untrusted.err, "not from a trusted publisher")) << untrusted.err;
  EXPECT_TRUE(fs::is_empty(file("cache/kernels--acme--norm/snapshots")));
  EXPECT_EQ(ask("kernel download acme/norm@v2 --allow-all-kernels").status, 0);

  // What looks and runs nothing asks nobody for trust.
  const Outcome nobody = ask("kernel verify acme/norm@v2");
  EXPECT_EQ(nobody.status, 1);
  EXPECT_TRUE(has(nobody.out, "SignatureBundleMissing")) << nobody.out;
  EXPECT_EQ(ask("kernel verify --allow-unsigned acme/norm@v2").status, 0);
  EXPECT_EQ(ask("kernel verify --allow-unsigned --all-variants acme/norm@v2").status, 0);
  const Outcome as_python = ask("kernel verify-signature acme/norm 2");
  EXPECT_EQ(as_python.status, 1);
  EXPECT_TRUE(has(as_python.out, ": cannot verify kernel integrity, signature not found\n")) << as_python.out;
  EXPECT_EQ(ask("kernel verify-signature --filter-unsigned acme/norm 2").status, 0);
  EXPECT_EQ(ask("kernel verify-signature acme/norm").status, 2);
}

TEST_F(CliHub, BenchChecksThenTimes) {
  // What Python's `kernels benchmark` would run, and this never does: a package's Python files.
  const fs::path mark = file("python-was-run");
  write("served/kernels/acme/norm/v2/benchmarks/benchmark.py", "open('" + mark.string() + "', 'w')\n");
  const std::string small = " --device cpu --iterations 3 --warmup 1 --rows 8 --dim 64 ";
  const std::string saved = file("bench.json").string();
  const Outcome done = ask("kernel bench acme/norm@v2 --layer RMSNorm --json --output " + saved + small);
  ASSERT_EQ(done.status, 0) << done.err;
  for (const char* text : {"from acme/norm@", "Benchmark", "Speedup", "Mean(ms)", "Ref(ms)", "Match", "\u2713",
                           "inference 8x64 float32", "training 8x64 bfloat16", "Results saved to: "}) {
    EXPECT_TRUE(has(done.err, text)) << text << done.err;
  }
  EXPECT_EQ(read_file(saved), done.out);
  const auto json = nlohmann::json::parse(done.out);
  EXPECT_EQ(json["kernelCommitSha"].get<std::string>().size(), 40u);
  EXPECT_EQ(test_support::keys(json["machineInfo"]),
            (test_support::Keys{"backend", "cpu", "gpu", "os", "pytorchVersion"}));
  ASSERT_EQ(json["results"].size(), 4u) << "two types, with and without gradients";
  for (const auto& result : json["results"]) {
    EXPECT_EQ(result["workload"].get<std::string>().find("RMSNorm."), 0u) << result;
    EXPECT_EQ(result["verified"], true);
    EXPECT_EQ(test_support::keys(result["timingResults"]),
              (test_support::Keys{"iqr_ms", "iterations", "max_ms", "mean_ms", "min_ms", "outliers", "q1_ms", "q3_ms",
                                  "ref_mean_ms", "std_ms"}));
  }
  EXPECT_FALSE(fs::exists(mark));
  EXPECT_EQ(ask("kernel benchmark acme/norm@v2 --layer LayerNorm --dtype float32" + small, "HF_HUB_OFFLINE=1 ").status,
            0);
  const Outcome unknown = ask("kernel bench acme/norm@v2 --layer Nope" + small);
  EXPECT_EQ(unknown.status, 1);
  EXPECT_TRUE(has(unknown.err, "LayerNorm") && has(unknown.err, "'Nope'")) << unknown.err;
  EXPECT_EQ(ask("kernel bench acme/norm --iterations 0").status, 2);
  EXPECT_EQ(ask("kernel bench acme/norm --version 1 --branch main").status, 2);

  write("served/trusted_publishers.txt", "");
  fs::remove_all(file("cache"));
  const Outcome untrusted = ask("kernel bench acme/norm@v2" + small);
  EXPECT_EQ(untrusted.status, 1);
  EXPECT_TRUE(has(untrusted.err, "not from a trusted publisher")) << untrusted.err;
  EXPECT_TRUE(fs::is_empty(file("cache/kernels--acme--norm/snapshots")));
}

// Every contract has a case, and every bundled layer the values of the stock one; another function is caught.
TEST_F(CliHub, BenchOfAllBundledPackagesAndOfAWrongOne) {
  const std::string small = " --device cpu --iterations 1 --warmup 0 --rows 6 --dim 64 --dtype float32 --json";
  const fs::path packages = program().parent_path().parent_path() / "packages";
  for (const auto& package : fs::directory_iterator(packages)) {
    const std::string name = package.path().filename().string();
    const Outcome done = run("kernel bench " + name + small);
    const auto json = nlohmann::json::parse(done.out);
    EXPECT_TRUE(json["skipped"].empty()) << json["skipped"];
    // A package of ops for Python alone has no layers to measure.
    const bool serves = !nlohmann::json::parse(run("kernel info " + name + " --json").out)["layers"].empty();
    EXPECT_EQ(done.status, serves ? 0 : 1) << done.err;
    EXPECT_EQ(json["results"].empty(), !serves);
  }
  fs::create_directories(file("wrong"));
  fs::copy(packages / "activation/build", file("wrong/build"), fs::copy_options::recursive);
  fs::path variant;
  for (const auto& entry : fs::directory_iterator(file("wrong/build"))) {
    if (has(entry.path().filename(), "-cpu-")) variant = entry.path();
  }
  auto layers = nlohmann::json::parse(read_file(variant / "layers.json"));
  layers["layers"]["SiLU"]["ops"] = layers["layers"]["GeLU"]["ops"];
  layers["layers"]["Mine"] = layers["layers"]["QuickGELU"];
  write_file(variant / "layers.json", layers.dump());
  const std::string wrong = "kernel bench " + file("wrong").string() + small;
  EXPECT_TRUE(has(run(wrong).err, "File hash mismatch for layers.json"));
  write_digests(variant);
  const Outcome caught = run(wrong + " --layer SiLU");
  EXPECT_EQ(caught.status, 1);
  EXPECT_TRUE(has(caught.err, "\u2717") && has(caught.err, "2 workloads that differ")) << caught.err;
  const auto json = nlohmann::json::parse(caught.out);
  for (const auto& result : json["results"]) {
    EXPECT_EQ(result["verified"], false);
    EXPECT_FALSE(result.contains("timingResults")) << "a wrong layer has no speed";
  }
  const Outcome alone = run(wrong + " --layer Mine");
  EXPECT_EQ(alone.status, 1);
  EXPECT_TRUE(has(alone.err, "skipped Mine: no stock activation is known by the name Mine")) << alone.err;
}

TEST_F(CliHub, KernelizesAModelByAName) {
  const fs::path model = test_support::tiny_model();
  const auto report = ask_json("kernelize --strict --kernel RMSNorm=acme/norm@v2 --model " + model.string())["layers"];
  const auto norm =
      std::find_if(report.begin(), report.end(), [](const auto& row) { return row["layer"] == "RMSNorm"; });
  ASSERT_NE(norm, report.end());
  EXPECT_EQ((*norm)["reason"].get<std::string>().find("from acme/norm@"), 0u) << *norm;
  write("served/trusted_publishers.txt", "");
  fs::remove_all(file("cache"));
  const std::string line = "kernelize --kernel RMSNorm=acme/norm@v2 --model " + model.string();
  const Outcome refused = ask(line);
  EXPECT_EQ(refused.status, 1);
  EXPECT_TRUE(has(refused.err, "not from a trusted publisher") && has(refused.err, "allow_all_kernels")) << refused.err;
  EXPECT_EQ(ask(line + " --allow-all-kernels").status, 0);
  // An attention's kernel too, which is loaded with the model: it is trusted, and has no such layer.
  const std::string attention = "kernelize --attn-implementation acme/norm@v2 --model " + model.string();
  EXPECT_TRUE(has(ask(attention).err, "not from a trusted publisher"));
  EXPECT_TRUE(has(ask(attention + " --allow-all-kernels").err, "a layer 'attention'"));
  write("project/hotswap.toml", "[trust]\nallow = [\"acme/norm\"]\n");
  EXPECT_EQ(ask(line + " --project " + file("project").string()).status, 0);
  EXPECT_TRUE(has(ask(attention + " --project " + file("project").string()).err, "a layer 'attention'"));
}

}  // namespace
}  // namespace hotswap
