// What a model remembers of the tokens that it has seen, in memory that grows: a part for each layer, of the kind that
// the layer needs.
//
//   auto cache = model.make_cache();                   // layers with a window forget
//   model({.input_ids = ids, .cache = cache.get()});
//
// Sequences of their own lengths, and steps of static shape, are in memory of the engine's (engine/kv_pool.h). A layer
// that keeps something else brings its own CacheLayer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "hotswap/layers/step_batch.h"

namespace hotswap {

class KeyValueLayer;
class RecurrentLayer;

class CacheLayer {
 public:
  virtual ~CacheLayer() = default;
  virtual void crop(int64_t length) = 0;  // forgets the tokens from `length` on; 0: all, which every layer can
  virtual void check_crop(int64_t /*length*/) const {}     // Error where crop() would be one
  virtual KeyValueLayer* key_values() { return nullptr; }  // null: it keeps none, as the next
  virtual RecurrentLayer* recurrence() { return nullptr; }
};

// Keys and values. Inference only: memory that is written in place has no gradient.
class KeyValueLayer : public CacheLayer {
 public:
  // k, v of the new tokens: [batch, new, kv_heads, head_dim] -> what they may look at: [batch, kv_time, ...].
  virtual std::pair<Tensor, Tensor> update(const Tensor& k, const Tensor& v) = 0;
  // See StepMemory.
  virtual std::pair<Tensor, Tensor> writable_rows(int64_t /*batch*/) { return {}; }
  KeyValueLayer* key_values() override { return this; }
};

// What a recurrence keeps of all tokens that it has seen, however many: two tensors whose memory never moves, zero
// before the first token. Who runs the recurrence writes them in place. Inference only, as above.
class RecurrentLayer : public CacheLayer {
 public:
  // `x`: says dtype and device where they are made. Error where they are of another batch.
  const RecurrentStates& states(const Tensor& x, at::IntArrayRef conv, at::IntArrayRef ssm);
  void crop(int64_t length) override;
  void check_crop(int64_t length) const override;
  RecurrentLayer* recurrence() override { return this; }

 private:
  RecurrentStates states_;
};

// Of a layer that attends and has a recurrence, side by side.
class KeysAndStatesLayer : public CacheLayer {
 public:
  explicit KeysAndStatesLayer(std::unique_ptr<CacheLayer> keys) : keys_(std::move(keys)) {}
  void crop(int64_t length) override {
    check_crop(length);
    keys_->crop(length);
    states_.crop(length);
  }
  void check_crop(int64_t length) const override {
    keys_->check_crop(length);
    states_.check_crop(length);
  }
  KeyValueLayer* key_values() override { return keys_->key_values(); }
  RecurrentLayer* recurrence() override { return &states_; }

 private:
  std::unique_ptr<CacheLayer> keys_;
  RecurrentLayer states_;
};

// Of a layer that looks at each token by itself.
class EmptyLayer : public CacheLayer {
 public:
  void crop(int64_t /*length*/) override {}
};

class Cache : public StepMemory {
 public:
  explicit Cache(std::vector<std::unique_ptr<CacheLayer>> layers) : layers_(std::move(layers)) {}

  std::pair<Tensor, Tensor> update(int64_t layer, const Tensor& k, const Tensor& v) override;
  std::pair<Tensor, Tensor> writable_rows(int64_t layer, int64_t batch) override;
  RecurrentStates states(int64_t layer, const Tensor& x, at::IntArrayRef conv, at::IntArrayRef ssm) override;

  int64_t length() const { return length_; }       // tokens seen
  void advance(int64_t time) { length_ += time; }  // by the model, after each forward
  void crop(int64_t length);                       // see CacheLayer

 private:
  std::vector<std::unique_ptr<CacheLayer>> layers_;
  int64_t length_ = 0;
};

// For a layer that attends, with window > 0 to its last `window` tokens. reserve: tokens that fit without growing.
std::unique_ptr<CacheLayer> make_key_value_layer(int64_t reserve = 0, int64_t window = 0);

}  // namespace hotswap
