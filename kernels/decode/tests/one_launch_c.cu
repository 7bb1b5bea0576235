// C entry of the layer in one launch, for one_launch_c.py: not part of the package.
#include "kernels/decode/whole/layer.cuh"
#include "kernels/decode/decode_cuda.h"
#include <cstring>
using namespace decode; using namespace decode::cuda; using namespace kernels::gpu;
using kernels::DType;
namespace decode::cuda { bool whole_layer(const Layer&, kernels::Stream) { return false; } }  // mode 0: five launches
extern "C" {
// p: x innorm postnorm q k v o gate up down qn kn cos sin kc vc position qkv attended h gated out parts stats stamps
// n: rows hidden heads kv dim ffn capacity kb kr kh
// mode: 0 old; bits: 1 coop 2 pdl 4 early; 
const char* run_layer(void** p, long long* n, int mode, int pieces, int flight, int splits, void* stream) {
  try {
  Layer a{}; a.dtype = DType::kBFloat16; a.x=p[0]; a.rows=n[0]; a.hidden=n[1]; a.input_norm=p[1]; a.post_norm=p[2]; a.eps=1e-6f;
  long long Q=n[2]*n[4], K=n[3]*n[4], H=n[1], F=n[5];
  a.q={p[3],nullptr,Q,H}; a.k={p[4],nullptr,K,H}; a.v={p[5],nullptr,K,H}; a.o={p[6],nullptr,H,Q}; a.gate={p[7],nullptr,F,H}; a.up={p[8],nullptr,F,H}; a.down={p[9],nullptr,H,F};
  a.q_norm=p[10]; a.k_norm=p[11]; a.head_eps=1e-6f; a.heads=n[2]; a.kv_heads=n[3]; a.head_dim=n[4];
  a.cos=p[12]; a.sin=p[13]; a.rope_stride=0; a.keys={p[14],n[7],n[8],n[9]}; a.values={p[15],n[7],n[8],n[9]};
  a.position=(const int64_t*)p[16]; a.capacity=n[6]; a.window=-1; a.scale=1.f/sqrtf(float(n[4])); a.act=Act::kSilu;
  a.qkv=p[17]; a.attended=p[18]; a.h=p[19]; a.gated=p[20]; a.out=p[21];
  if (mode == 0) { layer(a, stream); return nullptr; }
  int optin = attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>();
  Whole w = plan_whole(a, multiprocessors(), optin - kFixedBytes);
  if (w.pieces < kFewestPieces) return "does not fit";
  if (pieces > 0 && pieces < w.pieces) w.pieces = pieces;
  w.in_flight = flight > 0 && flight < w.pieces ? flight : w.pieces;
  if (splits > 0 && splits < w.most_splits) w.most_splits = splits;
  w.early = (mode & 4) != 0; w.parts=(float*)p[22]; w.stats=(float*)p[23];
#ifdef DECODE_STAMPS
  w.stamps=(unsigned long long*)p[24];
#endif
  auto go = [&]<int R, int D, int G, bool B = false>() {
    constexpr auto kernel = layer_kernel<kernels::BFloat16, R, D, G, B>;
    allow_memory<kernel>();
    cudaLaunchAttribute at[2]{}; unsigned c = 0;
    if (mode & 1) { at[c].id = cudaLaunchAttributeCooperative; at[c++].val.cooperative = 1; }
    if (mode & 2) { at[c].id = cudaLaunchAttributeProgrammaticStreamSerialization; at[c++].val.programmaticStreamSerializationAllowed = 1; }
    cudaLaunchConfig_t config{}; config.gridDim = dim3(multiprocessors()); config.blockDim = dim3(kWholeThreads);
    config.dynamicSmemBytes = size_t(whole_bytes(w)); config.stream = (cudaStream_t)stream; config.attrs = at; config.numAttrs = c;
    checked(cudaLaunchKernelEx(&config, kernel, w), "layer");
  };
  if (a.head_dim != 128) return "dim";
  const bool two = a.heads / a.kv_heads <= 2;
  if (mode & 16) { if (!two) return "not built"; go.operator()<8,128,2,true>(); } else if (a.rows <= 8) { if (two) go.operator()<8,128,2>(); else go.operator()<8,128,4>(); }
  else { if (two) go.operator()<16,128,2>(); else return "not built"; }
  return nullptr;
  } catch (const std::exception& e) { static thread_local char text[500]; strncpy(text, e.what(), 499); return text; }
}
}
