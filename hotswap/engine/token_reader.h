// Tokens on their way from a device to the host, in the order in which they were made. From a GPU they come through
// pinned memory, and only who takes one waits for it, or who ends before all are taken: that memory is written to.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <deque>
#include <memory>
#include <vector>

namespace hotswap {

class TokenReader {
 public:
  TokenReader(at::Device device, int64_t max_tokens) : device_(device), max_tokens_(max_tokens) {}
  TokenReader(const TokenReader&) = delete;
  TokenReader& operator=(const TokenReader&) = delete;
  ~TokenReader();
  // [at most max_tokens] int64; may be written over once later work on its stream runs. `here`: the host's memory in
  // which they are once their stream has come so far, left alone until they are taken; undefined: they are copied.
  void push(const at::Tensor& tokens, const at::Tensor& here = {});
  std::vector<int64_t> pop();  // those pushed first

 private:
  struct Waiting {
    at::Tensor tokens;  // on the host
    std::unique_ptr<c10::Event> come;
    at::Tensor here = {};  // in place of `tokens`
    int64_t count = 0;
  };
  at::Device device_;
  int64_t max_tokens_;
  std::deque<Waiting> waiting_;
  std::vector<Waiting> free_;  // pinned memory is dear to make
};

}  // namespace hotswap
