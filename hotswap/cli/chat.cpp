#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "hotswap/base/error.h"
#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/cli/flags/sampling_flags.h"
#include "hotswap/cli/generate_text.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/serve/served_model.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

struct ChatFlags {
  ModelFlags model;
  KernelFlags kernels;
  std::string system;
  SamplingFlags sampling{1024};
  GuessFlags guesses;
  bool no_kernels = false, greedy = false;
};

// Unset sampling settings are those of the model's generation_config.json.
GenerationConfig chat_config(const ChatFlags& flags) {
  GenerationConfig config = generation_config_of(flags.sampling);
  if (flags.greedy) {
    config.do_sample = false;
    config.temperature = std::nullopt;
  }
  set_guesses(config, flags.guesses);
  return config;
}

ModelFlags one_sequence(ModelFlags flags) {
  flags.few_rows = true;
  return flags;
}

class Chat {
 public:
  explicit Chat(const ChatFlags& flags)
      : config_(chat_config(flags)),
        source_(one_sequence(located(flags.model))),
        tokenizer_(load_tokenizer(source_)),
        template_(load_chat_template(source_)),
        model_(load_model(source_, flags.kernels)),
        assistant_(load_beside(flags.guesses.assistant, source_, flags.kernels)),
        interactive_(::isatty(STDIN_FILENO) == 1) {
    begin(flags.system);
  }

  void run() {
    if (interactive_) {
      const KernelReport& report = model_->kernel_report();
      std::fprintf(stderr, "%lld of %zu slots run kernels; /help lists the commands\n",
                   static_cast<long long>(report.bound()), report.rows.size());
    }
    for (std::string line; read_line(line);) {
      if (line.empty()) continue;
      if (line[0] == '/') {
        if (!command(line)) return;
      } else {
        answer(line);
      }
    }
  }

 private:
  bool read_line(std::string& line) {
    if (interactive_) {
      std::fputs("> ", stderr);
      std::fflush(stderr);
    }
    return static_cast<bool>(std::getline(std::cin, line));
  }

  void begin(const std::string& system) {
    system_ = system;
    messages_ = OutJson::array();
    if (!system.empty()) messages_.push_back({{"role", "system"}, {"content", system}});
  }

  // False where the conversation ends.
  bool command(const std::string& line) {
    const size_t blank = line.find(' ');
    const std::string word = line.substr(0, blank);
    const std::string rest = blank == std::string::npos ? "" : line.substr(blank + 1);
    if (word == "/exit" || word == "/quit") return false;
    if (word == "/reset") {
      begin(system_);
    } else if (word == "/system") {
      begin(rest);
    } else if (word == "/undo") {
      const size_t first = system_.empty() ? 0 : 1;
      for (int i = 0; i < 2 && messages_.size() > first; ++i) messages_.erase(messages_.size() - 1);
    } else if (word == "/history") {
      std::printf("%s\n", messages_.dump(2, ' ', false, OutJson::error_handler_t::replace).c_str());
    } else if (word == "/report") {
      std::cout << model_->kernel_report();
    } else {
      std::fprintf(stderr,
                   "%s/reset  forget the conversation    /system TEXT  start over with this system message\n"
                   "/undo   forget the last exchange      /history  print the messages as JSON\n"
                   "/report which kernels run             /exit  end (so does the end of the input)\n",
                   word == "/help" ? "" : cat("no command ", word, "\n").c_str());
    }
    std::fflush(stdout);
    return true;
  }

  // At a terminal what cannot be answered does not end the conversation, which goes on without it.
  void answer(const std::string& line) {
    const OutJson before = messages_;
    messages_.push_back({{"role", "user"}, {"content", line}});
    try {
      answer_messages();
    } catch (const Error& error) {
      if (!interactive_) throw;
      messages_ = before;
      std::fprintf(stderr, "%s\n", error.what());
    }
  }

  // At most as many new tokens as positions are left: beyond them a model writes nonsense.
  GenerationConfig config_for(size_t prompt) const {
    GenerationConfig config = config_;
    const int64_t positions = serve::max_positions(*model_), left = positions - static_cast<int64_t>(prompt);
    if (positions == 0) return config;
    if (left < 1) {
      throw Error(
          {.kind = ErrorKind::kInvalidArgument,
           .wanted = cat("a conversation of fewer tokens than the ", positions, " positions that the model has"),
           .got = cat(prompt, " tokens"),
           .next = "shorten the message, or start over: /undo, /reset"});
    }
    config.max_new_tokens = std::min(config.max_new_tokens.value_or(left), left);
    return config;
  }

  void answer_messages() {
    const auto ids = template_.ids(tokenizer_, {.messages = messages_, .add_generation_prompt = true});
    const GenerationConfig config = config_for(ids.size());
    const auto show = [](const std::string& piece) {
      std::fputs(piece.c_str(), stdout);
      std::fflush(stdout);
    };
    const TimedText made = generate_text(*model_, &tokenizer_, ids, config, show, assistant_.get());
    std::puts("");
    messages_.push_back({{"role", "assistant"}, {"content", made.text}});
    if (interactive_) {
      std::fprintf(stderr, "[%zu tokens, first after %.0f ms, then %.1f tokens/s]\n", made.ids.size(), made.prefill_ms,
                   made.decode_tokens_per_second);
    }
  }

  GenerationConfig config_;
  ModelFlags source_;
  Tokenizer tokenizer_;
  ChatTemplate template_;
  std::shared_ptr<CausalLM> model_, assistant_;
  bool interactive_;
  std::string system_;
  OutJson messages_;
};

}  // namespace

void add_chat(CLI::App& app) {
  auto* verb =
      app.add_subcommand("chat", "Talk with a model: a line of stdin is a message, the answer streams to stdout");
  auto flags = std::make_shared<ChatFlags>();
  flags->model.device = "auto";  // before the flag is added, which shows it as its default
  add_model_flags(*verb, flags->model);
  add_kernel_flags(*verb, flags->kernels);
  flags->kernels.use_kernels = true;
  verb->add_flag("--no-kernels", flags->no_kernels, "Run the stock layers");
  verb->add_option("--system", flags->system, "The system message");
  add_sampling_flags(*verb, flags->sampling);
  add_guess_flags(*verb, flags->guesses);
  verb->add_flag("--greedy", flags->greedy, "Take the most probable token; default: as in generation_config.json");
  verb->callback([flags] {
    if (flags->no_kernels) flags->kernels = KernelFlags{};
    Chat(*flags).run();
  });
}

}  // namespace hotswap
