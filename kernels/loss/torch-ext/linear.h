// Linear cross-entropy: the loss of hidden @ weight^T + bias, chunk by chunk, so that never more logits exist than
// those of one chunk. Ignored rows are left out of the chunks. GEMMs are torch's own (MKL, oneDNN), into buffers made
// once.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>

#include "kernels/common/torch/gemm.h"
#include "kernels/loss/torch-ext/options.h"

namespace loss {

using kernels::multiply;
using kernels::Window;

struct LinearLoss {
  Tensor row_loss, lse;            // [rows], [rows, 2] float32
  Tensor dhidden, dweight, dbias;  // like hidden, weight, bias; [0] where not wanted
  Tensor predicted;                // [rows] int64, of rows that count; [0] where not wanted
};

class LinearCrossEntropy {
 public:
  struct Inputs {
    const Tensor &hidden, &weight;      // [rows, dim], [vocab, dim]
    const std::optional<Tensor>& bias;  // [vocab]
    const Tensor& target;               // [rows]
  };
  LinearCrossEntropy(const Inputs& in, const Options& o, int64_t chunk_bytes);

  int64_t rows() const { return hidden_.rows; }
  int64_t valid() const { return targets_.valid; }

  struct Wanted {
    bool gradients;  // of the sum of row losses, times scale, and times dloss[row] where it is given
    float scale;
    const float* dloss;      // [rows] or null
    const float* known_lse;  // [rows, 2] of an earlier call, or null
    bool predicted;
  };
  LinearLoss run(const Wanted& wanted);

 private:
  struct Chunk {
    const int64_t* index;  // [rows] which rows of hidden, ascending
    int64_t rows;
    bool first, only;
    bool together() const { return index[rows - 1] - index[0] == rows - 1; }
  };
  Window gathered(const Chunk& c);
  void losses(const Chunk& c, const Window& hidden, const Wanted& wanted, LinearLoss& result);
  void predict(const Chunk& c, const Tensor& logits, LinearLoss& result);
  void hidden_gradient(const Chunk& c, float scale, LinearLoss& result);
  void weight_gradient(const Chunk& c, const Window& hidden, float scale, LinearLoss& result);
  void prepare_gradients(int64_t chunk, LinearLoss& result);
  void finish_gradients(LinearLoss& result);
  Window logits(const Chunk& c) const { return {logits_.data_ptr(), c.rows, vocab_, vocab_}; }
  char* at(const Tensor& t, int64_t element) const { return static_cast<char*>(t.data_ptr()) + element * size_; }

  Options o_;
  int64_t chunk_bytes_;
  kernels::Rows hidden_, weight_;
  std::optional<Tensor> bias_;
  DType dtype_;
  int64_t size_, vocab_, dim_;
  Targets targets_;
  std::vector<int64_t> valid_rows_;
  Tensor logits_;                 // [chunk, vocab], in the end their gradient
  Tensor gather_, spread_;        // [chunk, dim] of hidden and dhidden, where a chunk's rows do not lie together
  Tensor weight_sum_, bias_sum_;  // [vocab, dim], [vocab] float32
  Tensor block_;                  // [kWeightBlock, dim] low-precision product on its way into weight_sum_
};

// Rows of the weight whose low-precision gradient is made at once before it joins the fp32 sum.
constexpr int64_t kWeightBlock = 8192;

inline LinearCrossEntropy::LinearCrossEntropy(const Inputs& in, const Options& o, int64_t chunk_bytes)
    : o_(o),
      chunk_bytes_(chunk_bytes),
      hidden_(kernels::as_rows(in.hidden)),
      weight_(kernels::as_rows(in.weight)),
      bias_(in.bias),
      dtype_(kernels::dtype_of(in.hidden)),
      size_(kernels::size_of(dtype_)),
      vocab_(in.weight.size(0)),
      dim_(hidden_.cols) {
  check_linear(in.hidden, in.weight, in.bias);
  check_classes(o, vocab_, kernels::cpu());
  targets_ = targets(in.target, rows(), vocab_, o_);
  for (int64_t row = 0; row < rows(); ++row) {
    if (targets_.data[row] != o_.ignore_index) valid_rows_.push_back(row);
  }
}

inline LinearLoss LinearCrossEntropy::run(const Wanted& wanted) {
  LinearLoss result;
  result.row_loss = kernels::empty({rows()}, DType::kFloat32);
  result.lse = kernels::empty({rows(), 2}, DType::kFloat32);
  std::memset(result.row_loss.data_ptr(), 0, sizeof(float) * rows());
  std::memset(result.lse.data_ptr(), 0, sizeof(float) * 2 * rows());
  result.predicted = empty_words(wanted.predicted ? rows() : 0, kernels::cpu());
  std::memset(result.predicted.data_ptr(), 0, sizeof(int64_t) * result.predicted.numel());
  const int64_t most = chunk_rows(valid(), size_, vocab_, chunk_bytes_);
  if (wanted.gradients) prepare_gradients(most, result);
  if (valid() > 0) logits_ = kernels::empty({most, vocab_}, dtype_);
  for (int64_t first = 0; first < valid(); first += most) {
    const Chunk c{.index = valid_rows_.data() + first,
                  .rows = std::min(most, valid() - first),
                  .first = first == 0,
                  .only = most >= valid()};
    const Window hidden = gathered(c);
    losses(c, hidden, wanted, result);
    if (!wanted.gradients) continue;
    hidden_gradient(c, wanted.scale, result);
    weight_gradient(c, hidden, wanted.scale, result);
  }
  if (wanted.gradients) finish_gradients(result);
  return result;
}

// The chunk's rows of hidden: where they lie, or copied together.
inline Window LinearCrossEntropy::gathered(const Chunk& c) {
  const char* data = static_cast<const char*>(hidden_.data);
  if (c.together())
    return {const_cast<char*>(data) + c.index[0] * hidden_.stride * size_, c.rows, dim_, hidden_.stride};
  if (!gather_.defined()) gather_ = kernels::empty({logits_.size(0), dim_}, dtype_);
  for (int64_t i = 0; i < c.rows; ++i) {
    std::memcpy(at(gather_, i * dim_), data + c.index[i] * hidden_.stride * size_, dim_ * size_);
  }
  return {gather_.data_ptr(), c.rows, dim_, dim_};
}

// Logits of the chunk, their losses, and in their place their gradients, unscaled: small gradients divided by many rows
// would be lost to float16; the GEMMs that follow scale their fp32 sums.
inline void LinearCrossEntropy::losses(const Chunk& c, const Window& hidden, const Wanted& wanted, LinearLoss& result) {
  const Tensor logits = this->logits(c).tensor(dtype_);
  const Window weight{weight_.data, vocab_, dim_, weight_.stride};
  multiply(logits, hidden.tensor(dtype_), weight.transposed().tensor(dtype_), bias_ ? *bias_ : logits, bias_ ? 1 : 0,
           1);

  if (wanted.predicted) predict(c, logits, result);

  std::vector<int64_t> target(c.rows);
  std::vector<float> loss(c.rows), lse(2 * c.rows), dloss(c.rows, 1.f);
  for (int64_t i = 0; i < c.rows; ++i) {
    target[i] = targets_.data[c.index[i]];
    if (wanted.known_lse != nullptr) std::copy_n(wanted.known_lse + 2 * c.index[i], 2, &lse[2 * i]);
    if (wanted.dloss != nullptr) dloss[i] = wanted.dloss[c.index[i]];
  }
  run_rows(with_options({.dtype = dtype_,
                         .logits = logits_.data_ptr(),
                         .logits_stride = vocab_,
                         .dlogits = wanted.gradients ? logits_.data_ptr() : nullptr,
                         .dlogits_stride = vocab_,
                         .target = target.data(),
                         .loss = loss.data(),
                         .lse = lse.data(),
                         .dloss = dloss.data(),
                         .grad_scale = 1.f,
                         .lse_known = wanted.known_lse != nullptr,
                         .rows = c.rows,
                         .vocab = vocab_},
                        o_));
  for (int64_t i = 0; i < c.rows; ++i) {
    static_cast<float*>(result.row_loss.data_ptr())[c.index[i]] = loss[i];
    std::copy_n(&lse[2 * i], 2, static_cast<float*>(result.lse.data_ptr()) + 2 * c.index[i]);
  }
}

inline void LinearCrossEntropy::predict(const Chunk& c, const Tensor& logits, LinearLoss& result) {
  const Tensor found = highest(logits, 1);
  const auto* words = static_cast<const int64_t*>(found.data_ptr());
  for (int64_t i = 0; i < c.rows; ++i) static_cast<int64_t*>(result.predicted.data_ptr())[c.index[i]] = words[i];
}

inline void LinearCrossEntropy::prepare_gradients(int64_t chunk, LinearLoss& result) {
  result.dhidden = kernels::empty({rows(), dim_}, dtype_);
  result.dweight = kernels::empty({valid() > chunk && dtype_ != DType::kFloat32 ? 0 : vocab_, dim_}, dtype_);
  result.dbias = kernels::empty({bias_ ? vocab_ : 0}, dtype_);
  if (valid() < rows()) std::memset(result.dhidden.data_ptr(), 0, rows() * dim_ * size_);
  if (valid() == 0) std::memset(result.dweight.data_ptr(), 0, vocab_ * dim_ * size_);
  if (bias_) {
    bias_sum_ = dtype_ == DType::kFloat32 ? result.dbias : kernels::empty({vocab_}, DType::kFloat32);
    std::memset(bias_sum_.data_ptr(), 0, sizeof(float) * vocab_);
  }
}

// dhidden = dlogits @ weight
inline void LinearCrossEntropy::hidden_gradient(const Chunk& c, float scale, LinearLoss& result) {
  const Window weight{weight_.data, vocab_, dim_, weight_.stride};
  const bool spread = !c.together();
  if (spread && !spread_.defined()) spread_ = kernels::empty({logits_.size(0), dim_}, dtype_);
  void* data = spread ? spread_.data_ptr() : at(result.dhidden, c.index[0] * dim_);
  const Tensor out = Window{data, c.rows, dim_, dim_}.tensor(dtype_);
  multiply(out, logits(c).tensor(dtype_), weight.tensor(dtype_), out, 0, scale);
  for (int64_t i = 0; spread && i < c.rows; ++i) {
    std::memcpy(at(result.dhidden, c.index[i] * dim_), at(spread_, i * dim_), dim_ * size_);
  }
}

// dweight += dlogits^T @ hidden, summed in fp32; dbias += the columns of dlogits. A low-precision product is a mean
// over the chunk's rows: as large as hidden at most, and its small numbers are not made smaller before they are
// rounded.
inline void LinearCrossEntropy::weight_gradient(const Chunk& c, const Window& hidden, float scale, LinearLoss& result) {
  if (bias_) {
    const ColumnSum sum{dtype_, logits_.data_ptr(), vocab_, c.rows, static_cast<float*>(bias_sum_.data_ptr()), scale};
    kernels::parallel_rows(vocab_, c.rows, [&](int64_t begin, int64_t end) { table().column_sum(sum, begin, end); });
  }
  const Tensor rows = hidden.tensor(dtype_);
  if (c.only || dtype_ == DType::kFloat32) {
    const Tensor out = result.dweight;
    multiply(out, logits(c).transposed().tensor(dtype_), rows, out, c.first ? 0 : 1, scale);
    return;
  }
  if (c.first) {
    weight_sum_ = kernels::empty({vocab_, dim_}, DType::kFloat32);
    block_ = kernels::empty({std::min(kWeightBlock, vocab_), dim_}, dtype_);
  }
  for (int64_t first = 0; first < vocab_; first += kWeightBlock) {
    const int64_t n = std::min(kWeightBlock, vocab_ - first);
    const Window dlogits{at(logits_, first), c.rows, n, vocab_};
    const Tensor out = Window{block_.data_ptr(), n, dim_, dim_}.tensor(dtype_);
    multiply(out, dlogits.transposed().tensor(dtype_), rows, out, 0, 1.0 / double(c.rows));
    const Accumulate sum{dtype_, block_.data_ptr(), static_cast<float*>(weight_sum_.data_ptr()) + first * dim_,
                         scale * float(c.rows), c.first};
    kernels::parallel_rows(n * dim_, 1, [&](int64_t begin, int64_t end) { table().accumulate(sum, begin, end); });
  }
}

inline void LinearCrossEntropy::finish_gradients(LinearLoss& result) {
  logits_ = Tensor();  // given back before the casts below ask for memory
  if (weight_sum_.defined()) result.dweight = torch::stable::to(weight_sum_, hidden_.tensor.scalar_type());
  if (bias_ && dtype_ != DType::kFloat32) result.dbias = torch::stable::to(bias_sum_, hidden_.tensor.scalar_type());
}

}  // namespace loss
