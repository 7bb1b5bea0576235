// The cache's layout, byte for byte; TTLs; links and their stand-ins; locks.
#include "hotswap/hub/cache/cache.h"

#include <atomic>
#include <thread>

#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::message_of;
using test_support::TempFolder;

const std::string kCachedCommit(40, 'a'), kOther(40, 'b');
const Repo kCached{RepoType::kKernel, "org/name"};

void put_blob(const HubCache& cache, const std::string& etag, const std::string& content) {
  cache.prepare(kCached);
  write_file(cache.blob(kCached, etag), content);
}

TEST(Cache, Places) {
  const TempFolder folder;
  const HubCache cache(folder.path(), true);
  const fs::path repo = folder.path() / "kernels--org--name";
  EXPECT_EQ(cache.blob(kCached, "e"), repo / "blobs/e");
  EXPECT_EQ(cache.snapshot(kCached, kCachedCommit), repo / "snapshots" / kCachedCommit);
  EXPECT_EQ(cache.lock_file(kCached, "e"), folder.path() / ".locks/kernels--org--name/e.lock");
  EXPECT_NE(message_of([&] { cache.snapshot(kCached, "../x"); }), "no error");
  EXPECT_NE(message_of([&] { cache.blob(kCached, "../x"); }), "no error");
  cache.prepare(kCached);
  EXPECT_EQ(read_file(folder.path() / "CACHEDIR.TAG").substr(0, 43), "Signature: 8a477f597d28d172789f06886806bc55");
}

TEST(Cache, Refs) {
  const TempFolder folder;
  const HubCache cache(folder.path(), true);
  EXPECT_EQ(cache.read_ref(kCached, "main"), std::nullopt);
  EXPECT_EQ(cache.read_ref(kCached, kCachedCommit), kCachedCommit);
  cache.write_ref(kCached, kCachedCommit, kCachedCommit);
  EXPECT_FALSE(fs::exists(cache.folder(kCached) / "refs" / kCachedCommit)) << "a commit needs none";
  cache.begin_snapshot(kCached, kCachedCommit);
  cache.begin_snapshot(kCached, kOther);
  cache.write_ref(kCached, "refs/pr/1", kCachedCommit);
  EXPECT_EQ(read_file(cache.folder(kCached) / "refs/refs/pr/1"), kCachedCommit) << "40 characters, no line end";
  cache.write_ref(kCached, "main", kCachedCommit);
  cache.write_ref(kCached, "main", kOther);
  EXPECT_EQ(cache.read_ref(kCached, "main"), kOther);
  EXPECT_EQ(cache.refs(kCached), (std::vector<std::string>{"main", "refs/pr/1"}));
  const fs::path file = cache.folder(kCached) / "refs/main";
  fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(cache.read_ref(kCached, "main", 600), std::nullopt) << "too old";
  EXPECT_EQ(cache.read_ref(kCached, "main"), kOther);
  cache.write_ref(kCached, "main", kOther);
  EXPECT_EQ(cache.read_ref(kCached, "main", 600), kOther) << "confirmed: young again";
  fs::last_write_time(file, fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(cache.read_ref(kCached, "main", 600), std::nullopt) << "from the future";
  write_file(file, "half of a com");
  EXPECT_EQ(cache.read_ref(kCached, "main"), std::nullopt);
  EXPECT_NE(message_of([&] { cache.write_ref(kCached, "../../x", kCachedCommit); }), "no error");
}

// Python's tools take a name without a snapshot for a corrupted repository.
TEST(Cache, ANameIsNoRefBeforeAFileIsHere) {
  const TempFolder folder;
  const HubCache cache(folder.path(), true);
  const fs::path refs = cache.folder(kCached) / "refs";
  cache.begin_snapshot(kCached, kOther);
  cache.write_ref(kCached, "v1", kOther);
  cache.write_ref(kCached, "v1", kCachedCommit);  // it has moved on
  cache.write_ref(kCached, "refs/pr/1", kCachedCommit);
  EXPECT_EQ(cache.refs(kCached), (std::vector<std::string>{"v1"}));
  EXPECT_EQ(read_file(refs / "v1"), kOther);
  EXPECT_EQ(cache.read_ref(kCached, "v1", 600), kCachedCommit) << "the last word";
  EXPECT_EQ(cache.read_ref(kCached, "v1"), kOther) << "what is here, where nobody can be asked";
  EXPECT_EQ(cache.read_ref(kCached, "refs/pr/1"), kCachedCommit);
  put_blob(cache, "e1", "one");
  cache.publish(kCached, kCachedCommit, "a", "e1", true);
  EXPECT_EQ(cache.refs(kCached), (std::vector<std::string>{"refs/pr/1", "v1"}));
  EXPECT_EQ(read_file(refs / "v1"), kCachedCommit);
  EXPECT_EQ(cache.read_ref(kCached, "v1"), kCachedCommit);
  cache.write_ref(kCached, "v1", std::string(40, '7'));
  cache.write_ref(kCached, "v1", kCachedCommit);  // and back again
  EXPECT_EQ(cache.read_ref(kCached, "v1", 600), kCachedCommit);
}

// Names move where Python's tools see them while somebody else reads them.
TEST(Cache, ARefIsFoundWhileItMoves) {
  for (int round = 0; round < 60; ++round) {
    const double max_age_s = round % 2 == 0 ? -1 : 600;
    const TempFolder folder;
    const HubCache cache(folder.path(), true);
    std::vector<std::string> names;
    for (int i = 0; i < 20; ++i) names.push_back(cat("v", i));
    for (const std::string& name : names) cache.write_ref(kCached, name, kCachedCommit);
    std::atomic<bool> moved = false;
    const std::jthread mover([&] {
      cache.begin_snapshot(kCached, kCachedCommit);
      moved = true;
    });
    do {
      for (const std::string& name : names)
        ASSERT_EQ(cache.read_ref(kCached, name, max_age_s), kCachedCommit) << max_age_s;
    } while (!moved);
  }
}

TEST(Cache, LinksAreRelativeAndRepaired) {
  const TempFolder folder;
  const HubCache cache(folder.path(), true);
  put_blob(cache, "e1", "one");
  put_blob(cache, "e2", "two");
  EXPECT_EQ(cache.find(kCached, kCachedCommit, "build/v/a.py"), std::nullopt);
  const fs::path place = cache.publish(kCached, kCachedCommit, "build/v/a.py", "e1", true);
  EXPECT_EQ(fs::read_symlink(place), "../../../../blobs/e1");
  EXPECT_EQ(cache.find(kCached, kCachedCommit, "build/v/a.py"), place);
  EXPECT_EQ(fs::read_symlink(cache.publish(kCached, kCachedCommit, "b", "e2", true)), "../../blobs/e2");
  cache.publish(kCached, kCachedCommit, "b", "e1", false);
  EXPECT_EQ(read_file(cache.snapshot(kCached, kCachedCommit) / "b"), "one");
  fs::remove(cache.blob(kCached, "e1"));
  EXPECT_EQ(cache.find(kCached, kCachedCommit, "b"), std::nullopt) << "a dead link is no file";
  cache.publish(kCached, kCachedCommit, "b", "e2", false);
  EXPECT_EQ(read_file(*cache.find(kCached, kCachedCommit, "b")), "two");
  EXPECT_NE(message_of([&] { cache.publish(kCached, kCachedCommit, "../b", "e2", false); }), "no error");
  EXPECT_NE(message_of([&] { cache.publish(kCached, kCachedCommit, "b/c", "e2", false); }), "no error")
      << "b is a file";
}

TEST(Cache, WithoutLinks) {
  const TempFolder folder;
  const HubCache cache(folder.path(), false);
  put_blob(cache, "e1", "one");
  const fs::path place = cache.publish(kCached, kCachedCommit, "a", "e1", true);
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(place)));
  EXPECT_FALSE(fs::exists(cache.blob(kCached, "e1"))) << "moved, not copied";
  put_blob(cache, "e2", "two");
  cache.publish(kCached, kOther, "a", "e2", false);
  EXPECT_TRUE(fs::exists(cache.blob(kCached, "e2"))) << "an old blob is copied";
  EXPECT_EQ(read_file(*cache.find(kCached, kOther, "a")), "two");
}

TEST(Cache, AbsentFiles) {
  const TempFolder folder;
  const HubCache cache(folder.path(), true);
  EXPECT_FALSE(cache.known_absent(kCached, kCachedCommit, "a/b"));
  cache.mark_absent(kCached, kCachedCommit, "a/b");
  EXPECT_TRUE(cache.known_absent(kCached, kCachedCommit, "a/b"));
  EXPECT_TRUE(fs::exists(folder.path() / "kernels--org--name/.no_exist" / kCachedCommit / "a/b"));
}

TEST(Cache, TreesAsPythonWritesThem) {
  const TempFolder folder;
  const HubCache cache(folder.path(), true);
  const Repo kModel{RepoType::kModel, "org/name"};
  cache.write_tree(kModel, kCachedCommit,
                   {{.path = "b", .size = 7, .oid = "0b", .sha256 = "5a", .lfs_size = 7, .xet_hash = ""},
                    {.path = "d", .folder = true},
                    {.path = "a", .size = 3, .oid = "0a"}});
  EXPECT_EQ(read_file(cache.folder(kModel) / "trees" / (kCachedCommit + ".json")),
            "{\n \"format_version\": 1,\n \"files\": {\n  \"a\": {\n   \"size\": 3,\n   \"blob_id\": \"0a\"\n  },\n  "
            "\"b\": {\n"
            "   \"size\": 7,\n   \"blob_id\": \"0b\",\n   \"lfs_sha256\": \"5a\",\n   \"lfs_size\": 7\n  }\n }\n}");
  const auto entries = cache.read_tree(kModel, kCachedCommit);
  ASSERT_TRUE(entries.has_value());
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ(entries->at(1).etag(), "5a");
  for (const char* wrong : {"", "{", R"({"format_version":2,"files":{}})",
                            R"({"format_version":1,"files":{"../x":{"size":1,"blob_id":"1"}}})"}) {
    write_file(cache.folder(kModel) / "trees" / (kCachedCommit + ".json"), wrong);
    EXPECT_FALSE(cache.read_tree(kModel, kCachedCommit).has_value()) << wrong;
  }
}

TEST(Cache, ListsOfKernelsAreOursAlone) {
  const TempFolder folder;
  const HubCache cache(folder.path(), true);
  const std::vector<TreeEntry> entries = {
      {.path = "b with blanks", .size = 7, .oid = "0b", .sha256 = "5a", .lfs_size = 8, .xet_hash = "1c"},
      {.path = "d", .folder = true},
      {.path = "build/x/y", .size = 3, .oid = "0a"}};
  cache.write_tree(kCached, kCachedCommit, entries);
  EXPECT_FALSE(fs::exists(cache.folder(kCached) / "trees")) << "Python would need every file of it offline";
  const fs::path file = cache.folder(kCached) / "hotswap/trees" / kCachedCommit;
  const std::string text = read_file(file);
  EXPECT_EQ(text, "files 2\n7 0b 5a 8 1c b with blanks\n3 0a - 0 - build/x/y\n");
  const auto expect_both = [&](const char* what) {
    const auto read = cache.read_tree(kCached, kCachedCommit);
    ASSERT_TRUE(read.has_value()) << what;
    ASSERT_EQ(read->size(), 2u) << what;
    const TreeEntry& large = read->at(0);
    EXPECT_EQ(cat(large.path, large.size, large.oid, large.sha256, large.lfs_size, large.xet_hash),
              "b with blanks70b5a81c");
    EXPECT_EQ(read->at(1).etag(), "0a") << what;
  };
  expect_both("ours");
  for (size_t size = 0; size < text.size(); ++size) {  // what a power cut may leave
    write_file(file, text.substr(0, size));
    EXPECT_FALSE(cache.read_tree(kCached, kCachedCommit).has_value()) << size;
  }
  for (const char* wrong : {"files 1\n3 0a - 0 - ../x\n", "files 1\n3 ../0a - 0 - x\n", "files 1\n-3 0a - 0 - x\n",
                            "files 1\n3 - - 0 - x\n", "files 1\n3 0a - 0 x\n", "files one\n", "file 0\n"}) {
    write_file(file, wrong);
    EXPECT_FALSE(cache.read_tree(kCached, kCachedCommit).has_value()) << wrong;
  }
  fs::remove(file);
  const Repo model{RepoType::kModel, kCached.id};
  cache.write_tree(model, kCachedCommit, entries);
  fs::rename(cache.folder(model) / "trees", cache.folder(kCached) / "trees");
  expect_both("Python's");
}

TEST(Cache, AnswersByKeyAndAge) {
  const TempFolder folder;
  const HubCache cache(folder.path(), true);
  cache.write_answer(kCached, "http://a refs", "{}");
  EXPECT_EQ(cache.read_answer(kCached, "http://a refs", 60), "{}");
  EXPECT_EQ(cache.read_answer(kCached, "http://b refs", 60), std::nullopt) << "another Hub's word";
  for (const auto& file : fs::directory_iterator(cache.folder(kCached) / "hotswap")) {
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::seconds(90));
  }
  EXPECT_EQ(cache.read_answer(kCached, "http://a refs", 60), std::nullopt);
  EXPECT_EQ(cache.read_answer(kCached, "http://a refs"), "{}") << "offline, any age will do";
}

TEST(CacheLock, OneAtATime) {
  const TempFolder folder;
  const fs::path file = folder.path() / "locks/x.lock";
  std::atomic<int> inside = 0, most = 0, turns = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        const CacheLock lock(file);
        most = std::max<int>(most, ++inside);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        --inside;
        ++turns;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(turns, 20);
}

TEST(CacheLock, AWaiterDoesNotHoldANameThatIsGone) {
  const TempFolder folder;
  const fs::path file = folder.path() / "x.lock";
  auto first = std::make_unique<CacheLock>(file);
  std::thread waiter([&] {
    const CacheLock second(file);
    EXPECT_TRUE(fs::exists(file));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  fs::remove(file);  // somebody cleans up
  first.reset();
  waiter.join();
}

}  // namespace
}  // namespace hotswap
