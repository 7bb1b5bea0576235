// What other runs left of a download, and whose it is.
#include "hotswap/hub/cache/partial_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include "hotswap/base/file.h"
#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::noise;
using test_support::TempFolder;

TEST(PartialFile, ALivingWritersFileIsLeftAlone) {
  const TempFolder folder;
  const fs::path blob = folder.path() / "etag";
  const std::string bytes = noise(1 << 20);
  PartialFile first(blob, 3 << 20, true);
  first.write(0, bytes);
  first.mark(0);
  {
    PartialFile second(blob, 3 << 20, true);  // as where a file system grants every lock
    EXPECT_FALSE(second.done(0));
    second.remove();
  }
  const pid_t other = ::getppid();  // alive, and not us
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    std::string text = read_file(entry.path());
    const size_t owner = (3 << 20) + 3;
    ASSERT_EQ(std::atoi(text.c_str() + owner), ::getpid());
    const std::string place = text.substr(text.find(' ', owner));
    text.replace(owner, text.size() - owner, 192, '\0');
    write_file(folder.path() / cat("etag.0000000", 1, ".pieces.incomplete"),
               std::string(text).replace(owner, 0, cat(other, place.c_str())).substr(0, text.size()));
    write_file(folder.path() / "etag.00000002.pieces.incomplete",
               std::string(text).replace(owner, 0, "1 another boot").substr(0, text.size()));
    break;
  }
  {
    PartialFile third(blob, 3 << 20, true);
    EXPECT_FALSE(third.done(0)) << "a parent that lives, and somebody elsewhere who wrote a moment ago";
    third.remove();
  }
  fs::last_write_time(folder.path() / "etag.00000002.pieces.incomplete",
                      fs::file_time_type::clock::now() - std::chrono::hours(1));
  PartialFile fourth(blob, 3 << 20, true);
  EXPECT_TRUE(fourth.done(0)) << "silent for an hour";
  EXPECT_FALSE(fs::exists(folder.path() / "etag.00000002.pieces.incomplete"));
}

TEST(PartialFile, WhereNothingCameNothingStays) {
  const TempFolder folder;
  { PartialFile(folder.path() / "etag", 3 << 20, true).write(5, "not a whole piece"); }
  EXPECT_TRUE(fs::is_empty(folder.path()));
  {
    PartialFile some(folder.path() / "etag", 3 << 20, true);
    some.write(0, noise(1 << 20));
    some.mark(0);
  }
  EXPECT_FALSE(fs::is_empty(folder.path()));
}

// Killed right after its file was made, and between the last two steps: nobody's name is in these.
TEST(PartialFile, WhatTheFirstAndTheLastMomentLeave) {
  const TempFolder folder;
  const fs::path blob = folder.path() / "etag", left = folder.path() / "etag.00000001.pieces.incomplete";
  const std::string bytes = noise((2 << 20) + 5);
  const auto size = static_cast<int64_t>(bytes.size());
  write_file(left, "");
  {
    PartialFile next(blob, size, true);
    EXPECT_FALSE(fs::exists(left)) << "nothing in it to go on with";
    EXPECT_EQ(next.bytes_done(), 0);
    next.remove();
  }
  write_file(left, bytes);
  const int writer = ::open(left.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(writer, LOCK_EX), 0);
  {
    PartialFile next(blob, size, true);
    EXPECT_TRUE(fs::exists(left)) << "its writer lives: it holds the lock";
    EXPECT_EQ(next.bytes_done(), 0);
    next.remove();
  }
  ::close(writer);
  PartialFile next(blob, size, true);
  EXPECT_EQ(next.bytes_done(), size);
  EXPECT_FALSE(fs::exists(left));
  next.commit();
  EXPECT_EQ(read_file(blob), bytes);
}

}  // namespace
}  // namespace hotswap
