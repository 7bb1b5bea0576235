// Tokens on their way from a device to the host, in the order in which they were made. From a GPU they come through
// pinned memory, and only who takes one waits for it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <deque>
#include <memory>
#include <vector>

namespace hotswap {

class TokenReader {
 public:
  TokenReader(at::Device device, int64_t batch) : device_(device), batch_(batch) {}
  void push(const at::Tensor& tokens);  // [batch] int64; may be written over once later work on its stream runs
  std::vector<int64_t> pop();           // those pushed first: [batch]

 private:
  struct Waiting {
    at::Tensor tokens;  // on the host
    std::unique_ptr<c10::Event> come;
  };
  at::Device device_;
  int64_t batch_;
  std::deque<Waiting> waiting_;
  std::vector<Waiting> free_;  // pinned memory is dear to make
};

}  // namespace hotswap
