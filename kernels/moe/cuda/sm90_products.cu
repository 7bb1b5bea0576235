// Products of rows by wgmma (sm_90a).
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"
#include "kernels/moe/cuda/sm90_rows.cuh"

namespace moe::gpu {
void up_swiglu(const cuda::Product& a, void* activated, Stream stream);
void up_swiglu_oai(const cuda::Product& a, void* activated, Stream stream);
}  // namespace moe::gpu

namespace moe::cuda {
namespace {

using namespace moe::gpu;

template <class T, bool kByInputs>
__global__ void __launch_bounds__(kThreads, 1) multiply_rows(const __grid_constant__ RowArguments a) {
#if MOE_HOPPER_CODE
  auto& m = begin_block<T>(a.w);
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<kLoaderRegisters>();
    load_rows<T, kByInputs, Columns::kPlain>(a, m);
  } else {
    setmaxnreg_inc<kWorkerRegisters>();
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
         fits_tensor_map(shape_of(a));
}
void multiply_hopper(const Product& a, Stream stream) {
  if (a.p.assignments() == 0) return;
  with_half(a.p.dtype, [&]<typename T>() {
    with_row_arguments(a, Columns::kPlain, [&](const RowArguments& arguments, int64_t blocks) {
      if (a.by_inputs)
        launch_with_memory<&multiply_rows<T, true>>(kMemoryBytes<T>, blocks, kThreads, stream, arguments);
      else
        launch_with_memory<&multiply_rows<T, false>>(kMemoryBytes<T>, blocks, kThreads, stream, arguments);
    });
  });
}
bool hopper_activates(const Product& a) {
  const bool built = a.p.act == Act::kSwiGlu || a.p.act == Act::kSwiGluOai;
  return built && a.p.inner % 8 == 0 && hopper_takes(a);
}
void activate_hopper(const Product& a, void* activated, Stream stream) {
  if (a.p.assignments() == 0) return;
  (a.p.act == Act::kSwiGlu ? up_swiglu : up_swiglu_oai)(a, activated, stream);
}

}  // namespace moe::cuda
