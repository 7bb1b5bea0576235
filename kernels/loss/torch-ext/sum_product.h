// out (+)= a^T b by a way of cuBLASLt's that torch does not choose: tiles of 128 x 160. It adds to what is there
// without losing time to it: 1024 rows into 128256 x 4096 take 1.40 ms on an H200 that is at its power limit, torch's
// addmm 1.80.
#pragma once

#include <cublasLt.h>
#include <torch/csrc/stable/c/shim.h>

#include <array>
#include <optional>

#include "kernels/common/torch/gemm.h"

// Torch has loaded the library: nothing is linked, and where it is not in sight these are null.
#pragma weak cublasLtMatmulDescCreate
#pragma weak cublasLtMatmulDescSetAttribute
#pragma weak cublasLtMatmulDescDestroy
#pragma weak cublasLtMatrixLayoutCreate
#pragma weak cublasLtMatrixLayoutDestroy
#pragma weak cublasLtMatmulPreferenceCreate
#pragma weak cublasLtMatmulPreferenceSetAttribute
#pragma weak cublasLtMatmulPreferenceDestroy
#pragma weak cublasLtMatmulAlgoGetHeuristic
#pragma weak cublasLtMatmulAlgoConfigGetAttribute
#pragma weak cublasLtMatmul

namespace loss::gpu {

class SumProduct {
 public:
  // out [rows, cols], a [n, rows], b [n, cols], dense; of one 16-bit dtype. Of other n the way with these tiles is a
  // slow one: with 1046 rows a step of GRPO took 54.6 ms, by torch's addmm 45.5.
  SumProduct(DType dtype, int64_t rows, int64_t cols, int64_t n, int64_t b_stride) : n_(n) {
    const bool half = dtype == DType::kFloat16, whole = (rows | cols | b_stride) % 8 == 0 && n % 64 == 0;
    if ((!half && dtype != DType::kBFloat16) || !whole || cublasLtMatmul == nullptr) return;
    if (torch_get_current_cuda_blas_handle(&handle_) != 0) return;
    const cudaDataType_t type = half ? CUDA_R_16F : CUDA_R_16BF;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    // By columns, as the library counts: out^T [cols, rows] = b^T a.
    if (cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F) != 0 ||
        cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSB, &transposed, sizeof transposed) != 0 ||
        cublasLtMatrixLayoutCreate(&b_, type, uint64_t(cols), uint64_t(n), b_stride) != 0 ||
        cublasLtMatrixLayoutCreate(&a_, type, uint64_t(rows), uint64_t(n), rows) != 0 ||
        cublasLtMatrixLayoutCreate(&out_, type, uint64_t(cols), uint64_t(rows), cols) != 0)
      return;
    choose();
  }
  SumProduct(const SumProduct&) = delete;
  SumProduct& operator=(const SumProduct&) = delete;
  ~SumProduct() {
    for (const cublasLtMatrixLayout_t layout : {a_, b_, out_})
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    if (product_ != nullptr) cublasLtMatmulDescDestroy(product_);
  }

  int64_t terms() const { return n_; }
  // False: it is left to torch.
  bool operator()(void* out, const void* a, const void* b, bool add, kernels::Stream stream) const {
    const auto whole = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
    if (!way_ || !whole(out) || !whole(a) || !whole(b)) return false;
    const float one = 1.f, beta = add ? 1.f : 0.f;
    return cublasLtMatmul(static_cast<cublasLtHandle_t>(handle_), product_, &one, b, b_, a, a_, &beta, out, out_, out,
                          out_, &*way_, nullptr, 0, static_cast<cudaStream_t>(stream)) == 0;
  }

 private:
  // Of those without memory of their own and with one sum for each number, whose bits are the same every time.
  void choose() {
    cublasLtMatmulPreference_t wish = nullptr;
    if (cublasLtMatmulPreferenceCreate(&wish) != 0) return;
    const uint64_t bytes = 0;
    const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    std::array<cublasLtMatmulHeuristicResult_t, 8> found{};
    int count = 0;
    if (cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes) ==
            0 &&
        cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none) ==
            0 &&
        cublasLtMatmulAlgoGetHeuristic(static_cast<cublasLtHandle_t>(handle_), product_, b_, a_, out_, out_, wish,
                                       int(found.size()), found.data(), &count) == 0) {
      for (int i = 0; i < count && !way_; ++i) {
        uint32_t tile = 0;
        size_t written = 0;
        if (cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile,
                                                 &written) == 0 &&
            tile == CUBLASLT_MATMUL_TILE_128x160)
          way_ = found[i].algo;
      }
    }
    cublasLtMatmulPreferenceDestroy(wish);
  }

  int64_t n_;
  void* handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, out_ = nullptr;
  std::optional<cublasLtMatmulAlgo_t> way_;
};

}  // namespace loss::gpu
