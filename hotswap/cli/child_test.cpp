#include "hotswap/cli/child.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

Child shell(const std::string& script) { return {"sh", {"sh", "-c", script}, {.input = true, .errors = true}}; }

TEST(Child, SaysAndHears) {
  Child child = shell("while read line; do echo \"got $line\"; done; echo end >&2; exit 3");
  child.say("one");
  EXPECT_EQ(child.line(), "got one");
  child.say("two");
  EXPECT_EQ(child.line(), "got two");
  child.close_input();
  EXPECT_EQ(child.line(), "end");
  EXPECT_EQ(child.line(), std::nullopt);
  EXPECT_EQ(child.wait(), 3);
}

TEST(Child, ThatIsGoneIsToldByItsEnd) {
  Child child = shell("kill -KILL $$");
  EXPECT_EQ(child.line(), std::nullopt);
  child.say("nobody hears it, and no signal ends this process");
  EXPECT_EQ(child.wait(), 128 + SIGKILL);
}

TEST(Child, EndsWithItsOwner) {
  std::string pid;
  {
    Child child = shell("echo $$; exec sleep 600");
    pid = child.line().value();
  }
  EXPECT_EQ(kill(std::stoi(pid), 0), -1) << pid << " still runs";
}

TEST(Child, AProgramThatIsNotThere) { EXPECT_THROW(Child("/nowhere/program", {"program"}, {}), Error); }

TEST(RunProgram, GivesEveryLineAndTheStatus) {
  std::vector<std::string> lines;
  EXPECT_EQ(
      run_program({"sh", "-c", "echo a; echo b >&2; exit 2"}, [&](const std::string& line) { lines.push_back(line); }),
      2);
  EXPECT_EQ(lines, (std::vector<std::string>{"a", "b"}));
}

}  // namespace
}  // namespace hotswap
