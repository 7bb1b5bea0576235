// The op of the decode package: schema, checks, rows. Nothing here waits for a GPU.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "kernels/common/torch/ops.h"
#include "kernels/decode/cpu/decode.h"
#include "kernels/decode/cuda/decode.h"
#include "kernels/decode/cuda/packed_products.h"
#include "kernels/decode/cuda/products.h"

namespace decode {
namespace {

using kernels::check;
using kernels::check_tensor;
using kernels::Device;
using kernels::shape_of;
using kernels::Tensor;
using OptTensor = std::optional<Tensor>;

constexpr const char *kOp = "decoder_layer", *kRows = "decoder_layer_rows", *kInputs = "decoder_inputs",
                     *kHeads = "decoder_heads";
constexpr int kWeights = 7;  // q, k, v, o, gate, up, down
// With more rows torch's own products of plain bfloat16 weights are faster, on a CPU with instructions for them; those
// of other dtypes, and bfloat16 elsewhere, are slower up to kMaxRows: docs/notes/decode_gpu.md.
constexpr int kMaxBfloat16Rows = 4;

const Table& table() {
  static const Table& chosen = HOTSWAP_CHOOSE_TABLE(decode);
  return chosen;
}

// The packings of a layer's weights, in the op's order: as named, or where no names are passed by the bytes of a row.
class Packings {
 public:
  Packings(const std::string& names, const char* op) : named_(!names.empty()) {
    size_t begin = 0;
    for (int i = 0; named_ && i < kWeights; ++i) {
      const size_t end = std::min(names.find(',', begin), names.size());
      const std::string name = names.substr(std::min(begin, end), end - std::min(begin, end));
      packings_[i] = kernels::packing_named(name);
      check(
          (packings_[i] != kernels::Packing::kNone || name == "plain") && (end == names.size()) == (i == kWeights - 1),
          op, ": expected the formats of q, k, v, o, gate, up and down, seven of plain, ", kernels::kPackingNames,
          ", separated by commas; got \"", names, "\"; pass one for each weight");
      begin = end + 1;
    }
  }
  bool named() const { return named_; }
  bool named_one(int weight) const { return named_ && packings_[weight] != kernels::Packing::kNone; }
  kernels::Packing of(int weight, const Tensor& t, int64_t in) const {
    if (named_) return packings_[weight];
    return t.dim() == 2 ? kernels::packing_of(in, t.size(1)) : kernels::Packing::kNone;
  }

 private:
  bool named_;
  std::array<kernels::Packing, kWeights> packings_{};
};

// Are the rows of a matrix of bytes `in` weights in blocks of that packing?
bool holds_rows(kernels::Packing packing, const Tensor& t, int64_t in) {
  if (packing == kernels::Packing::kNone || t.dim() != 2) return false;
  const int64_t block = kernels::packed_block(packing);
  return in % block == 0 && t.size(1) == in / block * kernels::packed_bytes(packing);
}

struct Rope {
  const void *cos, *sin;
  int64_t stride;  // between rows; 0: one for all
};

// What all tensors of a call have in common, and their checks.
struct Call {
  DType dtype;
  Device device;
  const char* op = kOp;
  const char* like = "x";  // the argument whose dtype that is

  void same(const Tensor& t) const {
    kernels::check_device(t, device);
    kernels::check_same_dtype(t, dtype, like);
  }
  const void* vector(const OptTensor& t, int64_t size) const { return t ? vector(*t, size) : nullptr; }
  const void* vector(const Tensor& t, int64_t size) const {
    same(t);
    check_tensor(t.dim() == 1 && t.size(0) == size && t.is_contiguous(), t, "[", size, "], contiguous; got ",
                 shape_of(t), "; check the layer's sizes");
    return t.data_ptr();
  }
  Weight weight(const Tensor& t, const OptTensor& bias, int64_t out, int64_t in, const Packings& packings,
                int which) const {
    if (t.scalar_type() == kernels::ScalarType::Byte || packings.named_one(which))
      return packed(t, bias, out, in, packings, which);
    same(t);
    check_tensor(t.dim() == 2 && t.size(1) == in && (out == 0 || t.size(0) == out) && (t.stride(1) == 1 || in == 1), t,
                 "[", out == 0 ? "out" : std::to_string(out), ", ", in, "], rows without gaps; got ", shape_of(t),
                 "; check the layer's sizes");
    return {t.data_ptr(), vector(bias, t.size(0)), t.size(0), t.stride(0)};
  }
  Weight packed(const Tensor& t, const OptTensor& bias, int64_t out, int64_t in, const Packings& packings,
                int which) const {
    kernels::check_device(t, device);
    const kernels::Packing packing = packings.of(which, t, in);
    const std::string_view format = packings.named_one(which) ? kernels::kPackings[int(packing)].name
                                    : packings.named()        ? std::string_view("no packing: its format is plain")
                                                              : std::string_view("Q8_0, Q4_0 or Q4_1");
    check_tensor(t.scalar_type() == kernels::ScalarType::Byte && (device.is_cpu() || packings.named()) &&
                     holds_rows(packing, t, in) && (out == 0 || t.size(0) == out) && t.stride(1) == 1,
                 t, "packed as [", out == 0 ? "out" : std::to_string(out), ", bytes of ", in, " weights in ", format,
                 packings.named() ? "]" : "] on the CPU", ", in uint8; got ", shape_of(t), " of ",
                 kernels::dtype_name(t), " on ", device, "; check the layer's sizes, or dequantise it");
    return {t.data_ptr(), vector(bias, t.size(0)), t.size(0), t.stride(0), packing};
  }
  CacheRows cache(const Tensor& t, int64_t rows, int64_t heads, int64_t dim) const {
    same(t);
    check_tensor(
        t.dim() == 4 && t.size(0) == rows && t.size(2) == heads && t.size(3) == dim && (t.stride(3) == 1 || dim == 1),
        t, "[", rows, ", capacity, ", heads, ", ", dim, "]; got ", shape_of(t), "; use one cache per batch");
    return {t.data_ptr(), t.stride(0), t.stride(1), t.stride(2)};
  }
  Rope rope(const Tensor& cos, const Tensor& sin, int64_t rows, int64_t dim) const {
    same(cos), same(sin);
    const int64_t tables = dim > 0 ? cos.numel() / dim : 0;
    const auto is_table = [&](const Tensor& t) {
      return t.dim() >= 1 && t.size(t.dim() - 1) == dim && t.numel() == cos.numel() && t.is_contiguous();
    };
    check(is_table(cos) && is_table(sin) && (tables == 1 || tables == rows), op, ": expected cos and sin [1 or ", rows,
          ", ", dim, "], contiguous; got ", shape_of(cos), " and ", shape_of(sin),
          "; a rotary embedding of part of a head is not served");
    return {cos.data_ptr(), sin.data_ptr(), tables == 1 ? 0 : dim};
  }
  const int64_t* positions(const Tensor& t, int64_t rows) const {
    kernels::check_device(t, device);
    check_tensor(
        t.scalar_type() == kernels::ScalarType::Long && t.is_contiguous() && (t.numel() == 1 || t.numel() == rows), t,
        "as one int64 for all rows, or one for each of ", rows, "; got ", shape_of(t), " in ", kernels::dtype_name(t),
        "; cast or repeat it");
    return static_cast<const int64_t*>(t.data_ptr());
  }
};

void run_cpu(const Layer& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t position = a.position[row * a.position_stride];
    check(position >= 0 && position < a.capacity, kOp, ": expected a position from 0 to ", a.capacity - 1, "; got ",
          position, " for row ", row, "; make the cache longer");
  }
  // A thread for each kGrain weights, as a product alone would have: more would only wait for each other.
  const int64_t weights = a.hidden * (a.q.out + a.k.out + a.v.out + 3 * a.gate.out) + a.o.out * a.q.out;
  const int64_t threads = torch::stable::get_num_threads(), worth = weights * a.rows / kernels::kGrain;
  kernels::Team team{.members = std::clamp<int64_t>(worth, 1, threads)};
  const int64_t own = table().own_bytes(a), up = a.rows * a.gate.out * kernels::size_of(a.dtype), line = 64;
  thread_local std::vector<char> memory;  // reused: a step makes a call for each layer
  memory.resize(size_t(team.members * own + up + line));
  char* const aligned = memory.data() + (line - reinterpret_cast<uintptr_t>(memory.data()) % line) % line;
  const Room room{.up = aligned + team.members * own, .mine = aligned, .mine_stride = own};
  torch::stable::parallel_for(0, team.members, 1, [&](int64_t begin, int64_t end) {
    table().layer(a, room, {team, begin, end - begin});
  });
}

Tensor decoder_layer_packed(const Tensor& given_x, const Tensor& input_norm, const Tensor& q, const OptTensor& q_bias,
                            const Tensor& k, const OptTensor& k_bias, const Tensor& v, const OptTensor& v_bias,
                            const OptTensor& q_norm, const OptTensor& k_norm, const Tensor& cos, const Tensor& sin,
                            const Tensor& k_cache, const Tensor& v_cache, const Tensor& position, const Tensor& o,
                            const OptTensor& o_bias, const Tensor& post_norm, const Tensor& gate,
                            const OptTensor& gate_bias, const Tensor& up, const OptTensor& up_bias, const Tensor& down,
                            const OptTensor& down_bias, double eps, double head_eps, double scale, int64_t window,
                            const std::string& activation, const std::string& formats, bool prefetch_weights) {
  const Packings packings(formats, kOp);
  check_tensor(given_x.dim() >= 2, given_x, "[..., hidden]; got ", shape_of(given_x), "; unsqueeze it");
  check_tensor(k_cache.dim() == 4, k_cache, "[batch, capacity, kv_heads, head_dim]; got ", shape_of(k_cache),
               "; make it so");
  check(activation == "silu" || activation == "gelu_tanh", kOp, ": expected the activation silu or gelu_tanh; got \"",
        activation, "\"; run the stock layer");
  constexpr uintptr_t kVector = 16;  // what a GPU reads at once
  Tensor x = torch::stable::contiguous(given_x);
  if (reinterpret_cast<uintptr_t>(x.data_ptr()) % kVector != 0) x = torch::stable::clone(x);
  const Call call{kernels::dtype_of(given_x), kernels::device_of(x)};
  const int64_t hidden = x.size(x.dim() - 1), rows = hidden > 0 ? x.numel() / hidden : 0;
  check(rows <= kMaxRows, kOp, ": expected at most ", kMaxRows, " rows; got ", rows, "; run the stock layer");
  Layer a{};
  a.dtype = call.dtype, a.x = x.data_ptr(), a.rows = rows, a.hidden = hidden;
  a.eps = float(eps), a.head_eps = float(head_eps), a.scale = float(scale), a.window = window;
  a.act = activation == "silu" ? Act::kSilu : Act::kGeluTanh, a.prefetch_weights = prefetch_weights;
  a.kv_heads = k_cache.size(2), a.head_dim = k_cache.size(3), a.capacity = k_cache.size(1);
  a.input_norm = call.vector(input_norm, hidden);
  a.post_norm = call.vector(post_norm, hidden);
  a.q = call.weight(q, q_bias, 0, hidden, packings, 0);
  a.k = call.weight(k, k_bias, a.kv_heads * a.head_dim, hidden, packings, 1);
  a.v = call.weight(v, v_bias, a.kv_heads * a.head_dim, hidden, packings, 2);
  a.heads = a.head_dim > 0 ? a.q.out / a.head_dim : 0;
  check(a.kv_heads > 0 && a.heads > 0 && a.head_dim % 2 == 0 && a.heads * a.head_dim == a.q.out &&
            a.heads % a.kv_heads == 0,
        kOp, ": expected query heads as wide as the cache's, ", a.head_dim, ", at least one and a multiple of its ",
        a.kv_heads, "; got a queries' weight ", shape_of(q), "; check the layer's sizes");
  a.o = call.weight(o, o_bias, hidden, a.q.out, packings, 3);
  a.gate = call.weight(gate, gate_bias, 0, hidden, packings, 4);
  a.up = call.weight(up, up_bias, a.gate.out, hidden, packings, 5);
  a.down = call.weight(down, down_bias, hidden, a.gate.out, packings, 6);
  a.q_norm = call.vector(q_norm, a.head_dim);
  a.k_norm = call.vector(k_norm, a.head_dim);
  const Rope rope = call.rope(cos, sin, rows, a.head_dim);
  a.cos = rope.cos, a.sin = rope.sin, a.rope_stride = rope.stride;
  a.keys = call.cache(k_cache, rows, a.kv_heads, a.head_dim);
  a.values = call.cache(v_cache, rows, a.kv_heads, a.head_dim);
  check(v_cache.size(1) == a.capacity, kOp, ": expected caches of one capacity; got ", a.capacity, " and ",
        v_cache.size(1), "; make both from the same lengths");
  a.position = call.positions(position, rows);
  a.position_stride = position.numel() == 1 ? 0 : 1;

  const auto make = [&](int64_t width) { return kernels::empty({rows, width}, call.dtype, call.device); };
  Tensor qkv = make(a.q.out + a.k.out + a.v.out), attended = make(a.q.out), h = make(hidden), gated = make(a.gate.out);
  Tensor out = kernels::empty_like(x, call.dtype);
  a.qkv = qkv.data_ptr(), a.attended = attended.data_ptr(), a.h = h.data_ptr(), a.gated = gated.data_ptr();
  a.out = out.data_ptr();
  if (rows == 0) return out;
  kernels::run_on(
      call.device,
      [&](auto stream) {
        const char* wanted = cuda::refuses(a);
        check(wanted == nullptr, kOp, ": expected ", wanted == nullptr ? "" : wanted, "; got x ", shape_of(x), ", ",
              a.heads, " heads of ", a.head_dim, " over ", a.kv_heads, "; run the stock layer");
        cuda::layer(a, stream);
      },
      [&] { run_cpu(a); });
  return out;
}

Tensor decoder_layer(const Tensor& x, const Tensor& input_norm, const Tensor& q, const OptTensor& q_bias,
                     const Tensor& k, const OptTensor& k_bias, const Tensor& v, const OptTensor& v_bias,
                     const OptTensor& q_norm, const OptTensor& k_norm, const Tensor& cos, const Tensor& sin,
                     const Tensor& k_cache, const Tensor& v_cache, const Tensor& position, const Tensor& o,
                     const OptTensor& o_bias, const Tensor& post_norm, const Tensor& gate, const OptTensor& gate_bias,
                     const Tensor& up, const OptTensor& up_bias, const Tensor& down, const OptTensor& down_bias,
                     double eps, double head_eps, double scale, int64_t window, const std::string& activation,
                     bool weights_are_old) {
  return decoder_layer_packed(x, input_norm, q, q_bias, k, k_bias, v, v_bias, q_norm, k_norm, cos, sin, k_cache,
                              v_cache, position, o, o_bias, post_norm, gate, gate_bias, up, up_bias, down, down_bias,
                              eps, head_eps, scale, window, activation, /*formats=*/"", weights_are_old);
}

void run_cpu(const Heads& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t position = a.position[row * a.position_stride];
    check(position >= 0 && position < a.capacity, kHeads, ": expected a position from 0 to ", a.capacity - 1, "; got ",
          position, " for row ", row, "; make the cache longer");
  }
  kernels::parallel_rows(a.rows, (a.heads + 2 * a.kv_heads) * a.head_dim,
                         [&](int64_t begin, int64_t end) { table().heads(a, begin, end); });
}

Tensor decoder_heads(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor& q_norm,
                     const OptTensor& k_norm, const Tensor& cos, const Tensor& sin, const Tensor& k_cache,
                     const Tensor& v_cache, const Tensor& position, double head_eps) {
  const Call call{kernels::dtype_of(q), kernels::device_of(q), kHeads, "q"};
  check_tensor(k_cache.dim() == 4, k_cache, "[batch, capacity, kv_heads, head_dim]; got ", shape_of(k_cache),
               "; make it so");
  const kernels::Rows queries = kernels::as_rows(q, call.device), keys = kernels::as_rows(k, call.device),
                      values = kernels::as_rows(v, call.device);
  call.same(k), call.same(v);
  Heads a{};
  a.dtype = call.dtype, a.rows = queries.rows, a.eps = float(head_eps);
  a.kv_heads = k_cache.size(2), a.head_dim = k_cache.size(3), a.capacity = k_cache.size(1);
  a.heads = a.head_dim > 0 ? queries.cols / a.head_dim : 0;
  const bool fits = a.head_dim > 0 && a.head_dim % 2 == 0 && a.heads > 0 && a.heads * a.head_dim == queries.cols &&
                    keys.cols == a.kv_heads * a.head_dim && values.cols == keys.cols && keys.rows == a.rows &&
                    values.rows == a.rows;
  check(fits, kHeads, ": expected q, k and v [rows, heads * head_dim] of the cache's ", a.kv_heads, " heads of ",
        a.head_dim, "; got ", shape_of(q), ", ", shape_of(k), " and ", shape_of(v), "; check the layer's sizes");
  check(call.device.is_cpu() || ((a.head_dim == 64 || a.head_dim == 128) && a.dtype != DType::kFloat32), kHeads,
        ": expected a head_dim of 64 or 128, of bfloat16 or float16; got ", a.head_dim,
        "; run the layer's own norms and rotary embedding");
  a.q = queries.data, a.q_stride = queries.stride, a.k = keys.data, a.k_stride = keys.stride;
  a.v = values.data, a.v_stride = values.stride;
  a.q_norm = call.vector(q_norm, a.head_dim);
  a.k_norm = call.vector(k_norm, a.head_dim);
  const Rope rope = call.rope(cos, sin, a.rows, a.head_dim);
  a.cos = rope.cos, a.sin = rope.sin, a.rope_stride = rope.stride;
  a.keys = call.cache(k_cache, a.rows, a.kv_heads, a.head_dim);
  a.values = call.cache(v_cache, a.rows, a.kv_heads, a.head_dim);
  check(v_cache.size(1) == a.capacity, kHeads, ": expected caches of one capacity; got ", a.capacity, " and ",
        v_cache.size(1), "; make both from the same lengths");
  a.position = call.positions(position, a.rows);
  a.position_stride = position.numel() == 1 ? 0 : 1;
  Tensor out = kernels::empty({a.rows, 1, a.heads, a.head_dim}, a.dtype, call.device);
  a.out = out.data_ptr();
  if (a.rows == 0) return out;
  kernels::run_on(
      call.device, [&](auto stream) { cuda::heads(a, stream); }, [&] { run_cpu(a); });
  return out;
}

void run_cpu(const Inputs& a) {
  const auto row_of = [](const void* table, int64_t row, int64_t width) {
    return static_cast<const char*>(table) + row * width;
  };
  check(*a.length >= 0 && *a.length < a.places, kInputs, ": expected a length from 0 to ", a.places - 1, "; got ",
        *a.length, "; make the table of cos and sin longer");
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t id = a.ids[row];
    check(id >= 0 && id < a.known, kInputs, ": expected ids from 0 to ", a.known - 1, "; got ", id,
          "; check the tokens");
    std::memcpy(static_cast<char*>(a.x) + row * a.width, row_of(a.embedding, id, a.width), size_t(a.width));
  }
  std::memcpy(a.row, row_of(a.rope, *a.length, a.rope_width), size_t(a.rope_width));
  *a.place = (*a.length)++;
}

std::tuple<Tensor, Tensor, Tensor> decoder_inputs(const Tensor& ids, const Tensor& embedding, const Tensor& rope,
                                                  const Tensor& length) {
  const DType dtype = kernels::dtype_of(embedding);
  const Device device = kernels::device_of(embedding);
  for (const Tensor* t : {&ids, &rope, &length}) kernels::check_device(*t, device);
  kernels::check_same_dtype(rope, dtype, "embedding");
  const auto is_table = [](const Tensor& t) { return t.dim() == 2 && t.is_contiguous() && t.numel() > 0; };
  check(is_table(embedding) && is_table(rope), kInputs,
        ": expected embedding [ids, hidden] and rope [places, 2 head_dim], without gaps; got ", shape_of(embedding),
        " and ", shape_of(rope), "; look them up by torch");
  kernels::check_dtype(ids, kernels::ScalarType::Long), kernels::check_dtype(length, kernels::ScalarType::Long);
  check(ids.is_contiguous() && length.is_contiguous() && length.numel() == 1, kInputs,
        ": expected ids and one length without gaps; got ", shape_of(ids), " and ", shape_of(length), "; make them so");
  const int64_t rows = ids.numel(), hidden = embedding.size(1), tables = rope.size(1), bytes = kernels::size_of(dtype);
  Tensor x = kernels::empty({rows, 1, hidden}, dtype, device), row = kernels::empty({1, 1, tables}, dtype, device);
  Tensor place =
      kernels::empty_like_shape(length.sizes().data(), length.dim(), int32_t(kernels::ScalarType::Long), device);
  const Inputs a{.rows = rows,
                 .ids = static_cast<const int64_t*>(ids.data_ptr()),
                 .embedding = embedding.data_ptr(),
                 .known = embedding.size(0),
                 .width = hidden * bytes,
                 .rope = rope.data_ptr(),
                 .places = rope.size(0),
                 .rope_width = tables * bytes,
                 .length = static_cast<int64_t*>(length.data_ptr()),
                 .x = x.data_ptr(),
                 .row = row.data_ptr(),
                 .place = static_cast<int64_t*>(place.data_ptr())};
  kernels::run_on(
      device, [&](auto stream) { cuda::inputs(a, stream); }, [&] { run_cpu(a); });
  return {x, row, place};
}

// How many rows a host gives to decoder_layer and not to the layer's parts, which are faster with more; 0: none, and
// none where tensors are such that decoder_layer would refuse them.
int64_t decoder_layer_packed_rows(const Tensor& input_norm, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor& o, const Tensor& post_norm, const Tensor& gate, const Tensor& up,
                                  const Tensor& down, const std::string& formats) {
  const Packings packings(formats, kRows);
  const Device device = kernels::device_of(input_norm);
  bool served =
      input_norm.is_contiguous() && post_norm.is_contiguous() && post_norm.scalar_type() == input_norm.scalar_type();
  int which = 0, packed = 0;
  const auto weight = [&](const Tensor& t, int64_t in) -> Weight {
    kernels::check_device(t, device);
    check_tensor(t.dim() == 2, t, "[out, in]; got ", shape_of(t), "; check the layer's sizes");
    const int index = which++;
    Weight w{.data = t.data_ptr(), .bias = nullptr, .out = t.size(0), .stride = t.stride(0)};
    if (t.scalar_type() == kernels::ScalarType::Byte) {
      w.packing = packings.of(index, t, in);
      ++packed;
      served = served && (device.is_cpu() || packings.named()) && holds_rows(w.packing, t, in) && t.stride(1) == 1;
    } else {
      served = served && t.scalar_type() == input_norm.scalar_type() && t.size(1) == in && t.stride(1) == 1 &&
               !packings.named_one(index);
    }
    return w;
  };
  Layer a{};
  a.dtype = kernels::dtype_of(input_norm), a.hidden = input_norm.numel();
  a.input_norm = input_norm.data_ptr(), a.post_norm = post_norm.data_ptr();
  a.q = weight(q, a.hidden), a.k = weight(k, a.hidden), a.v = weight(v, a.hidden), a.o = weight(o, a.q.out);
  a.gate = weight(gate, a.hidden), a.up = weight(up, a.hidden), a.down = weight(down, a.gate.out);
  if (!served) return 0;
  if (!device.is_cpu() && packed > 0) {
    bool takes = false;
    kernels::run_on(
        device, [&](auto) { takes = cuda::takes_packed_rows(); }, [] {});
    return takes ? cuda::supported_packed_rows(a) : 0;
  }
  if (!device.is_cpu()) return cuda::paying_rows(a);
  return a.dtype == DType::kBFloat16 && packed < kWeights && kernels::multiplies_bfloat16() ? kMaxBfloat16Rows
                                                                                            : kMaxRows;
}

int64_t decoder_layer_rows(const Tensor& input_norm, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                           const Tensor& post_norm, const Tensor& gate, const Tensor& up, const Tensor& down) {
  return decoder_layer_packed_rows(input_norm, q, k, v, o, post_norm, gate, up, down, /*formats=*/"");
}

constexpr std::array kOps{
    kernels::op<&decoder_layer>(
        "decoder_layer(Tensor x, Tensor input_norm, Tensor q, Tensor? q_bias, Tensor k, Tensor? k_bias, Tensor v, "
        "Tensor? v_bias, Tensor? q_norm, Tensor? k_norm, Tensor cos, Tensor sin, Tensor(a!) k_cache, "
        "Tensor(b!) v_cache, Tensor position, Tensor o, Tensor? o_bias, Tensor post_norm, Tensor gate, "
        "Tensor? gate_bias, Tensor up, Tensor? up_bias, Tensor down, Tensor? down_bias, float eps, float head_eps, "
        "float scale, int window, str activation, bool weights_are_old=False) -> Tensor"),
    kernels::op<&decoder_layer_packed>(
        "decoder_layer_packed(Tensor x, Tensor input_norm, Tensor q, Tensor? q_bias, Tensor k, Tensor? k_bias, "
        "Tensor v, Tensor? v_bias, Tensor? q_norm, Tensor? k_norm, Tensor cos, Tensor sin, Tensor(a!) k_cache, "
        "Tensor(b!) v_cache, Tensor position, Tensor o, Tensor? o_bias, Tensor post_norm, Tensor gate, "
        "Tensor? gate_bias, Tensor up, Tensor? up_bias, Tensor down, Tensor? down_bias, float eps, float head_eps, "
        "float scale, int window, str activation, str formats, bool prefetch_weights=False) -> Tensor"),
    kernels::op<&decoder_inputs>("decoder_inputs(Tensor ids, Tensor embedding, Tensor rope, Tensor(a!) length) -> "
                                 "(Tensor x, Tensor row, Tensor place)"),
    kernels::op<&decoder_heads>(
        "decoder_heads(Tensor q, Tensor k, Tensor v, Tensor? q_norm, Tensor? k_norm, Tensor cos, Tensor sin, "
        "Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor position, float head_eps) -> Tensor"),
    kernels::op<&decoder_layer_rows>(
        "decoder_layer_rows(Tensor input_norm, Tensor q, Tensor k, Tensor v, Tensor o, Tensor post_norm, Tensor gate, "
        "Tensor up, Tensor down) -> int"),
    kernels::op<&decoder_layer_packed_rows>(
        "decoder_layer_packed_rows(Tensor input_norm, Tensor q, Tensor k, Tensor v, Tensor o, Tensor post_norm, "
        "Tensor gate, Tensor up, Tensor down, str formats) -> int")};
const kernels::Library<kOps> library;

}  // namespace
}  // namespace decode
