// What a model remembers of the tokens that it has seen: a part for each layer, of the kind that the layer wants.
//
//   auto cache = model.make_cache();                                   // grows; layers with a window forget
//   auto fixed = model.make_cache({.implementation = "static", .max_cache_len = 512});
//   model({.input_ids = ids, .cache = cache.get()});
//
// A layer that keeps something else (pages of a pool) brings its own CacheLayer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/layers/step_batch.h"

namespace hotswap {

struct CacheOptions {
  std::string implementation = "dynamic";  // or "static": memory of a fixed size, and a step that never asks the device
  int64_t max_cache_len = 0;               // static: tokens that fit. dynamic: tokens that fit without growing
};

class CacheLayer {
 public:
  virtual ~CacheLayer() = default;
  virtual void crop(int64_t length) = 0;  // forgets the tokens from `length` on
  virtual void reset() = 0;
};

// Where a forward's tokens go in a cache of a fixed size.
struct FixedPlace {
  Tensor positions = {};  // [new] int64 on the device; undefined: the cache grows
  int64_t reach = 0;      // so many keys from the first on are looked at
  bool prompt = false;    // several tokens, and the first that there are: they look at each other alone
};

// Keys and values. Inference only: memory that is written in place has no gradient.
class KeyValueLayer : public CacheLayer {
 public:
  // k, v of the new tokens: [batch, new, kv_heads, head_dim] -> what they may look at: [batch, kv_time, ...].
  virtual std::pair<Tensor, Tensor> update(const Tensor& k, const Tensor& v, const FixedPlace& place) = 0;
  // See StepMemory.
  virtual std::pair<Tensor, Tensor> writable_rows(int64_t /*batch*/) { return {}; }
};

// What a recurrence keeps of all tokens that it has seen, however many: two tensors whose memory never moves, zero
// before the first token. Who runs the recurrence writes them in place. Inference only, as above.
class RecurrentLayer : public CacheLayer {
 public:
  // `x`: says dtype and device where they are made. Error where they are of another batch.
  const RecurrentStates& states(const Tensor& x, at::IntArrayRef conv, at::IntArrayRef ssm);
  void crop(int64_t length) override;
  void reset() override;

 private:
  RecurrentStates states_;
};

class Cache : public StepMemory {
 public:
  Cache(std::vector<std::unique_ptr<CacheLayer>> layers, CacheOptions options);

  std::pair<Tensor, Tensor> update(int64_t layer, const Tensor& k, const Tensor& v) override;
  std::pair<Tensor, Tensor> writable_rows(int64_t layer, int64_t batch) override;
  RecurrentStates states(int64_t layer, const Tensor& x, at::IntArrayRef conv, at::IntArrayRef ssm) override;
  CacheLayer& layer(int64_t index) { return *layers_.at(index); }
  int64_t size() const { return static_cast<int64_t>(layers_.size()); }

  int64_t length() const { return length_; }                                // tokens seen
  int64_t capacity() const { return fixed_ ? options_.max_cache_len : 0; }  // 0: it grows

  // Around one forward of `time` tokens, by the model. begin: Error where they do not fit.
  void begin(int64_t time, at::Device device);
  void end(int64_t time);
  // Between them, of one token in a cache of a fixed size: a kernel has raised the device's count, and this was it
  // before.
  void counted(Tensor place);
  // In place of both where a captured graph has run the forward: the device has counted already. Error as of begin.
  void replayed(int64_t time);
  // Where a forward has been recorded and never ran: so many tokens were seen before it, and are still.
  void not_run(int64_t length);
  // Of a fixed size: how many keys a forward of so many tokens looks at. All that there are by then, rounded up, so
  // that a captured graph serves many steps and a cache of room for much costs what is in it.
  int64_t reach(int64_t time) const;
  bool prompt() const { return place_.prompt; }  // of a fixed size: the forward's tokens are the first, and several
  const Tensor& positions() const { return place_.positions; }  // of the forward's tokens; undefined unless fixed
  const Tensor& position() const { return position_; }  // of a forward's one token, [1] int64; undefined of several
  const Tensor& device_length() const { return device_length_; }  // [1] int64; undefined unless fixed

  void crop(int64_t length);
  void reset();

 private:
  std::vector<std::unique_ptr<CacheLayer>> layers_;
  CacheOptions options_;
  bool fixed_;
  int64_t length_ = 0;
  void check_room(int64_t time) const;
  Tensor device_length_;
  FixedPlace place_;
  Tensor position_;
  bool counted_ = false;
};

// For a layer that attends; window > 0: to its last so many tokens alone.
std::unique_ptr<CacheLayer> make_key_value_layer(const CacheOptions& options, int64_t window = 0);
// For a layer with a recurrence.
std::unique_ptr<CacheLayer> make_recurrent_layer(const CacheOptions& options);

// Error where the options are none that there are; true: memory of a fixed size.
bool is_static(const CacheOptions& options);

}  // namespace hotswap
