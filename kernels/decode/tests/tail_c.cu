// C entry of the layer with its tail in one launch, for tail_c.py: not part of the package.
#include "kernels/decode/tail/tail.cuh"
#include "kernels/decode/decode.cu"
#include <cstring>
static int g_mode, g_pieces, g_flight; static void* g_stamps;
namespace decode::cuda {
bool tail(const Layer& a, kernels::Stream stream) {
  if (g_mode == 0) return false;
  Tail t = plan_tail(a, multiprocessors(), attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>());
  if (g_pieces) { t.pieces = g_pieces; if (tail_bytes(t) + kFixedBytes > attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>()) throw std::runtime_error("too many pieces"); }
  if (!fits_tail(t)) throw std::runtime_error("does not fit");
  if (g_flight) t.in_flight = g_flight;
  if (t.in_flight > t.pieces) t.in_flight = t.pieces;
#ifdef DECODE_STAMPS
  t.stamps = (unsigned long long*)g_stamps;
#endif
  auto go = [&]<int R>() {
    constexpr auto kernel = tail_kernel<kernels::BFloat16, R>;
    allow_memory<kernel>();
    cudaLaunchAttribute at[2]{}; unsigned c = 0;
    if (g_mode & 1) { at[c].id = cudaLaunchAttributeCooperative; at[c++].val.cooperative = 1; }
    if (g_mode & 2) { at[c].id = cudaLaunchAttributeProgrammaticStreamSerialization; at[c++].val.programmaticStreamSerializationAllowed = 1; }
    cudaLaunchConfig_t config{}; config.gridDim = dim3(multiprocessors()); config.blockDim = dim3(kTailThreads);
    config.dynamicSmemBytes = size_t(tail_bytes(t)); config.stream = (cudaStream_t)stream; config.attrs = at; config.numAttrs = c;
    checked(cudaLaunchKernelEx(&config, kernel, t), "tail");
  };
  if (a.rows <= 8) go.operator()<8>(); else go.operator()<16>();
  return true;
}
}
using namespace decode; using kernels::DType;
extern "C" const char* run_layer(void** p, long long* n, int mode, int pieces, int flight, int splits, void* stream) {
  try {
  Layer a{}; a.dtype = DType::kBFloat16; a.x=p[0]; a.rows=n[0]; a.hidden=n[1]; a.input_norm=p[1]; a.post_norm=p[2]; a.eps=1e-6f;
  long long Q=n[2]*n[4], K=n[3]*n[4], H=n[1], F=n[5];
  a.q={p[3],nullptr,Q,H}; a.k={p[4],nullptr,K,H}; a.v={p[5],nullptr,K,H}; a.o={p[6],nullptr,H,Q}; a.gate={p[7],nullptr,F,H}; a.up={p[8],nullptr,F,H}; a.down={p[9],nullptr,H,F};
  a.q_norm=p[10]; a.k_norm=p[11]; a.head_eps=1e-6f; a.heads=n[2]; a.kv_heads=n[3]; a.head_dim=n[4];
  a.cos=p[12]; a.sin=p[13]; a.rope_stride=0; a.keys={p[14],n[7],n[8],n[9]}; a.values={p[15],n[7],n[8],n[9]};
  a.position=(const int64_t*)p[16]; a.capacity=n[6]; a.window=-1; a.scale=1.f/sqrtf(float(n[4])); a.act=Act::kSilu;
  a.qkv=p[17]; a.attended=p[18]; a.h=p[19]; a.gated=p[20]; a.out=p[21];
  g_mode = mode; g_pieces = pieces; g_flight = flight; g_stamps = p[24];
  decode::cuda::layer(a, stream); return nullptr;
  } catch (const std::exception& e) { static thread_local char text[500]; strncpy(text, e.what(), 499); return text; }
}
