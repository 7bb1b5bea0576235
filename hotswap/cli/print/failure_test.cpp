#include "hotswap/cli/print/failure.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

std::string thrown(void (*fails)()) {
  try {
    fails();
  } catch (const std::exception& error) {
    return failure_text(error);
  }
  return "nothing was thrown";
}

TEST(FailureText, IsOneMessageWithoutAStack) {
  EXPECT_EQ(
      thrown([] { throw Error({.kind = ErrorKind::kInvalidArgument, .wanted = "a", .got = "b", .next = "do c"}); }),
      "expected a; got b; do c");
  EXPECT_EQ(thrown([] { TORCH_CHECK(false, "Expected a matrix"); }), "Expected a matrix");
  EXPECT_EQ(
      thrown([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate 9 GiB."); }),
      "expected memory on the device; got none left: CUDA out of memory. Tried to allocate 9 GiB.; make the batch or "
      "the sequence smaller, or end what else uses the device (nvidia-smi)");
}

int status_of(void (*fails)()) {
  try {
    fails();
  } catch (const std::exception& error) {
    return exit_status(error);
  }
  return 0;
}

TEST(ExitStatus, FollowsFromTheKind) {
  EXPECT_EQ(exit_status(ErrorKind::kInvalidArgument), 1);
  EXPECT_EQ(exit_status(ErrorKind::kNotFound), 1);
  EXPECT_EQ(exit_status(ErrorKind::kCorrupt), 1);
  EXPECT_EQ(exit_status(ErrorKind::kUnsupported), 1);
  EXPECT_EQ(exit_status(ErrorKind::kInternal), 70);
  EXPECT_EQ(exit_status(ErrorKind::kUnavailable), 75);
  EXPECT_EQ(status_of([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory."); }), 75);
  EXPECT_EQ(status_of([] { throw std::bad_alloc(); }), 75);
  EXPECT_EQ(status_of([] { TORCH_CHECK(false, "Expected a matrix"); }), 70);
}

}  // namespace
}  // namespace hotswap
