#include "hotswap/models/formats/four_bits.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/div.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include "hotswap/base/error.h"
#include "hotswap/base/log.h"

namespace hotswap {
namespace {

// Dettmers et al. (2023): quantiles of a normal distribution, 0 among them.
Tensor levels() {
  static const std::vector<float> values = {-1.0f,
                                            -0.6961928009986877f,
                                            -0.5250730514526367f,
                                            -0.39491748809814453f,
                                            -0.28444138169288635f,
                                            -0.18477343022823334f,
                                            -0.09105003625154495f,
                                            0.0f,
                                            0.07958029955625534f,
                                            0.16093020141124725f,
                                            0.24611230194568634f,
                                            0.33791524171829224f,
                                            0.44070982933044434f,
                                            0.5626170039176941f,
                                            0.7229568362236023f,
                                            1.0f};
  return at::tensor(values);
}

// A middle between two levels belongs to the lower one.
Tensor nearest(const Tensor& values, const Tensor& table) {
  const Tensor middles = table.narrow(0, 0, 15).add(table.narrow(0, 1, 15)).mul_(0.5);
  return at::bucketize(values, middles, /*out_int32=*/true, /*right=*/false).to(at::kByte);
}

class FourBitCheckpoint : public Checkpoint {
 public:
  FourBitCheckpoint(std::unique_ptr<const Checkpoint> plain, std::set<std::string> names, at::ScalarType dtype)
      : plain_(std::move(plain)), chosen_(std::move(names)), dtype_(dtype) {
    int64_t left = 0;
    for (const std::string& name : chosen_) left += plain_->has(name) && !fits(name) ? 1 : 0;
    if (left > 0) {
      log_warning(left, " weights of ", plain_->where(), " stay plain: their rows are no multiple of ", kFourBitBlock,
                  " elements");
    }
  }
  std::vector<std::string> names() const override { return plain_->names(); }
  bool has(const std::string& name) const override { return plain_->has(name); }
  std::vector<int64_t> shape(const std::string& name) const override { return plain_->shape(name); }
  at::ScalarType dtype(const std::string& name) const override { return plain_->dtype(name); }
  at::Tensor tensor(const std::string& name, at::ScalarType dtype) const override {
    return plain_->tensor(name, dtype);
  }
  std::optional<Weight> encoded(const std::string& name) const override {
    if (!chosen_.contains(name) || !fits(name)) return std::nullopt;
    return four_bits_of(plain_->tensor(name, dtype_));
  }
  bool is_file_memory(const std::string& name, at::ScalarType dtype) const override {
    return plain_->is_file_memory(name, dtype);
  }
  std::string where() const override { return plain_->where(); }
  const GgufFile* gguf() const override { return plain_->gguf(); }

 private:
  bool fits(const std::string& name) const {
    const auto shape = plain_->shape(name);
    return shape.size() == 2 && shape[1] % kFourBitBlock == 0;
  }
  std::unique_ptr<const Checkpoint> plain_;
  std::set<std::string> chosen_;
  at::ScalarType dtype_;
};

}  // namespace

void check(const BitsAndBytesConfig& config) {
  const auto refuse = [](const std::string& expected, const std::string& got, const std::string& next) {
    throw Error({.kind = ErrorKind::kUnsupported, .wanted = expected, .got = got, .next = next});
  };
  if (config.bnb_4bit_quant_type != "nf4") {
    refuse("bnb_4bit_quant_type nf4", config.bnb_4bit_quant_type, "take nf4, or quantise with bitsandbytes in Python");
  }
  if (config.bnb_4bit_use_double_quant) {
    refuse("bnb_4bit_use_double_quant false: scales are kept as float32", "true",
           "leave it out; a checkpoint that bitsandbytes saved so is read");
  }
}

Weight four_bits_of(const Tensor& weight) {
  const at::NoGradGuard no_grad;
  const int64_t rows = weight.size(0), columns = weight.size(1), blocks = columns / kFourBitBlock;
  const Tensor table = levels().to(weight.device());
  const Tensor values = weight.to(at::kFloat).reshape({rows, blocks, kFourBitBlock});
  const Tensor scales = at::amax(at::abs(values), -1);  // [rows, blocks]
  const Tensor divisor = at::where(at::eq(scales, 0), 1.0, scales).unsqueeze(-1);
  const Tensor codes = nearest(at::div(values, divisor), table).view({rows, columns / 2, 2});
  const Tensor packed = at::bitwise_or(codes.select(2, 0), at::bitwise_left_shift(codes.select(2, 1), 4));
  return {.format = WeightFormat::kTable16,
          .data = packed.contiguous(),
          .scales = scales,
          .table = table,
          .group = kFourBitBlock,
          .logical_shape = {rows, columns}};
}

std::unique_ptr<const Checkpoint> in_four_bits(std::unique_ptr<const Checkpoint> checkpoint,
                                               std::set<std::string> names, at::ScalarType dtype) {
  return std::make_unique<FourBitCheckpoint>(std::move(checkpoint), std::move(names), dtype);
}

}  // namespace hotswap
