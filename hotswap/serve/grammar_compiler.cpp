#include "hotswap/serve/grammar_compiler.h"

#include <condition_variable>
#include <deque>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "hotswap/base/sha256.h"
#include "hotswap/grammar/xgrammar.h"
#include "hotswap/serve/api_error.h"

namespace hotswap::serve {
namespace {

constexpr int kThreads = 2;
constexpr size_t kMaxQueue = 64;

using Compiled = std::shared_ptr<const grammar::CompiledGrammar>;

struct Compilation {
  std::string key, text;
  bool begun = false, done = false;
  Compiled result = nullptr;
  std::string error = {};
};

}  // namespace

struct GrammarCompiler::State {
  State(const Tokenizer& t, int64_t v, std::vector<int64_t> e, std::set<int64_t> s, const GrammarLimits& l)
      : tokenizer(t), vocab(v), ends(std::move(e)), shown(std::move(s)), limits(l) {}

  const Tokenizer tokenizer;
  const int64_t vocab;
  const std::vector<int64_t> ends;
  const std::set<int64_t> shown;
  const GrammarLimits limits;

  std::mutex mutex;  // of all below
  std::condition_variable work, progress;
  std::deque<std::shared_ptr<Compilation>> queue;
  std::map<std::string, std::shared_ptr<Compilation>> running;  // also those that wait
  std::list<std::pair<std::string, Compiled>> kept;             // the newest use first
  size_t kept_bytes = 0;
  bool loaded = false, stopping = false;
  std::string problem;  // of loading
  std::shared_ptr<const grammar::GrammarEngine> engine;
  int threads = 0;

  void load() {
    std::shared_ptr<const grammar::GrammarEngine> made;
    std::string why;
    try {
      const auto folder = grammar::find_xgrammar();
      if (folder) {
        made = grammar::load_xgrammar(*folder, grammar::token_bytes(tokenizer, vocab, ends, shown));
      } else {
        why = folder.why();
      }
    } catch (const std::exception& error) {
      why = error.what();
    }
    const std::lock_guard lock(mutex);
    engine = std::move(made);
    problem = std::move(why);
    loaded = true;
    progress.notify_all();
  }

  static void loop(const std::shared_ptr<State>& state, bool loads) {
    if (loads) state->load();
    std::unique_lock lock(state->mutex);
    for (;;) {
      state->work.wait(lock, [&] { return state->stopping || (state->loaded && !state->queue.empty()); });
      if (state->stopping) return;
      const auto next = std::move(state->queue.front());
      state->queue.pop_front();
      next->begun = true;
      const auto engine = state->engine;
      lock.unlock();
      Compiled result;
      std::string error;
      try {
        result = engine->compile(next->text);
      } catch (const std::exception& failed) {
        error = failed.what();
      }
      lock.lock();
      next->result = result;
      next->error = error;
      next->done = true;
      state->running.erase(next->key);
      if (result) state->keep(next->key, result);
      state->progress.notify_all();
    }
  }

  void keep(const std::string& key, const Compiled& compiled) {
    if (compiled->bytes() > limits.cache_bytes) return;
    kept.emplace_front(key, compiled);
    kept_bytes += compiled->bytes();
    while (kept_bytes > limits.cache_bytes) {
      kept_bytes -= kept.back().second->bytes();
      kept.pop_back();
    }
  }

  Compiled found(const std::string& key) {
    for (auto at = kept.begin(); at != kept.end(); ++at) {
      if (at->first != key) continue;
      kept.splice(kept.begin(), kept, at);
      return kept.front().second;
    }
    return nullptr;
  }
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int64_t vocab, std::vector<int64_t> ends,
                                 std::set<int64_t> shown, const GrammarLimits& limits)
    : state_(std::make_shared<State>(tokenizer, vocab, std::move(ends), std::move(shown), limits)) {}

GrammarCompiler::~GrammarCompiler() {
  const std::lock_guard lock(state_->mutex);
  state_->stopping = true;
  state_->work.notify_all();
}

std::string GrammarCompiler::missing() const {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->loaded) return state_->problem;
  }
  if (state_->ends.empty()) return "the model has no token that ends a text";
  const auto folder = grammar::find_xgrammar();
  return folder ? "" : folder.why();
}

Compiled GrammarCompiler::compile(const std::string& ebnf) {
  const std::string key = to_hex(sha256({reinterpret_cast<const uint8_t*>(ebnf.data()), ebnf.size()}));
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  for (; state.threads < kThreads; ++state.threads) {  // none before the first grammar
    std::thread(State::loop, state_, /*loads=*/state.threads == 0).detach();
  }
  if (!state.progress.wait_for(lock, state.limits.load, [&] { return state.loaded; })) {
    throw ApiError(503, {"the grammar library to be loaded by now", "none yet", "send the request again"});
  }
  if (!state.engine) {
    throw ApiError(501, {"xgrammar for structured output", "none: " + state.problem,
                         "send the request without a schema, or install it where this server runs"});
  }
  if (const Compiled known = state.found(key)) return known;
  auto& job = state.running[key];
  if (!job) {
    if (state.queue.size() >= kMaxQueue) {
      state.running.erase(key);
      throw ApiError(503, {cat("at most ", kMaxQueue, " grammars that wait to be compiled"), "one more",
                           "send the request later"});
    }
    job = std::make_shared<Compilation>(Compilation{.key = key, .text = ebnf});
    state.queue.push_back(job);
    state.work.notify_one();
  }
  const auto mine = job;
  if (!state.progress.wait_for(lock, state.limits.deadline, [&] { return mine->done; })) {
    if (!mine->begun) {
      std::erase(state.queue, mine);
      state.running.erase(key);
      throw ApiError(503, {"a thread that is free to compile the grammar", "none", "send the request later"});
    }
    bad_request({cat("a grammar that compiles within ", state.limits.deadline.count(), " ms"), "one that takes longer",
                 "make it smaller"});
  }
  if (mine->result) return mine->result;
  bad_request({"a grammar that xgrammar compiles", mine->error, "correct or simplify it"});
}

}  // namespace hotswap::serve
