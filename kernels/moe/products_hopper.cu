// Products of rows by wgmma (sm_90a).
#include "kernels/moe/hopper_rows.cuh"

namespace moe::gpu {
void up_swiglu(const cuda::Product& a, void* activated, Stream stream);
void up_swiglu_oai(const cuda::Product& a, void* activated, Stream stream);
}  // namespace moe::gpu

namespace moe::cuda {
namespace {

using namespace moe::gpu;

template <class T, bool kByInputs, bool kTokens>
__global__ void __launch_bounds__(kThreads, 1) multiply_rows(const __grid_constant__ RowArguments a) {
#if MOE_HOPPER_CODE
  auto& m = begin_block<T>(a.w, kTokens ? kWarpgroup + 1 : 1);
  if (threadIdx.x < kWarpgroup) {
    give_registers<kLoaderRegisters>();
    if constexpr (kTokens)
      load_tokens<T, kByInputs, Columns::kPlain>(a, m);
    else if (threadIdx.x == 0)
      load_slots<T, kByInputs, Columns::kPlain>(a, m);
  } else {
    take_registers<kWorkerRegisters>();
    Worker<T, false, kByInputs> worker(m);
    Walk<Columns::kPlain> walk(a);
    RowTile tile;
    int col;
    for (int t = blockIdx.x; walk.find(t, tile, col); t += gridDim.x) {
      worker.multiply_steps((a.in + kDepth - 1) / kDepth);
      if (a.bias != nullptr)
        worker.add_bias(static_cast<const T*>(a.bias) + int64_t{tile.expert} * a.out + col, a.out - col, 0, 128);
      worker.store(static_cast<T*>(a.y) + int64_t{tile.slot} * a.out + col, a.out, tile.end - tile.slot, a.out - col);
    }
  }
#endif
}

}  // namespace

bool hopper_takes(const Product& a) {
  return has_hopper(a.p) && aligned({a.rows.data, a.w, a.y}, {a.rows.stride, a.rows.cols, a.out}) &&
         fits_tensor_map(shape_of(a)) && (a.rows.tokens || fits_tensor_map(rows_of(a.p, a.rows)));
}
void multiply_hopper(const Product& a, Stream stream) {
  if (a.p.assignments() == 0) return;
  with_half(a.p.dtype, [&]<typename T>() {
    with_row_arguments(a, Columns::kPlain, [&](const RowArguments& arguments, int64_t blocks) {
      const auto run = [&]<bool kByInputs>() {
        if (a.rows.tokens)
          launch_with_memory<&multiply_rows<T, kByInputs, true>>(kMemoryBytes<T>, blocks, kThreads, stream, arguments);
        else
          launch_with_memory<&multiply_rows<T, kByInputs, false>>(kMemoryBytes<T>, blocks, kThreads, stream, arguments);
      };
      a.by_inputs ? run.template operator()<true>() : run.template operator()<false>();
    });
  });
}
bool hopper_activates(const Product& a) {
  const bool built = a.p.act == Act::kSwiGlu || a.p.act == Act::kSwiGluOai;
  return built && a.rows.tokens && a.p.inner % 8 == 0 && hopper_takes(a);
}
void activate_hopper(const Product& a, void* activated, Stream stream) {
  if (a.p.assignments() == 0) return;
  (a.p.act == Act::kSwiGlu ? up_swiglu : up_swiglu_oai)(a, activated, stream);
}

}  // namespace moe::cuda
