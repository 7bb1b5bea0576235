#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hotswap/base/json.h"
#include "hotswap/base/progress.h"
#include "hotswap/base/result.h"
#include "hotswap/base/sha256.h"
#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

using test_support::message_of;
using test_support::ScopedEnv;
using test_support::TempFolder;

// Leaving out .next does not compile; "" as a literal does not, either.
static_assert(!std::is_default_constructible_v<NextStep>);

TEST(Error, SaysWhatWasWantedWhatCameAndWhatToDoNext) {
  const auto text = [](NextStep next) {
    return std::string(Error({.kind = ErrorKind::kInvalidArgument, .wanted = "a", .got = "b", .next = next}).what());
  };
  const char* pointer = "c";
  EXPECT_EQ(text("c"), "expected a; got b; c");
  EXPECT_EQ(text(pointer), "expected a; got b; c");
  EXPECT_EQ(text(std::string("c")), "expected a; got b; c");
  for (const NextStep& empty : {NextStep(std::string()), NextStep(pointer + 1)}) {
    EXPECT_NE(text(empty).find("; report it: "), std::string::npos) << "made at run time";
  }
}

TEST(Cat, PrintsWhatAStreamPrints) {
  const char* pointer = "pointer";
  const std::string text = "text";
  const std::filesystem::path path = "a/b";
  std::ostringstream stream;
  stream << "literal " << pointer << text << std::string_view(text).substr(1) << 'c' << -7 << uint64_t{1} << true << 0.1
         << 1e-7f << path;
  EXPECT_EQ(
      cat("literal ", pointer, text, std::string_view(text).substr(1), 'c', -7, uint64_t{1}, true, 0.1, 1e-7f, path),
      stream.str());
  EXPECT_EQ(cat(), "");
}

TEST(Json, NamesTheKeyThatIsMissingOrWrong) {
  const Json json = Json::parse(R"({"a": {"b": 1.5, "c": "x"}, "n": null, "e": 1e4})", "config.json");
  EXPECT_EQ(json.at<int64_t>("e"), 10000);
  EXPECT_EQ(json.get<int64_t>("n", 7), 7);
  EXPECT_NE(message_of([&] { json.child("a").at<int64_t>("b"); }).find("config.json: a.b"), std::string::npos);
  EXPECT_NE(message_of([&] { json.at<bool>("z"); }).find("key 'z' in config.json"), std::string::npos);
  EXPECT_NE(message_of([&] { json.only({"a", "n"}); }).find("key 'e'"), std::string::npos);
}

TEST(Json, RefusesHostileText) {
  EXPECT_NE(message_of([] { Json::parse(R"({"a": 1, "a": 2})", "x"); }).find("'a' twice"), std::string::npos);
  EXPECT_NE(message_of([] { Json::parse(std::string(100000, '['), "x"); }).find("nested"), std::string::npos);
  EXPECT_NE(message_of([] { Json::parse("{\"a\": ", "x"); }).find("valid JSON"), std::string::npos);
  EXPECT_NE(message_of([] { Json::parse("[18446744073709551615]", "x").elements()[0].as<int64_t>(); }).find("2^63"),
            std::string::npos);
}

// Quadratic in the keys it would take minutes.
TEST(Json, ReadsManyKeys) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += cat(i == 0 ? "" : ",", "\"key ", 1000000 + i, "\":", i);
  const Json json = Json::parse(text + "}", "x");
  EXPECT_EQ(json.raw().size(), 200000u);
  EXPECT_EQ(json.at<int64_t>("key 1199999"), 199999);
}

TEST(Json, ReadsTomlIntoTheSameTree) {
  const TempFolder folder;
  write_file(folder / "build.toml", "[general]\nname = \"norm\"\nbackends = [\"cpu\"]\nday = 2024-01-02\n");
  const Json toml = Json::read_toml(folder / "build.toml");
  EXPECT_EQ(toml.child("general").at<std::string>("name"), "norm");
  EXPECT_EQ(toml.child("general").at<std::string>("day"), "2024-01-02");
  EXPECT_EQ(toml.child("general").at<std::vector<std::string>>("backends"), std::vector<std::string>{"cpu"});
}

TEST(Json, RefusesHostileToml) {
  const TempFolder folder;
  const auto refusal = [&](const std::string& text) {
    write_file(folder / "x.toml", text);
    return message_of([&] { Json::read_toml(folder / "x.toml"); });
  };
  const auto repeated = [](const std::string& piece, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += piece;
    return text;
  };
  const std::string brackets = repeated("[", 1000);
  EXPECT_EQ(
      refusal("a = \"" + brackets + "\" # " + brackets + "\nb = '''\n" + brackets + "\n'''\nc = [[1.5], [2.5]]\n"),
      "no error");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a = " + repeated("[", 100000), "nesting"},
      {"a = " + repeated("{b=", 100000), "nesting"},
      {"a" + repeated(".a", 100000) + " = 1", "nesting"},
      {"a" + repeated(" . \"a\"", 100000) + " = 1", "nesting"},
      {"a = 1\na = 2\n", "at line"},
      {"[t]\na = 1\n[t]\nb = 2\n", "TOML"},
      {"a = \"x", "at line 1"},
      {"ok = 1\n\na = \n", "at line 3"},
      {"a = 99999999999999999999999\n", "64 bits"},
      {"a = -99999999999999999999999\n", "64 bits"},
      {"a = 0xffffffffffffffffff\n", "64 bits"},
      {"a = \"\xff\xfe\"\n", "UTF-8"},
      {std::string("a = \0 1\n", 8), "TOML"},
      {"a = \"\"\"x", "TOML"},
      {"= 1\n", "TOML"},
      {repeated("#", 2 << 20), "bytes"}};
  for (const auto& [text, wanted] : cases) {
    EXPECT_NE(refusal(text).find(wanted), std::string::npos) << text.substr(0, 60) << " gave " << refusal(text);
  }
}

TEST(File, AnAbandonedWriteLeavesNothing) {
  const TempFolder folder;
  write_file(folder / "a.txt", "old");
  {
    AtomicFile out(folder / "a.txt");
    out.write("new");
  }
  EXPECT_EQ(read_file(folder / "a.txt"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
  write_file(folder / "a.txt", "new");
  EXPECT_EQ(read_file(folder / "a.txt"), "new");
  replace_file(folder / "b/c.txt", "made with its folder");
  EXPECT_EQ(read_file(folder / "b/c.txt"), "made with its folder");
  const MappedFile map(folder / "a.txt");
  EXPECT_EQ(std::string(map.bytes().begin(), map.bytes().end()), "new");
  EXPECT_NE(message_of([&] { read_file(folder.path()); }).find("regular file"), std::string::npos);
  EXPECT_NE(message_of([&] { read_file(folder / "no.txt"); }).find("No such file"), std::string::npos);
  EXPECT_EQ(read_file_if_there(folder / "no.txt"), std::nullopt);
  EXPECT_EQ(read_file_if_there(folder / "a.txt"), "new");
  EXPECT_NE(message_of([&] { read_file_if_there(folder.path()); }).find("regular file"), std::string::npos);
}

TEST(File, HasTheModeThatTheUmaskAsksFor) {
  const TempFolder folder;
  const mode_t before = ::umask(0027);
  write_file(folder / "a.txt", "x");
  ::umask(before);
  EXPECT_EQ(fs::status(folder / "a.txt").permissions(), fs::perms(0640));
}

TEST(File, OneProcessHoldsTheLock) {
  const TempFolder folder;
  {
    // Forked before the lock is taken: a flock belongs to the open file, which a child would inherit.
    int go[2];
    ASSERT_EQ(::pipe(go), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      char byte = 0;
      if (::read(go[0], &byte, 1) != 1) ::_exit(1);
      FileLock waits(folder / "lock");
      write_file(folder / "child", "x");
      ::_exit(0);
    }
    auto lock = std::make_unique<FileLock>(folder / "lock");
    ASSERT_EQ(::write(go[1], "x", 1), 1);
    ::usleep(100000);
    EXPECT_FALSE(fs::exists(folder / "child"));
    lock.reset();
    int status = 1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(fs::exists(folder / "child"));
  }
}

TEST(Sha256, KnownVectors) {
  const std::string text = "hello world";
  const auto digest = sha256({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  EXPECT_EQ(to_base64(digest), "uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek=");
  EXPECT_EQ(to_hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Env, FlagsAreStrict) {
  {
    const ScopedEnv off("USE_HUB_KERNELS", "off");
    EXPECT_FALSE(env_flag(EnvVar::kUseHubKernels, true));
  }
  {
    const ScopedEnv maybe("USE_HUB_KERNELS", "maybe");
    EXPECT_NE(message_of([] { env_flag(EnvVar::kUseHubKernels, true); }).find("USE_HUB_KERNELS"), std::string::npos);
  }
  const ScopedEnv unset("USE_HUB_KERNELS", std::nullopt);
  EXPECT_TRUE(env_flag(EnvVar::kUseHubKernels, true));
  for (const EnvRow& row : env_table()) EXPECT_STREQ(env_name(row.variable), row.name);
}

TEST(Result, SaysWhyThereIsNoValue) {
  Result<int> none = Reason{"no such package"};
  EXPECT_FALSE(none);
  EXPECT_NE(message_of([&] { (void)*none; }).find("no such package"), std::string::npos);
  EXPECT_EQ(*Result<int>(3), 3);
}

TEST(Progress, OneLineOfText) {
  EXPECT_EQ(progress_text("train", 12, 24, 4.0, "loss 2.1"),
            "train [############............]  50% 12/24 3/s 4s left  loss 2.1");
}

}  // namespace
}  // namespace hotswap
