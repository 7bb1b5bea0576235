// Schemas, checks and registrations: torch's stable ABI only. The formulas are in deformable.h.
#include <optional>
#include <vector>

#include "kernels/common/torch/ops.h"
#include "kernels/deformable/cuda/deformable.h"

namespace deformable {
namespace {

using kernels::check;
using kernels::check_tensor;
using kernels::Device;
using kernels::device_of;
using kernels::ScalarType;
using kernels::shape_of;
using kernels::Tensor;
using Points = std::vector<int64_t>;

const Table& table() {
  static const Table& chosen = HOTSWAP_CHOOSE_TABLE(deformable);
  return chosen;
}

// ---- what comes in

Number number_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Double:
      return Number::kFloat64;
    case ScalarType::Float:
      return Number::kFloat32;
    case ScalarType::BFloat16:
      return Number::kBFloat16;
    case ScalarType::Half:
      return Number::kFloat16;
    default:
      check_tensor(false, t, "in float64, float32, bfloat16 or float16; got ", kernels::dtype_name(t), "; cast it");
      return Number::kFloat32;
  }
}

Tensor dense(const Tensor& t) { return t.is_contiguous() ? t : torch::stable::contiguous(t); }

int64_t element(const Tensor& t, int64_t i) {
  return t.scalar_type() == ScalarType::Long ? static_cast<const int64_t*>(t.data_ptr())[i]
                                             : static_cast<const int32_t*>(t.data_ptr())[i];
}

void check_sizes(const Tensor& t, bool right, const char* sizes) {
  check_tensor(right, t, sizes, "; got ", shape_of(t), "; see docs/notes/deformable.md for the shapes");
}

// The tensors of a call, kept while its kernels read them.
struct Inputs {
  Tensor value, shapes, starts, locations, weights;
  Problem problem;
};

void check_levels(const Tensor& shapes, const Tensor& starts, const Device& device) {
  for (const Tensor* t : {&shapes, &starts}) {
    const auto type = t->scalar_type();
    check_tensor(type == ScalarType::Long || type == ScalarType::Int, *t, "in int64 or int32; got ",
                 kernels::dtype_name(*t), "; cast it");
    const Device own = device_of(*t);
    check_tensor(own.is_cpu() || own == device, *t, "on the CPU or beside value, on ", device, "; got it on ", own,
                 "; move it");
  }
  check_sizes(shapes, shapes.dim() == 2 && shapes.size(1) == 2, "[levels, 2]");
  check_sizes(starts, starts.dim() == 1 && starts.size(0) == shapes.size(0), "[levels]");
}

Levels levels_of(const char* op, const Inputs& in, int64_t rows, const Points& points) {
  const int64_t count = in.shapes.size(0);
  check(count <= kMaxLevels, op, ": expected at most ", kMaxLevels, " levels; got ", count,
        "; call it for a part of the levels at a time and add the results");
  Levels levels{};
  levels.count = int32_t(count);
  for (int64_t l = 0; l < count; ++l) levels.first[l + 1] = int32_t(levels.first[l] + points[l]);
  const bool on_gpu = !device_of(in.shapes).is_cpu();
  check(on_gpu == !device_of(in.starts).is_cpu(), op,
        ": expected spatial_shapes and level_start_index on one device; got two; move one of them");
  if (on_gpu) {
    levels.shapes = in.shapes.data_ptr(), levels.starts = in.starts.data_ptr();
    levels.wide_shapes = in.shapes.scalar_type() == ScalarType::Long;
    levels.wide_starts = in.starts.scalar_type() == ScalarType::Long;
    return levels;  // the kernels look whether they lie inside value
  }
  int64_t behind = 0;
  for (int64_t l = 0; l < count; ++l) {
    const Level level{element(in.shapes, 2 * l), element(in.shapes, 2 * l + 1), element(in.starts, l)};
    const bool sane = level.height > 0 && level.width > 0 && level.height <= rows && level.width <= rows;
    check(sane && level.start >= behind && level.start <= rows - level.height * level.width, op,
          ": expected levels one behind the other in the ", rows, " rows of value; got level ", l, " of ", level.height,
          " x ", level.width, " from row ", level.start, "; spatial_shapes are (height, width)");
    behind = level.start + level.height * level.width;
    levels.known[l] = level;
  }
  return levels;
}

// points: of each level; locations and weights have those of all levels side by side. null: [levels, points] each.
Inputs inputs_of(const char* op, const Tensor& value, const Tensor& shapes, const Tensor& starts,
                 const Tensor& locations, const Tensor& weights, const Points* points) {
  const Device device = device_of(value);
  for (const Tensor* t : {&locations, &weights}) kernels::check_device(*t, device);
  check_sizes(value, value.dim() == 4, "[batch, rows, heads, channels]");
  const int64_t batch = value.size(0), heads = value.size(2), lead = points ? 4 : 5;
  check_sizes(weights, weights.dim() == lead && weights.size(0) == batch && weights.size(2) == heads,
              points ? "[batch, queries, heads, points of all levels], batch and heads as value has"
                     : "[batch, queries, heads, levels, points], batch and heads as value has");
  bool same = locations.dim() == lead + 1 && locations.size(lead) == 2;
  for (int64_t d = 0; same && d < lead; ++d) same = locations.size(d) == weights.size(d);
  check_tensor(same, locations, "in the shape of attention_weights and 2; got ", shape_of(locations), " beside ",
               shape_of(weights), "; the last dimension is (x, y)");
  check_levels(shapes, starts, device);

  Inputs in{.value = value.stride(3) == 1 || value.size(3) <= 1 ? value : torch::stable::contiguous(value),
            .shapes = dense(shapes),
            .starts = dense(starts),
            .locations = dense(locations),
            .weights = dense(weights),
            .problem = {}};
  const int64_t count = shapes.size(0);
  Points alike;
  if (!points) alike.assign(size_t(count), weights.size(4));
  const Points& of_levels = points ? *points : alike;
  check(int64_t(of_levels.size()) == count && (points || weights.size(3) == count), op, ": expected points of ", count,
        " levels, as spatial_shapes has; got ", points ? int64_t(of_levels.size()) : weights.size(3),
        "; give one each");
  int64_t all = 0;
  for (const int64_t n : of_levels) {
    check(n >= 0 && n < (1 << 24), op, ": expected points of a level from 0 to 2^24 - 1; got ", n,
          "; correct their number");
    all += n;
  }
  check(!points || weights.size(3) == all, op, ": expected ", all, " attention_weights, the sum of points; got ",
        weights.dim() > 3 ? weights.size(3) : 0, "; give one each");

  Problem& p = in.problem;
  p = {.batch = batch,
       .rows = value.size(1),
       .heads = heads,
       .channels = value.size(3),
       .queries = weights.size(1),
       .value_type = number_of(value),
       .location_type = number_of(locations),
       .weight_type = number_of(weights),
       .value = in.value.data_ptr(),
       .batch_stride = in.value.stride(0),
       .row_stride = in.value.stride(1),
       .head_stride = in.value.stride(2),
       .locations = in.locations.data_ptr(),
       .weights = in.weights.data_ptr(),
       .levels = levels_of(op, in, value.size(1), of_levels),
       .samples = all};
  const bool wide = p.value_type == Number::kFloat64;
  check(wide == (p.location_type == Number::kFloat64) && wide == (p.weight_type == Number::kFloat64), op,
        ": expected float64 for all of value, sampling_locations and attention_weights, or for none; got ",
        kernels::dtype_name(value), ", ", kernels::dtype_name(locations), " and ", kernels::dtype_name(weights),
        "; cast them");
  check(p.rows < (int64_t{1} << 31), op, ": expected fewer than 2^31 rows of value; got ", p.rows, "; split the batch");
  return in;
}

int32_t torch_type(Number type) {
  return type == Number::kFloat64    ? aoti_torch_dtype_float64()
         : type == Number::kFloat32  ? aoti_torch_dtype_float32()
         : type == Number::kBFloat16 ? aoti_torch_dtype_bfloat16()
                                     : aoti_torch_dtype_float16();
}
Tensor empty(std::initializer_list<int64_t> sizes, Number type, const Device& device) {
  return kernels::empty_like_shape(sizes.begin(), int64_t(sizes.size()), torch_type(type), device);
}
Tensor like(const Tensor& t, Number type) {
  return kernels::empty_like_shape(t.sizes().data(), t.dim(), torch_type(type), device_of(t));
}

// fn(room, begin, end) for the rows of batch x heads x queries, a range for each thread.
template <class Fn>
void on_rows(const Problem& p, const Fn& fn) {
  const int64_t rows = p.batch * p.heads * p.queries;
  kernels::parallel_rows(rows, 4 * p.samples * p.channels, [&](int64_t begin, int64_t end) {
    const Tensor room = empty({room_rows(p), p.channels}, p.value_type, kernels::cpu());
    fn(room.data_ptr(), begin, end);
  });
}

// ---- forward

Tensor run_forward(const Inputs& in) {
  const Problem& p = in.problem;
  const Device device = device_of(in.value);
  Tensor y = empty({p.batch, p.queries, p.heads * p.channels}, p.value_type, device);
  const Forward args{.of = p, .out = y.data_ptr()};
  kernels::run_on(
      device, [&](auto stream) { cuda::forward(args, stream); },
      [&] { on_rows(p, [&](void* room, int64_t begin, int64_t end) { table().forward(args, room, begin, end); }); });
  return y;
}

// ---- backward

// Additions in memory for dvalue, or a fixed order.
enum class Order { kFixed, kNone };
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

template <class Stream>  // not made where the package is built without CUDA: it lacks what is called here
void run_on_gpu(const Backward& args, Order order, const Device& device, Stream stream) {
  const Problem& p = args.of;
  const Number sum = p.value_type == Number::kFloat64 ? Number::kFloat64 : Number::kFloat32;
  if (order == Order::kFixed) {
    const auto scratch = [&](int64_t bytes) { return empty({bytes / 4 + 1}, Number::kFloat32, device); };
    cuda::backward_gather(args, nullptr, stream);
    if (cuda::few_samples(p)) return cuda::backward_by_pixel(args, scratch(cuda::by_pixel_bytes(p)).data_ptr(), stream);
    const cuda::SortPlan plan = cuda::plan_sort(p);
    return cuda::backward_sorted(args, plan, scratch(cuda::sort_bytes(plan)).data_ptr(), stream);
  }
  Tensor sums = empty({p.batch, p.rows, p.heads, p.channels}, sum, device);
  torch::stable::zero_(sums);
  cuda::backward_gather(args, sums.data_ptr(), stream);
  cuda::round_sums(args, sums.data_ptr(), stream);
}

void run_on_cpu(const Backward& args) {
  const Problem& p = args.of;
  const int64_t row = 4 * p.samples * p.channels;
  on_rows(p, [&](void* room, int64_t begin, int64_t end) { table().backward_samples(args, room, begin, end); });
  const Number sum = p.value_type == Number::kFloat64 ? Number::kFloat64 : Number::kFloat32;
  kernels::parallel_rows(planes_of(p), p.rows * kPlaneChannels + p.queries * row, [&](int64_t begin, int64_t end) {
    const Tensor scratch = empty({p.rows + 1, kPlaneChannels}, sum, kernels::cpu());
    table().backward_value(args, scratch.data_ptr(), begin, end);
  });
}

Gradients run_backward(const Tensor& dy, const Inputs& in, Order order) {
  const Problem& p = in.problem;
  const Device device = device_of(in.value);
  kernels::check_device(dy, device);
  check_tensor(dy.dim() == 3 && dy.size(0) == p.batch && dy.size(1) == p.queries && dy.size(2) == p.heads * p.channels,
               dy, "[", p.batch, ", ", p.queries, ", ", p.heads * p.channels, "], as forward's result; got ",
               shape_of(dy), "; reshape it");
  check_tensor(number_of(dy) == p.value_type, dy, "in value's dtype, ", kernels::dtype_name(in.value), "; got ",
               kernels::dtype_name(dy), "; cast it");
  const Tensor gradient = dense(dy);
  Tensor dvalue = like(in.value, p.value_type), dlocations = like(in.locations, p.location_type),
         dweights = like(in.weights, p.weight_type);
  const Backward args{.of = p,
                      .dout = gradient.data_ptr(),
                      .dlocations = dlocations.data_ptr(),
                      .dweights = dweights.data_ptr(),
                      .dvalue = dvalue.data_ptr()};
  kernels::run_on(
      device, [&](auto stream) { run_on_gpu(args, order, device, stream); }, [&] { run_on_cpu(args); });
  return {std::move(dvalue), std::move(dlocations), std::move(dweights)};
}

// ---- ops

Tensor attention(const Tensor& value, const Tensor& shapes, const Tensor& starts, const Tensor& locations,
                 const Tensor& weights) {
  return run_forward(inputs_of("deformable_attention", value, shapes, starts, locations, weights, nullptr));
}

template <kernels::Name kName, Order kOrder>
Gradients attention_bwd(const Tensor& dy, const Tensor& value, const Tensor& shapes, const Tensor& starts,
                        const Tensor& locations, const Tensor& weights) {
  return run_backward(dy, inputs_of(kName.text, value, shapes, starts, locations, weights, nullptr), kOrder);
}

Tensor points(const Tensor& value, const Tensor& shapes, const Tensor& starts, const Tensor& locations,
              const Tensor& weights, const Points& each) {
  return run_forward(inputs_of("deformable_attention_points", value, shapes, starts, locations, weights, &each));
}

Gradients points_bwd(const Tensor& dy, const Tensor& value, const Tensor& shapes, const Tensor& starts,
                     const Tensor& locations, const Tensor& weights, const Points& each) {
  constexpr auto kOp = "deformable_attention_points_bwd";
  return run_backward(dy, inputs_of(kOp, value, shapes, starts, locations, weights, &each), Order::kFixed);
}

constexpr kernels::Name kBackward{"deformable_attention_bwd"};
constexpr kernels::Name kUnordered = kBackward + "_unordered";

#define HOTSWAP_DEFORMABLE_INPUTS \
  "Tensor value, Tensor spatial_shapes, Tensor level_start_index, Tensor sampling_locations, Tensor attention_weights"
#define HOTSWAP_DEFORMABLE_GRADIENTS "(Tensor dvalue, Tensor dsampling_locations, Tensor dattention_weights)"

constexpr std::array kOps{
    kernels::op<&attention>("deformable_attention(" HOTSWAP_DEFORMABLE_INPUTS ") -> Tensor y"),
    kernels::op<&attention_bwd<kBackward, Order::kFixed>>(
        "deformable_attention_bwd(Tensor dy, " HOTSWAP_DEFORMABLE_INPUTS ") -> " HOTSWAP_DEFORMABLE_GRADIENTS),
    kernels::op<&attention_bwd<kUnordered, Order::kNone>>(
        "deformable_attention_bwd_unordered(Tensor dy, " HOTSWAP_DEFORMABLE_INPUTS
        ") -> " HOTSWAP_DEFORMABLE_GRADIENTS),
    kernels::op<&points>("deformable_attention_points(" HOTSWAP_DEFORMABLE_INPUTS ", int[] points) -> Tensor y"),
    kernels::op<&points_bwd>("deformable_attention_points_bwd(Tensor dy, " HOTSWAP_DEFORMABLE_INPUTS
                             ", int[] points) -> " HOTSWAP_DEFORMABLE_GRADIENTS),
};
const kernels::Library<kOps> library;

}  // namespace
}  // namespace deformable
