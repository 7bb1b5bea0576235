// The structs that forwards take, field by field: one list is the text in a contract's schemas, the order of an op's
// arguments and the way back. What the fields mean stands in layers/.
#pragma once

#include "hotswap/kernelize/contract/fields.h"
#include "hotswap/layers/attention.h"
#include "hotswap/layers/decoder_layer.h"
#include "hotswap/layers/experts.h"
#include "hotswap/layers/loss.h"
#include "hotswap/layers/mamba.h"

namespace hotswap {
namespace binding {

const Fields<AttentionOptions>& attention_fields();
const Fields<DecoderLayerParts>& decoder_layer_fields();
const Fields<Routing>& routing_fields();
const Fields<ExpertWeights>& expert_weight_fields();
const Fields<ExpertsOptions>& experts_fields();
// Options of the losses in two parts: ops of linear_cross_entropy/1 have arguments of their own between them.
const Fields<CrossEntropyOptions>& cross_entropy_fields();
const Fields<CrossEntropyOptions>& class_weight_fields();
std::string packed_experts_schema();  // of PackedExpertWeights: of each weight its data and its format
std::string weight_schema();          // of a Weight: its fields, then format and columns

// Tensors, and what is passed after them: a backward op has tensors of its own between the two.
template <typename Inputs>
struct InputFields {
  Fields<Inputs> tensors, options;
};
const InputFields<SelectiveScanInputs>& scan_fields();
const InputFields<SsdInputs>& ssd_fields();
const InputFields<StateUpdateInputs>& update_fields();

}  // namespace binding

// Found by the type of their last argument, as binding::push and binding::take of plain values are.
void push(binding::Values& values, const AttentionOptions& options);
void push(binding::Values& values, const DecoderLayerParts& parts);
void push(binding::Values& values, const Routing& routing);
void push(binding::Values& values, const ExpertWeights& weights);
void push(binding::Values& values, const PackedExpertWeights& weights);
void push(binding::Values& values, const ExpertsOptions& options);
void push(binding::Values& values, const CrossEntropyOptions& options);
void push(binding::Values& values, const Weight& weight);
void push(binding::Values& values, const SelectiveScanInputs& in);
void push(binding::Values& values, const SsdInputs& in);
void push(binding::Values& values, const StateUpdateInputs& in);

void take(const binding::Values& values, size_t& next, DecoderLayerParts& out);
void take(const binding::Values& values, size_t& next, Routing& out);
void take(const binding::Values& values, size_t& next, ExpertWeights& out);
void take(const binding::Values& values, size_t& next, PackedExpertWeights& out);
void take(const binding::Values& values, size_t& next, ExpertsOptions& out);
void take(const binding::Values& values, size_t& next, CrossEntropyOptions& out);
void take(const binding::Values& values, size_t& next, Weight& out);
void take(const binding::Values& values, size_t& next, SelectiveScanInputs& out);
void take(const binding::Values& values, size_t& next, SsdInputs& out);
void take(const binding::Values& values, size_t& next, StateUpdateInputs& out);

}  // namespace hotswap
