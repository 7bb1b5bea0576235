// What a kernel's author does: a package from nothing, built, tested, installed, found by name; and the cache's verbs.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/silu.h>

#include "hotswap/base/test_support.h"
#include "hotswap/cli/test_program.h"
#include "hotswap/kernelize/package/package.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using OutJson = nlohmann::json;
using test_support::Cli;
using test_support::expect_has;
using test_support::keys;
using test_support::Keys;
using test_support::Outcome;

bool python_has_kernels() {
  static const bool has =
      std::system((std::string(HOTSWAP_TEST_PYTHON) + " -c 'import kernels' >/dev/null 2>&1").c_str()) == 0;
  return has;
}

TEST_F(Cli, APackageFromNothing) {
  const fs::path source = file("my-silu");
  const Outcome made = run("kernel init " + source.string() + " --repo acme/my-silu");
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(run("kernel init " + source.string()).status, 1) << "not over what is there";
  EXPECT_EQ(run("kernel init " + file("Wrong_Name").string()).status, 1);
  EXPECT_FALSE(fs::exists(file("Wrong_Name")));
  const std::string unbuilt = "build.toml: good\nlayers.json: good\nbuild: not checked: nothing is built\n";
  EXPECT_EQ(run("kernel check " + source.string()).out, unbuilt);
  EXPECT_EQ(run("kernel check --strict " + source.string()).status, 1) << "for CI that is a problem";

  // By the package's own CMakeLists, as its first lines say: configured, built (by `kernel build`), tested.
  const auto must = [&](const std::string& line) {
    const std::string log = file("log").string();
    ASSERT_EQ(std::system(("timeout 240 " + line + " >" + log + " 2>&1").c_str()), 0) << line << "\n" << read_file(log);
  };
  const std::string build = (source / "cmake-build").string();
  must(cat(HOTSWAP_TEST_CMAKE, " -S ", source.string(), " -B ", build, " -DHOTSWAP=", program().string(),
           " -DPython3_EXECUTABLE=", HOTSWAP_TEST_PYTHON));
  must(cat(HOTSWAP_TEST_CMAKE, " --build ", build));
  const auto variants = fs::directory_iterator(fs::canonical(source) / "build");
  ASSERT_EQ(std::distance(begin(variants), end(variants)), 1);
  const fs::path variant = fs::directory_iterator(fs::canonical(source) / "build")->path();
  const Outcome checked = run("kernel check --strict " + source.string());
  EXPECT_EQ(checked.status, 0) << checked.err;
  expect_has(checked.out, {"build.toml: good", "layers.json: good", variant.filename().string() + ": good"});

  // In this process, which has no Python: the op runs, is counted, and is the function that it says.
  const Manifest manifest = read_manifest(variant);
  const Package& package = load_package(manifest);
  const at::Tensor x = at::arange(-6, 6, at::kFloat).reshape({3, 4}).t();
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow((manifest.id + "::silu").c_str(), "")
                      .typed<at::Tensor(const at::Tensor&)>();
  EXPECT_TRUE(at::allclose(op.call(x), at::silu(x), 1e-5, 1e-6));
  EXPECT_EQ(package.calls("silu"), 1);

  // And in Python, through its own test.
  if (python_has_kernels()) {
    must(cat(HOTSWAP_TEST_CTEST, " --test-dir ", build, " --verbose"));
    expect_has(read_file(file("log")), {"test_values_and_gradients_match_float64 passed", "100% tests passed"});
  }

  // Its own name on the Hub is where it is installed.
  const Outcome installed = run_with("env HF_HOME=" + file("home").string() + " ", "kernel install " + source.string());
  ASSERT_EQ(installed.status, 0) << installed.err;
  expect_has(installed.out, {"acme/my-silu version 1", variant.filename().string()});
  EXPECT_TRUE(fs::is_regular_file(file("home") / "hub/kernels--acme--my-silu/refs/v1"));

  // What does not compile leaves the built package as it is.
  write_file(source / "my_silu_cpu.cpp", "nonsense");
  const Outcome broken = run("kernel build " + source.string());
  EXPECT_EQ(broken.status, 1);
  expect_has(broken.err, {"to compile my_silu_cpu.cpp", "nonsense"});
  verify_digest(manifest);
  for (const auto& entry : fs::directory_iterator(source / "build")) EXPECT_EQ(entry.path(), variant);
}

// The only variant below a package's build/.
fs::path variant_of(const fs::path& package) { return fs::directory_iterator(package / "build")->path(); }

// The same sources give the same bytes, wherever they lie; and what is not compiled or staged is nobody's business.
TEST_F(Cli, BuildsAreReproducible) {
  const fs::path one = file("one/pack"), two = file("another, deeper/place/pack");
  ASSERT_EQ(run("kernel init " + one.string()).status, 0);
  // A header of its own, and a message that names its file.
  write_file(one / "pack_cpu.cpp",
             "#include <stdexcept>\n#include \"more/extra.h\"\n" + read_file(one / "pack_cpu.cpp"));
  fs::create_directories(one / "more");
  write_file(one / "more/extra.h",
             "inline const char* where(int n) { return n > 0 ? __FILE__ : throw std::runtime_error(__FILE__); }\n");
  fs::create_directories(two.parent_path());
  fs::copy(one, two, fs::copy_options::recursive);
  const auto build = [&](const fs::path& package, const std::string& environment = "") {
    const Outcome built = run_with(environment, "kernel build '" + package.string() + "'");
    if (built.status != 0) throw std::runtime_error(built.err);
    return read_manifest(variant_of(package));
  };
  const Manifest first = build(one), second = build(two, "env 'CXX=env LC_ALL=C c++' ");
  EXPECT_EQ(first.id, second.id);
  EXPECT_EQ(first.metadata_text, second.metadata_text) << "the digest of every file";
  EXPECT_EQ(read_file(first.library()), read_file(second.library()));
  EXPECT_EQ(read_file(first.library()).find(file("one").string()), std::string::npos);

  for (const char* inside : {"more/extra.h", "torch-ext/pack/layers.py", "layers.json", "pack_cpu.cpp"}) {
    const std::string before = read_file(two / inside);
    write_file(two / inside, before + "\n");
    EXPECT_NE(build(two).id, first.id) << inside;
    write_file(two / inside, before);
  }
  for (const char* outside : {"CARD.md", "tests/test_pack.py", "CMakeLists.txt", "notes.txt"}) {
    write_file(two / outside, "changed");
  }
  fs::create_directories(two / "build/.staging.01234567/objects");
  EXPECT_EQ(build(two).id, first.id) << "of what is inside as before, and of what is outside as never before";
  EXPECT_FALSE(fs::exists(two / "build/.staging.01234567")) << "of a build that was killed";
}

TEST_F(Cli, CheckReadsLayersAndWhatTheLibraryRegisters) {
  const fs::path source = file("pack");
  ASSERT_EQ(run("kernel init " + source.string()).status, 0);
  ASSERT_EQ(run("kernel build " + source.string()).status, 0);
  const fs::path variant = variant_of(source);
  const std::string good = read_file(source / "layers.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  struct Case {
    std::string layers;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
      {"{ broken", {"layers.json"}},
      {with("activation/1", "activation/99"), {"activation/99", "a contract that"}},
      {with("\"forward\": \"silu\"", "\"forward\": \"gelu\""), {"::gelu is not registered"}}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.layers);
    write_file(source / "layers.json", one.layers);
    const std::string before = read_file(variant / "layers.json");
    const Outcome build = run("kernel build " + source.string());
    EXPECT_EQ(build.status, 1) << build.out;
    for (const std::string& text : one.says) expect_has(build.err, {text});
    EXPECT_EQ(read_file(variant / "layers.json"), before) << "not replaced";
    write_file(source / "layers.json", good);

    write_file(variant / "layers.json", one.layers);
    ASSERT_EQ(run("kernel hash " + variant.string()).status, 0);
    const Outcome check = run("kernel check " + source.string());
    EXPECT_EQ(check.status, 1) << check.out;
    for (const std::string& text : one.says) expect_has(check.out, {text});
  }
  // The last of these is wrong in nothing that files say.
  const Outcome files = run("kernel check --files-only " + variant.string());
  EXPECT_EQ(files.status, 0) << files.out;
  expect_has(files.out, {"not checked: the ops that its library registers"});
  EXPECT_EQ(run("kernel check --files-only --strict " + variant.string()).status, 1);

  // A library that ends its process.
  write_file(variant / "layers.json", good);
  write_file(source / "pack_cpu.cpp",
             read_file(source / "pack_cpu.cpp") +
                 "#include <cstdlib>\n__attribute__((constructor)) static void end() { std::_Exit(7); }\n");
  expect_has(run("kernel build " + source.string()).err, {"ended with status 7"});
}

TEST_F(Cli, NamesThatAPackageCannotHave) {
  for (const char* name : {"class", "namespace", "static-cast", "lambda", "torch", "std"}) {
    const Outcome refused = run("kernel init " + file(name).string());
    EXPECT_EQ(refused.status, 1) << name;
    expect_has(refused.err, {cat("'", name, "', which means something else")});
    EXPECT_FALSE(fs::exists(file(name)));
  }
  for (const char* repo : {"not_a_repo", "a/b/c", "acme/"}) {
    EXPECT_EQ(run(cat("kernel init ", file("fine").string(), " --repo ", repo)).status, 1) << repo;
    EXPECT_FALSE(fs::exists(file("fine")));
  }
  EXPECT_EQ(run("kernel init " + file("class").string() + " --name my-class").status, 0);
}

TEST_F(Cli, WhatCannotBeBuiltSaysWhy) {
  const fs::path source = file("pack");
  ASSERT_EQ(run("kernel init " + source.string()).status, 0);
  const std::string toml = read_file(source / "build.toml");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = toml;
    text.replace(text.find(from), from.size(), to);
    write_file(source / "build.toml", text);
    const Outcome outcome = run("kernel build " + source.string());
    EXPECT_EQ(outcome.status, 1);
    return outcome.err;
  };
  expect_has(with("stable-abi = \"2.10\"", ""), {"torch.stable-abi: none"});
  expect_has(with("stable-abi = \"2.10\"", "stable-abi = \"2.9\""), {"2.10 or newer"});
  expect_has(with("backends = [\"cpu\"]", "backends = [\"cuda\"]"), {"no cpu"});
  expect_has(with("pack_cpu.cpp", "none.cpp"), {"no file none.cpp"});
  expect_has(with("name = \"pack\"", "name = \"other\""), {"torch-ext/other"});
  write_file(source / "build.toml", toml);
  const Outcome compiler = run_with("env CXX=/nowhere/c++ ", "kernel build " + source.string());
  EXPECT_EQ(compiler.status, 1);
  expect_has(compiler.err, {"/nowhere/c++"});
  EXPECT_TRUE(!fs::exists(source / "build") || fs::is_empty(source / "build"));
}

// An installed package through Python's own kernels, offline, and through the cache's own verbs.
TEST_F(Cli, InstalledPackagesAreFoundOffline) {
  const OutJson norm = run_json("kernel info norm --json");
  const fs::path package = fs::path(norm["path"].get<std::string>()).parent_path().parent_path();
  const std::string at = "env HF_HOME=" + file("home").string() + " HF_HUB_OFFLINE=1 ";
  const auto offline = [&](const std::string& arguments) { return run_with(at, arguments); };
  const Outcome unnamed = offline("kernel install " + package.string());
  EXPECT_EQ(unnamed.status, 1);
  EXPECT_NE(unnamed.err.find("--as ORG/NAME"), std::string::npos) << unnamed.err;
  const Outcome installed = offline("kernel install " + package.string() + " --as acme/norm --json");
  ASSERT_EQ(installed.status, 0) << installed.err;
  const OutJson done = OutJson::parse(installed.out);
  EXPECT_EQ(keys(done), (Keys{"bytes", "commit", "path", "replaced", "repo", "variants", "version"}));

  const OutJson listed = OutJson::parse(offline("cache ls --json").out);
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(keys(listed[0]), (Keys{"bytes", "name", "path", "revisions", "type", "unfinished"}));
  EXPECT_EQ(listed[0]["name"], "acme/norm");
  EXPECT_EQ(listed[0]["revisions"][0]["commit"], done["commit"]);
  EXPECT_EQ(listed[0]["revisions"][0]["refs"], OutJson::array({"v1"}));
  EXPECT_EQ(listed[0]["revisions"][0]["bytes"], done["bytes"]);
  EXPECT_NE(offline("cache ls").out.find("acme/norm"), std::string::npos);
  EXPECT_EQ(offline("cache verify").status, 0);

  write_file(file("use.py"),
             "import kernels, torch\n"
             "norm = kernels.get_kernel('acme/norm', version=1, backend='cpu')\n"
             "x, w = torch.arange(12.).reshape(3, 4), torch.ones(4)\n"
             "want = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)\n"
             "before = norm._ops.ops.call_count('rms_norm')\n"
             "torch.testing.assert_close(norm.rms_norm(x, w, 1e-6, 0.0, 'llama'), want)\n"
             "assert norm._ops.ops.call_count('rms_norm') == before + 1\n"
             "print(norm.__file__)\n");
  const std::string python = HOTSWAP_TEST_PYTHON;
  if (python_has_kernels()) {
    const std::string line = "env -u KERNELS_CACHE -u LOCAL_KERNELS -u HF_HUB_CACHE HF_HOME=" + file("home").string() +
                             " HF_HUB_OFFLINE=1 " + python + " " + file("use.py").string() + " >" +
                             file("python").string() + " 2>&1";
    EXPECT_EQ(std::system(line.c_str()), 0) << read_file(file("python"));
    EXPECT_NE(read_file(file("python")).find(done["path"].get<std::string>()), std::string::npos)
        << "from the cache, not from elsewhere: " << read_file(file("python"));
  }

  // One byte of a blob: found, named, removed.
  const fs::path library = fs::canonical(fs::path(done["path"].get<std::string>()) / "build" /
                                         done["variants"][0].get<std::string>() / "layers.json");
  std::string bytes = read_file(library);
  bytes[0] = ' ';
  write_file(library, bytes);
  const Outcome broken = offline("cache verify --json");
  EXPECT_EQ(broken.status, 1);
  EXPECT_EQ(OutJson::parse(broken.out)["problems"][0]["path"], library.string());
  EXPECT_EQ(offline("cache verify --remove acme/norm").status, 1);
  EXPECT_FALSE(fs::exists(library));
  EXPECT_EQ(offline("cache rm acme/nothing").status, 1);
  EXPECT_EQ(offline("cache rm acme/norm@v7").status, 1);
  EXPECT_EQ(offline("cache rm ../../acme").status, 1);
  EXPECT_NE(offline("cache rm acme/norm@v1 --dry-run").out.find("would remove"), std::string::npos);
  EXPECT_EQ(OutJson::parse(offline("cache rm acme/norm --json").out)["kept"], OutJson::array());
  EXPECT_EQ(OutJson::parse(offline("cache ls --json").out), OutJson::array());
}

}  // namespace
}  // namespace hotswap
