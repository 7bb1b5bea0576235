#include "hotswap/kernelize/contract/arguments.h"

#include "hotswap/layers/weight.h"

namespace hotswap {
namespace binding {

const Fields<AttentionOptions>& attention_fields() {
  using O = AttentionOptions;
  static const Fields<O> all = {{"Tensor? sinks", &O::sinks},
                                {"Tensor? alibi_slopes", &O::alibi_slopes},
                                {"float scale", &O::scale},
                                {"bool causal", &O::causal},
                                {"int window_left", &O::window_left},
                                {"int window_right", &O::window_right},
                                {"int chunk", &O::chunk},
                                {"float softcap", &O::softcap}};
  return all;
}

const Fields<DecoderLayerParts>& decoder_layer_fields() {
  using P = DecoderLayerParts;
  static const Fields<P> all = {{"Tensor input_norm", &P::input_norm},
                                {"Tensor q", &P::q},
                                {"Tensor? q_bias", &P::q_bias},
                                {"Tensor k", &P::k},
                                {"Tensor? k_bias", &P::k_bias},
                                {"Tensor v", &P::v},
                                {"Tensor? v_bias", &P::v_bias},
                                {"Tensor? q_norm", &P::q_norm},
                                {"Tensor? k_norm", &P::k_norm},
                                {"Tensor cos", &P::cos},
                                {"Tensor sin", &P::sin},
                                {"Tensor(a!) k_cache", &P::k_cache},
                                {"Tensor(b!) v_cache", &P::v_cache},
                                {"Tensor position", &P::position},
                                {"Tensor o", &P::o},
                                {"Tensor? o_bias", &P::o_bias},
                                {"Tensor post_norm", &P::post_norm},
                                {"Tensor gate", &P::gate},
                                {"Tensor? gate_bias", &P::gate_bias},
                                {"Tensor up", &P::up},
                                {"Tensor? up_bias", &P::up_bias},
                                {"Tensor down", &P::down},
                                {"Tensor? down_bias", &P::down_bias},
                                {"float eps", &P::eps},
                                {"float head_eps", &P::head_eps},
                                {"float scale", &P::scale},
                                {"int window", &P::window},
                                {"str activation", &P::activation}};
  return all;
}

const Fields<Routing>& routing_fields() {
  static const Fields<Routing> fields = {{"Tensor index", &Routing::index}, {"Tensor weights", &Routing::weights}};
  return fields;
}

const Fields<ExpertWeights>& expert_weight_fields() {
  using W = ExpertWeights;
  static const Fields<W> fields = {{"Tensor w_up", &W::up},
                                   {"Tensor? b_up", &W::up_bias},
                                   {"Tensor w_down", &W::down},
                                   {"Tensor? b_down", &W::down_bias}};
  return fields;
}

const Fields<ExpertsOptions>& experts_fields() {
  using O = ExpertsOptions;
  static const Fields<O> fields = {{"str activation", &O::activation},  {"float alpha", &O::alpha},
                                   {"float limit", &O::limit},          {"bool interleaved", &O::interleaved},
                                   {"bool transposed", &O::transposed}, {"bool scale_input", &O::scale_input}};
  return fields;
}

const Fields<CrossEntropyOptions>& cross_entropy_fields() {
  using O = CrossEntropyOptions;
  static const Fields<O> fields = {{"int ignore_index", &O::ignore_index},
                                   {"float label_smoothing", &O::label_smoothing},
                                   {"float softcap", &O::softcap},
                                   {"float z_loss", &O::z_loss},
                                   {"str reduction", &O::reduction}};
  return fields;
}

const Fields<CrossEntropyOptions>& class_weight_fields() {
  using O = CrossEntropyOptions;
  static const Fields<O> fields = {{"Tensor? class_weight=None", &O::class_weight},
                                   {"bool token_scaling=False", &O::token_scaling}};
  return fields;
}

namespace {

const Fields<Weight>& weight_fields() {
  static const Fields<Weight> fields = {
      {"Tensor data", &Weight::data},    {"Tensor? scales", &Weight::scales},
      {"Tensor? zeros", &Weight::zeros}, {"Tensor? global_scale", &Weight::global_scale},
      {"Tensor? table", &Weight::table}, {"Tensor? order", &Weight::order},
      {"int group", &Weight::group},     {"int group_rows", &Weight::group_rows}};
  return fields;
}

template <typename Inputs>
void push_all(Values& values, const Inputs& in, const InputFields<Inputs>& fields) {
  push_fields(values, in, fields.tensors);
  push_fields(values, in, fields.options);
}

template <typename Inputs>
void take_all(const Values& values, size_t& next, Inputs& in, const InputFields<Inputs>& fields) {
  take_fields(values, next, in, fields.tensors);
  take_fields(values, next, in, fields.options);
}

}  // namespace

std::string packed_experts_schema() {
  return "Tensor w_up, str up_format, Tensor? b_up, Tensor w_down, str down_format, Tensor? b_down";
}

std::string weight_schema() { return schema_of(weight_fields()) + ", str format, int columns"; }

const InputFields<SelectiveScanInputs>& scan_fields() {
  using In = SelectiveScanInputs;
  static const InputFields<In> fields = {{{"Tensor u", &In::u},
                                          {"Tensor delta", &In::delta},
                                          {"Tensor A", &In::A},
                                          {"Tensor B", &In::B},
                                          {"Tensor C", &In::C},
                                          {"Tensor? D", &In::D},
                                          {"Tensor? z", &In::z},
                                          {"Tensor? delta_bias", &In::delta_bias},
                                          {"Tensor? initial_state", &In::initial_state},
                                          {"Tensor? seq_idx", &In::seq_idx}},
                                         {{"bool delta_softplus", &In::delta_softplus}}};
  return fields;
}

const InputFields<SsdInputs>& ssd_fields() {
  using In = SsdInputs;
  static const InputFields<In> fields = {{{"Tensor x", &In::x},
                                          {"Tensor dt", &In::dt},
                                          {"Tensor A", &In::A},
                                          {"Tensor B", &In::B},
                                          {"Tensor C", &In::C},
                                          {"Tensor? D", &In::D},
                                          {"Tensor? z", &In::z},
                                          {"Tensor? dt_bias", &In::dt_bias},
                                          {"Tensor? initial_state", &In::initial_state},
                                          {"Tensor? seq_idx", &In::seq_idx}},
                                         {{"int chunk_size", &In::chunk_size},
                                          {"bool dt_softplus", &In::dt_softplus},
                                          {"float dt_min", &In::dt_min},
                                          {"float dt_max", &In::dt_max}}};
  return fields;
}

const InputFields<StateUpdateInputs>& update_fields() {
  using In = StateUpdateInputs;
  static const InputFields<In> fields = {{{"Tensor(a!) state", &In::state},
                                          {"Tensor x", &In::x},
                                          {"Tensor dt", &In::dt},
                                          {"Tensor A", &In::A},
                                          {"Tensor B", &In::B},
                                          {"Tensor C", &In::C},
                                          {"Tensor? D", &In::D},
                                          {"Tensor? z", &In::z},
                                          {"Tensor? dt_bias", &In::dt_bias},
                                          {"Tensor? state_indices", {}}},
                                         {{"bool dt_softplus", &In::dt_softplus}}};
  return fields;
}

}  // namespace binding

using binding::Values;

void push(Values& values, const AttentionOptions& options) {
  binding::push_fields(values, options, binding::attention_fields());
}
void push(Values& values, const DecoderLayerParts& parts) {
  binding::push_fields(values, parts, binding::decoder_layer_fields());
}
void push(Values& values, const Routing& routing) { binding::push_fields(values, routing, binding::routing_fields()); }
void push(Values& values, const ExpertWeights& weights) {
  binding::push_fields(values, weights, binding::expert_weight_fields());
}
void push(Values& values, const PackedExpertWeights& weights) {
  const auto push_one = [&](const Weight& weight, const Tensor& bias) {
    values.emplace_back(weight.data);
    values.emplace_back(std::string(name_of(weight.format)));
    values.push_back(bias.defined() ? c10::IValue(bias) : c10::IValue());
  };
  push_one(weights.up, weights.up_bias);
  push_one(weights.down, weights.down_bias);
}
void push(Values& values, const ExpertsOptions& options) {
  binding::push_fields(values, options, binding::experts_fields());
}
void push(Values& values, const CrossEntropyOptions& options) {
  binding::push_fields(values, options, binding::cross_entropy_fields());
  binding::push_fields(values, options, binding::class_weight_fields());
}
void push(Values& values, const Weight& weight) {
  binding::push_fields(values, weight, binding::weight_fields());
  values.emplace_back(std::string(name_of(weight.format)));
  values.emplace_back(weight.columns());
}
void push(Values& values, const SelectiveScanInputs& in) { binding::push_all(values, in, binding::scan_fields()); }
void push(Values& values, const SsdInputs& in) { binding::push_all(values, in, binding::ssd_fields()); }
void push(Values& values, const StateUpdateInputs& in) { binding::push_all(values, in, binding::update_fields()); }

void take(const Values& values, size_t& next, DecoderLayerParts& out) {
  binding::take_fields(values, next, out, binding::decoder_layer_fields());
}
void take(const Values& values, size_t& next, Routing& out) {
  binding::take_fields(values, next, out, binding::routing_fields());
}
void take(const Values& values, size_t& next, ExpertWeights& out) {
  binding::take_fields(values, next, out, binding::expert_weight_fields());
}
void take(const Values& values, size_t& next, PackedExpertWeights& out) {
  const auto take_one = [&](Weight& weight, Tensor& bias) {
    weight = experts_weight_of(values[next].toTensor(), *weight_format_of(values[next + 1].toStringRef()));
    if (!values[next + 2].isNone()) bias = values[next + 2].toTensor();
    next += 3;
  };
  take_one(out.up, out.up_bias);
  take_one(out.down, out.down_bias);
}
void take(const Values& values, size_t& next, ExpertsOptions& out) {
  binding::take_fields(values, next, out, binding::experts_fields());
}
void take(const Values& values, size_t& next, CrossEntropyOptions& out) {
  binding::take_fields(values, next, out, binding::cross_entropy_fields());
  binding::take_fields(values, next, out, binding::class_weight_fields());  // an example may come without them
}
void take(const Values& values, size_t& next, Weight& out) {
  binding::take_fields(values, next, out, binding::weight_fields());
  out.format = *weight_format_of(values[next++].toStringRef());
  out.logical_shape = {out.data.size(0), values[next++].toInt()};
}
void take(const Values& values, size_t& next, SelectiveScanInputs& out) {
  binding::take_all(values, next, out, binding::scan_fields());
}
void take(const Values& values, size_t& next, SsdInputs& out) {
  binding::take_all(values, next, out, binding::ssd_fields());
}
void take(const Values& values, size_t& next, StateUpdateInputs& out) {
  binding::take_all(values, next, out, binding::update_fields());
}

}  // namespace hotswap
