// The GPU forward for programs that load it by ctypes: test_forward_cuda.py and bench_forward_cuda.py. Returns an
// error's text, or null.
#include <exception>

#include "kernels/attention/attention_cuda.h"

extern "C" const char* attention_forward(void* const* pointers, const int64_t* numbers, const float* scales,
                                         void* workspace, void* stream) {
  static thread_local std::string error;
  const auto strides = [&](int at) { return attention::Strides{numbers[at], numbers[at + 1], numbers[at + 2]}; };
  try {
    attention::cuda::forward(
        {.problem = {.batch = numbers[9],
                     .query_rows = numbers[10],
                     .key_rows = numbers[11],
                     .heads = numbers[12],
                     .key_heads = numbers[13],
                     .dim = numbers[14],
                     .value_dim = numbers[15],
                     .window_left = numbers[16],
                     .window_right = numbers[17],
                     .scale = scales[0],
                     .softcap = scales[1],
                     .dtype = numbers[18] == 0 ? attention::DType::kBFloat16 : attention::DType::kFloat16,
                     .sinks = static_cast<const float*>(pointers[5])},
         .out = pointers[0],
         .lse = static_cast<float*>(pointers[1]),
         .q = pointers[2],
         .k = pointers[3],
         .v = pointers[4],
         .q_strides = strides(0),
         .k_strides = strides(3),
         .v_strides = strides(6)},
        workspace, stream);
  } catch (const std::exception& e) {
    error = e.what();
    return error.c_str();
  }
  return nullptr;
}
