// The cache listed, verified and emptied: exact sizes, every kind of damage, nothing gone that was not named.
#include "hotswap/hub/cache/cache_management.h"

#include "hotswap/base/test_support.h"
#include "hotswap/hub/cache/cache_names_impl.h"
#include "hotswap/hub/hub.h"
#include "hotswap/hub/serve/server.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;

const Repo kManaged{RepoType::kModel, "acme/tiny"}, kManagedKernel{RepoType::kKernel, "acme/norm"};

// Two revisions of a model that share one file, and a kernel, downloaded.
class CacheManagement : public testing::Test {
 protected:
  void SetUp() override {
    served.write("models/acme/tiny/main/shared.bin", std::string(5000, 's'));
    served.write("models/acme/tiny/main/a.json", "{\"a\":1}");
    served.write("models/acme/tiny/v2.0/shared.bin", std::string(5000, 's'));
    served.write("models/acme/tiny/v2.0/a.json", "{\"a\":22}");
    served.write("kernels/acme/norm/v1/build/torch-universal/metadata.json", "{}");
    HubServer server({.folder = served.path(), .large_from = 1000});
    server.start();
    Hub hub({.endpoint = server.url(), .cache = store.path(), .kernels_cache = store.path(), .progress = false});
    hub.snapshot(kManaged, "main");
    hub.snapshot(kManaged, "v2.0");
    hub.snapshot(kManagedKernel, "v1");
    main = hub.commit(kManaged, "main");
    second = hub.commit(kManaged, "v2.0");
  }
  fs::path at(const std::string& path) const { return store.path() / "models--acme--tiny" / path; }
  fs::path blob(const std::string& commit, const std::string& file) const {
    return fs::canonical(at("snapshots/" + commit + "/" + file));
  }
  CacheVerdict verify() const { return verify_cached(cache, *list_repo(cache, kManaged)); }
  // Every file and link below the cache, for "nothing was touched".
  std::vector<std::string> all() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(store.path())) names.push_back(entry.path().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  TempFolder served, store;
  const HubCache cache{store.path(), true};
  std::string main, second;
};

TEST_F(CacheManagement, Lists) {
  fs::create_directories(store.path() / "models--not--a--name");
  fs::create_directories(store.path() / "unknown--acme--x");
  const auto all = list_cache(cache);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].repo, kManaged);
  EXPECT_EQ(all[1].repo, kManagedKernel);
  ASSERT_EQ(all[0].revisions.size(), 2u);
  for (const CachedRevision& revision : all[0].revisions) {
    const bool first = revision.commit == main;
    EXPECT_EQ(revision.refs, (std::vector<std::string>{first ? "main" : "v2.0"}));
    EXPECT_EQ(revision.files, 2);
    EXPECT_EQ(revision.bytes, first ? 5007 : 5008);
  }
  EXPECT_GT(all[0].bytes, 5015);
  EXPECT_LT(all[0].bytes, 5015 + 3000) << "the shared blob once; refs, trees and answers besides";
  EXPECT_TRUE(all[0].unfinished.empty());
  EXPECT_EQ(list_repo(cache, {RepoType::kModel, "acme/none"}), std::nullopt);
  EXPECT_NE(message_of([&] { list_repo(cache, {RepoType::kModel, "../x"}); }), "no error");
}

TEST_F(CacheManagement, VerifyHashesEverything) {
  const CacheVerdict good = verify();
  EXPECT_TRUE(good.problems.empty());
  EXPECT_EQ(good.files, 3);
  EXPECT_EQ(good.bytes, 5015);
  EXPECT_EQ(good.unknown, 0);

  const fs::path shared = blob(main, "shared.bin");
  write_file(shared, std::string(4999, 's') + "t");  // one byte, of the same size
  write_file(at("blobs/made-up"), "x");
  fs::create_symlink("/etc/passwd", at("snapshots/" + main + "/absolute"));
  fs::create_symlink("../../../../outside", at("snapshots/" + main + "/outside"));
  fs::create_symlink("../../blobs/gone", at("snapshots/" + main + "/gone"));
  fs::remove(at("snapshots/" + main + "/a.json"));
  fs::create_symlink(fs::path("../../blobs") / blob(second, "a.json").filename(), at("snapshots/" + main + "/a.json"));
  const CacheVerdict bad = verify();
  EXPECT_EQ(bad.unknown, 1);
  std::map<std::string, std::string> what;
  for (const CacheProblem& problem : bad.problems) what[problem.file.filename().string()] = problem.what;
  EXPECT_EQ(what.size(), 5u);
  expect_has(what[shared.filename().string()], {"its content has the hash"});
  expect_has(what["absolute"], {"leads out", "/etc/passwd"});
  expect_has(what["outside"], {"leads out"});
  expect_has(what["gone"], {"not there"});
  expect_has(what["a.json"], {"the commit has"});

  const Removed removed = remove_wrong(cache, kManaged, bad);
  ASSERT_EQ(removed.files.size(), 2u);
  EXPECT_FALSE(fs::exists(shared));
  EXPECT_EQ(cache.find(kManaged, main, "shared.bin"), std::nullopt) << "so the next use downloads it";
  EXPECT_EQ(cache.find(kManaged, main, "a.json"), std::nullopt);
}

TEST_F(CacheManagement, VerifyWithoutLinksGoesByTheListOfFiles) {
  const fs::path file = at("snapshots/" + main + "/a.json");
  fs::remove(file);
  write_file(file, "{\"a\":1}");
  EXPECT_TRUE(verify().problems.empty());
  write_file(file, "{\"a\":2}");
  const CacheVerdict bad = verify();
  ASSERT_EQ(bad.problems.size(), 1u);
  EXPECT_EQ(bad.problems[0].file, file);
  EXPECT_EQ(remove_wrong(cache, kManaged, bad).files.size(), 1u);
  EXPECT_FALSE(fs::exists(file));
}

TEST_F(CacheManagement, ARevisionGoesAndWhatOthersShareStays) {
  const auto before = all();
  const fs::path own = blob(main, "a.json"), shared = blob(main, "shared.bin");
  const Removed plan = remove_revision(cache, kManaged, "main", {.dry_run = true});
  EXPECT_EQ(all(), before) << "a dry run touches nothing";
  const Removed done = remove_revision(cache, kManaged, main.substr(0, 7));
  ASSERT_EQ(done.files.size(), plan.files.size());
  for (size_t i = 0; i < done.files.size(); ++i) EXPECT_EQ(done.files[i].path, plan.files[i].path);
  EXPECT_EQ(done.bytes(), plan.bytes());
  EXPECT_FALSE(fs::exists(own));
  EXPECT_FALSE(fs::exists(at("snapshots/" + main)));
  EXPECT_FALSE(fs::exists(at("refs/main")));
  EXPECT_FALSE(fs::exists(at("trees/" + main + ".json")));
  EXPECT_TRUE(fs::exists(shared));
  EXPECT_TRUE(verify().problems.empty());
  EXPECT_EQ(cache.find(kManaged, second, "shared.bin").has_value(), true);
  const Removed rest = remove_revision(cache, kManaged, "v2.0");
  EXPECT_FALSE(fs::exists(shared));
  EXPECT_GE(rest.bytes(), 5008);
}

TEST_F(CacheManagement, ARepositoryGoesAndOthersStay) {
  const Removed done = remove_repo(cache, kManaged);
  EXPECT_FALSE(fs::exists(at("")));
  EXPECT_GT(done.bytes(), 5015);
  for (const RemovedFile& file : done.files) EXPECT_TRUE(file.path.string().starts_with(at("").string()));
  EXPECT_EQ(list_cache(cache).size(), 1u);
  EXPECT_TRUE(fs::is_directory(store.path() / ".locks/models--acme--tiny")) << "somebody may wait for one";
}

TEST_F(CacheManagement, RefusesWhatIsNotThereAndWhatLeadsOut) {
  const auto before = all();
  EXPECT_NE(message_of([&] { remove_repo(cache, {RepoType::kModel, "../tiny"}); }), "no error");
  EXPECT_NE(message_of([&] { remove_repo(cache, {RepoType::kModel, "acme/none"}); }), "no error");
  expect_has(message_of([&] { remove_revision(cache, kManaged, "v9"); }), {"'v9'", "main", "v2.0"});
  EXPECT_NE(message_of([&] { remove_revision(cache, kManaged, "../../x"); }), "no error");
  EXPECT_NE(message_of([&] { remove_revision(cache, kManaged, main.substr(0, 6)); }), "no error");
  EXPECT_EQ(all(), before);
  const TempFolder elsewhere;
  elsewhere.write("snapshots/" + main + "/precious", "x");
  fs::create_directory_symlink(elsewhere.path(), store.path() / "models--acme--link");
  expect_has(message_of([&] { remove_repo(cache, {RepoType::kModel, "acme/link"}); }), {"leads out"});
  EXPECT_EQ(list_cache(cache).size(), 2u);
  // A link inside goes; what it leads to does not.
  fs::create_directory_symlink(elsewhere.path(), at("snapshots/" + main + "/sub"));
  remove_revision(cache, kManaged, "main");
  EXPECT_TRUE(fs::exists(elsewhere.path() / "snapshots" / main / "precious"));
}

TEST_F(CacheManagement, BesideADownload) {
  const std::string etag = blob(second, "a.json").filename().string();
  const fs::path blob_file = at("blobs/" + etag);
  {
    const CacheLock downloading(cache.lock_file(kManaged, etag));
    expect_has(message_of([&] { remove_repo(cache, kManaged); }), {"a download", "is held"});
    expect_has(message_of([&] { remove_revision(cache, kManaged, "v2.0"); }), {"is held"});
    EXPECT_TRUE(fs::exists(at("snapshots/" + second + "/a.json")));
    remove_revision(cache, kManaged, "main");  // another one is none of its business
    EXPECT_TRUE(fs::exists(blob_file));
  }
  remove_revision(cache, kManaged, "v2.0");
  EXPECT_FALSE(fs::exists(blob_file));
}

TEST_F(CacheManagement, UnfinishedDownloads) {
  EXPECT_EQ(blob_of_unfinished("abc.0123abcd.incomplete"), "abc");
  EXPECT_EQ(blob_of_unfinished("abc.0123abcd.pieces.incomplete"), "abc");
  EXPECT_EQ(blob_of_unfinished("abc.incomplete"), "abc");
  EXPECT_EQ(blob_of_unfinished("abc.0123abcd.tmp"), "abc");
  EXPECT_EQ(blob_of_unfinished("abc.tmp"), "");
  EXPECT_EQ(blob_of_unfinished("abc"), "");
  EXPECT_EQ(blob_of_unfinished(".incomplete"), "");
  const auto leave = [&](const std::string& name, int minutes) {
    write_file(at(name), std::string(4096, 'x'));
    fs::last_write_time(at(name), fs::file_time_type::clock::now() - std::chrono::minutes(minutes));
  };
  leave("blobs/old.01234567.incomplete", 60);
  leave("blobs/busy.01234567.pieces.incomplete", 60);
  leave("blobs/young.01234567.incomplete", 1);
  leave("refs/main.01234567.tmp", 60);
  leave("snapshots/" + main + "/their.01234567.tmp", 60);  // a file of the repository, whatever its name
  const CacheLock downloading(cache.lock_file(kManaged, "busy"));
  const auto listed = list_repo(cache, kManaged)->unfinished;
  ASSERT_EQ(listed.size(), 4u);
  for (const UnfinishedFile& file : listed) {
    EXPECT_EQ(file.busy, file.file.filename().string().starts_with("busy"));
    EXPECT_EQ(file.bytes, 4096);
  }
  EXPECT_TRUE(verify().problems.empty()) << "they are no blobs yet";
  const Removed plan = remove_unfinished(cache, kManaged, {.dry_run = true});
  const Removed done = remove_unfinished(cache, kManaged);
  EXPECT_EQ(plan.files.size(), 2u);
  ASSERT_EQ(done.files.size(), 2u);
  EXPECT_EQ(done.bytes(), 8192);
  ASSERT_EQ(done.kept.size(), 2u);
  EXPECT_TRUE(fs::exists(at("blobs/busy.01234567.pieces.incomplete")));
  EXPECT_TRUE(fs::exists(at("blobs/young.01234567.incomplete")));
  EXPECT_FALSE(fs::exists(at("blobs/old.01234567.incomplete")));
}

}  // namespace
}  // namespace hotswap
