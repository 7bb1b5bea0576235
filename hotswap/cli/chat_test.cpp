// `hotswap chat` as a script runs it: without a terminal.
#include "hotswap/base/test_support.h"
#include "hotswap/cli/test_program.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using HistoryJson = nlohmann::ordered_json;
using test_support::expect_has;
using test_support::Outcome;

class Chat : public test_support::CliModel {
 protected:
  std::string talking_model() const {
    const fs::path folder = file("talks");
    if (!fs::exists(folder)) fs::copy(test_support::tiny_model(), folder);
    write_file(folder / "chat_template.jinja",
               "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
               "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}");
    return folder.string();
  }
};

TEST_F(Chat, AnswersAsGenerateDoesAndRemembers) {
  const std::string model = talking_model(), greedy = " --greedy --max-new-tokens 12";
  const Outcome talk = run("chat " + model + greedy + " --system Short.", "Once upon\n\nAnd then?\n/history\n");
  ASSERT_EQ(talk.status, 0) << talk.err;
  const size_t begin = talk.out.find("[\n");
  ASSERT_NE(begin, std::string::npos) << talk.out;
  const HistoryJson history = HistoryJson::parse(talk.out.substr(begin));
  ASSERT_EQ(history.size(), 5u) << history;
  EXPECT_EQ(history[0], (HistoryJson{{"role", "system"}, {"content", "Short."}}));
  EXPECT_EQ(talk.out.substr(0, begin),
            history[2]["content"].get<std::string>() + "\n" + history[4]["content"].get<std::string>() + "\n");
  for (const size_t answer : {2, 4}) {
    const HistoryJson before(
        std::vector<HistoryJson>(history.begin(), history.begin() + static_cast<ptrdiff_t>(answer)));
    write_file(file("messages.json"), before.dump());
    const Outcome same =
        run("generate " + model + " --use-kernels --max-new-tokens 12 --messages " + file("messages.json").string());
    EXPECT_EQ(same.out, history[answer]["content"].get<std::string>() + "\n") << same.err;
  }
}

TEST_F(Chat, Commands) {
  const Outcome talk =
      run("chat " + talking_model() + " --greedy --max-new-tokens 4 --no-kernels",
          "a\n/undo\n/history\n/system Be kind.\nb\n/reset\n/history\n/report\n/help\n/nope\n/exit\nnever\n");
  ASSERT_EQ(talk.status, 0) << talk.err;
  expect_has(talk.out, {"[]\n", "Be kind.", "0 slots bound"});
  EXPECT_EQ(talk.out.find("\"b\""), std::string::npos) << "a conversation that was reset";
  EXPECT_EQ(talk.out.find("never"), std::string::npos);
  expect_has(talk.err, {"no command /nope", "/undo   forget the last exchange"});
}

// As at a terminal, which `script` of util-linux is.
TEST_F(Chat, AtATerminalARefusedMessageIsLeftOut) {
  const std::string line = cat("chat ", talking_model(), " --greedy --max-new-tokens 4");
  const std::string talk = cat("a\n", std::string(3000, 'x'), "\n/history\n/exit\n");
  const Outcome piped = run(line, cat(std::string(20000, 'x'), "\n/history\n"));
  EXPECT_EQ(piped.status, 1) << piped.out;
  expect_has(piped.err, {"positions that the model has; got ", " tokens; shorten the message"});
  if (std::system("command -v script >/dev/null") != 0) GTEST_SKIP() << "no program script: package bsdutils";
  write_file(file("talk"), talk);
  const std::string log = file("log").string();
  const std::string command = cat("timeout 240 script -qec '", program().string(), " ", line, "' ", log, " <",
                                  file("talk").string(), " >/dev/null");
  EXPECT_EQ(std::system(command.c_str()), 0) << read_file(log);
  const std::string shown = read_file(log);
  expect_has(shown, {"slots run kernels; /help lists the commands", "positions that the model has; got "});
  EXPECT_EQ(shown.find("\"content\": \"xxx"), std::string::npos) << "it is not in the history";
}

TEST_F(Chat, WhatATemplateRefuses) {
  write_file(file("tool.json"), R"([{"role": "tool", "content": "1"}])");
  const Outcome refused = run("generate " + talking_model() + " --messages " + file("tool.json").string());
  EXPECT_EQ(refused.status, 1);
  expect_has(refused.err, {"no tools here"});
  fs::remove(file("talks") / "chat_template.jinja");
  const Outcome none = run("chat " + file("talks").string(), "a\n");
  EXPECT_EQ(none.status, 1) << none.err;
  expect_has(none.err, {"chat template"});
}

}  // namespace
}  // namespace hotswap
