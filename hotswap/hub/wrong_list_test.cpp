// A list of files that a server or a proxy once told wrongly: an honest server mends it, nothing else must be done.
#include "hotswap/hub/test_download.h"
#include "hotswap/hub/verify_file_lists.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::Asked;
using test_support::expect_has;
using test_support::File;
using test_support::hash_of;
using test_support::kRepo;
using test_support::kSha;
using test_support::message_of;
using test_support::noise;
using test_support::options_for;
using test_support::Peer;
using test_support::ScriptServer;
using test_support::TempFolder;

std::string entry(const std::string& path, const std::string& sha256, int64_t size) {
  return cat(R"({"type":"file","path":")", path, R"(","oid":")", std::string(40, '0'), R"(","size":)", size,
             R"(,"lfs":{"oid":")", sha256, R"(","size":)", size, "}}");
}

// x.bin of acme/tiny, whose list says what the test lets it say.
class WrongList : public testing::Test {
 protected:
  const File file{noise(100 << 10)};
  const std::string right = entry("x.bin", file.etag, static_cast<int64_t>(file.content.size()));
  std::string list = right;  // between the brackets
  std::string link = {};     // the first page's header
  TempFolder folder;
  ScriptServer server{[this](const Asked& asked, const Peer& peer) {
    const std::string json = "Content-Type: application/json";
    if (asked.target.find("/revision/") != std::string::npos)
      return peer.answer(200, {json}, R"({"sha":")" + kSha + "\"}");
    if (asked.target.find("page=2") != std::string::npos) return peer.answer(200, {json}, "[" + right + "]");
    if (asked.target.find("/tree/") != std::string::npos) {
      return peer.answer(200, link.empty() ? std::vector{json} : std::vector{json, "Link: " + link}, "[" + list + "]");
    }
    if (asked.target.ends_with("/x.bin")) return file.serve(asked, peer);
    peer.answer(404, {"X-Error-Code: EntryNotFound"});
  }};
  fs::path snapshot() {
    Hub hub(options_for(server.url(), folder.path()));
    return hub.snapshot(kRepo, kSha);
  }
  size_t lists_asked() const {
    size_t n = 0;
    for (const Asked& one : server.asked()) n += one.target.find("/tree/") == std::string::npos ? 0 : 1;
    return n;
  }
};

TEST_F(WrongList, AWrongHashOrSizeOrNameIsAskedAgain) {
  const auto size = static_cast<int64_t>(file.content.size());
  for (const std::string& wrong :
       {entry("x.bin", hash_of("other"), size), entry("x.bin", file.etag, size + 7),
        entry("x.bin", file.etag, size - 7), right + "," + entry("phantom.bin", hash_of("phantom"), 7)}) {
    fs::remove_all(folder.path() / "models--acme--tiny");
    list = wrong;
    EXPECT_NE(message_of([&] { snapshot(); }), "no error") << wrong;
    const size_t before = lists_asked();
    list = right;  // the server has come to its senses
    EXPECT_EQ(read_file(snapshot() / "x.bin"), file.content) << wrong;
    EXPECT_EQ(lists_asked(), before + 1);
    snapshot();
    EXPECT_EQ(lists_asked(), before + 1) << "the right list is kept";
  }
}

TEST_F(WrongList, AListThatStaysTheSameIsAskedOnceMoreAndNoMore) {
  list = entry("x.bin", hash_of("other"), static_cast<int64_t>(file.content.size()));
  expect_has(message_of([&] { snapshot(); }), {"hash " + hash_of("other")});
  EXPECT_EQ(lists_asked(), 2u) << "once to know it, once to hold it against";
}

TEST_F(WrongList, AListOfOneFullPageMayBeCutAndIsNotKept) {
  list = entry("f0", hash_of("none"), 0);
  for (int i = 1; i < 1000; ++i) list += "," + entry(cat("f", i), hash_of("none"), 0);
  Hub hub(options_for(server.url(), folder.path()));
  EXPECT_EQ(hub.tree(kRepo, kSha).size(), 1000u);  // the header that names page 2 is lost
  link = "<" + server.url() + "/page=2>; rel=\"next\"";
  EXPECT_EQ(hub.tree(kRepo, kSha).size(), 1001u);
  const size_t before = lists_asked();
  EXPECT_EQ(hub.tree(kRepo, kSha).size(), 1001u);
  EXPECT_EQ(lists_asked(), before) << "a whole list is kept";
}

TEST_F(WrongList, SizesThatNoFileHasAreRefused) {
  for (const char* size : {"1000000000000000000", "9223372036854775807", "1e18", "99999999999999999999", "-1"}) {
    list = cat(R"({"type":"file","path":"x.bin","oid":")", std::string(40, '0'), R"(","size":)", size, "}");
    expect_has(message_of([&] { snapshot(); }), {"size"});
  }
}

TEST_F(WrongList, IsFoundByAskingTheHub) {
  snapshot();
  Hub hub(options_for(server.url(), folder.path()));
  const HubCache& cache = hub.cache(kRepo);
  const auto problems = [&] { return verify_file_lists(hub, *list_repo(cache, kRepo)).problems; };
  EXPECT_TRUE(problems().empty());
  for (const std::string& other :
       {entry("x.bin", hash_of("other"), 5), std::string(), right + "," + entry("y.bin", hash_of("y"), 1)}) {
    list = other;
    const auto found = problems();
    ASSERT_FALSE(found.empty()) << other;
    EXPECT_EQ(found[0].file, folder.path() / "models--acme--tiny/trees" / (kSha + ".json"));
    EXPECT_TRUE(found[0].wrong_content);
  }
  remove_wrong(cache, kRepo, {.problems = problems()});
  EXPECT_EQ(hub.tree(kRepo, kSha).size(), 2u) << "asked again";
  EXPECT_TRUE(problems().empty());
}

}  // namespace
}  // namespace hotswap
