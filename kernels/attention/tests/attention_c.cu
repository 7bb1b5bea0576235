// The GPU's attention for programs that load it by ctypes: the tests and benchmarks beside this file. Functions return
// an error's text, or null. Numbers, pointers and scales come in the order of the structs in attention.h.
#include <exception>

#include "kernels/attention/cuda/attention.h"

namespace {

using namespace attention;

// Reads one after the other.
struct Reader {
  void* const* pointers;
  const int64_t* numbers;
  const float* scales;

  template <class P>
  void read(P*& pointer) {
    pointer = static_cast<P*>(*pointers++);
  }
  void read(Strides& s) { s = {numbers[0], numbers[1], numbers[2]}, numbers += 3; }
  void read(Problem& p) {
    for (int64_t* n : {&p.batch, &p.query_rows, &p.key_rows, &p.heads, &p.key_heads, &p.dim, &p.value_dim,
                       &p.window_left, &p.window_right, &p.chunk, &p.slopes_batch_stride})
      *n = *numbers++;
    p.dtype = *numbers++ == 0 ? DType::kBFloat16 : DType::kFloat16;
    p.scale = *scales++, p.softcap = *scales++;
    read(p.sinks), read(p.slopes), read(p.query_starts), read(p.key_starts), read(p.keys_used);
  }
  Forward forward() {
    Forward a{};
    read(a.problem);
    read(a.out), read(a.lse), read(a.q), read(a.k), read(a.v);
    read(a.q_strides), read(a.k_strides), read(a.v_strides);
    return a;
  }
  Backward backward() {
    Backward a{};
    read(a.problem);
    read(a.dq), read(a.dk), read(a.dv), read(a.dsinks);
    read(a.dout), read(a.q), read(a.k), read(a.v), read(a.out), read(a.lse), read(a.dlse);
    read(a.dout_strides), read(a.q_strides), read(a.k_strides), read(a.v_strides), read(a.out_strides);
    a.deterministic = *numbers++ != 0;
    return a;
  }
};

Decode decode_of(Reader r) {
  Decode a{};
  r.read(a.problem);
  r.read(a.out), r.read(a.lse), r.read(a.q), r.read(a.k_cache), r.read(a.v_cache), r.read(a.k_new), r.read(a.v_new);
  r.read(a.lengths), r.read(a.block_table), r.read(a.cache_index);
  for (int64_t* n : {&a.new_rows, &a.page_rows, &a.block_table_stride, &a.splits}) *n = *r.numbers++;
  r.read(a.q_strides), r.read(a.k_cache_strides), r.read(a.v_cache_strides);
  r.read(a.k_new_strides), r.read(a.v_new_strides);
  return a;
}

template <class Fn>
const char* caught(const Fn& fn) {
  static thread_local std::string error;
  try {
    fn();
    return nullptr;
  } catch (const std::exception& e) {
    error = e.what();
    return error.c_str();
  }
}

}  // namespace

extern "C" {

int64_t attention_forward_bytes(void* const* pointers, const int64_t* numbers, const float* scales) {
  return attention::cuda::workspace_bytes(Reader{pointers, numbers, scales}.forward());
}
const char* attention_forward(void* const* pointers, const int64_t* numbers, const float* scales, void* workspace,
                              void* stream) {
  return caught([&] { attention::cuda::forward(Reader{pointers, numbers, scales}.forward(), workspace, stream); });
}

int64_t attention_backward_bytes(void* const* pointers, const int64_t* numbers, const float* scales) {
  return attention::cuda::workspace_bytes(Reader{pointers, numbers, scales}.backward());
}
const char* attention_backward(void* const* pointers, const int64_t* numbers, const float* scales, void* workspace,
                               void* stream) {
  return caught([&] { attention::cuda::backward(Reader{pointers, numbers, scales}.backward(), workspace, stream); });
}

int64_t attention_decode_bytes(void* const* pointers, const int64_t* numbers, const float* scales) {
  return attention::cuda::workspace_bytes(decode_of({pointers, numbers, scales}));
}
const char* attention_decode(void* const* pointers, const int64_t* numbers, const float* scales, void* workspace,
                             void* stream) {
  return caught([&] { attention::cuda::decode(decode_of({pointers, numbers, scales}), workspace, stream); });
}
}
