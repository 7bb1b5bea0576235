// train: fine-tunes a model on a file by transformers' TrainingArguments.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "hotswap/base/env.h"
#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/log.h"
#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/cli/flags/value_checks.h"
#include "hotswap/cli/print/failure.h"
#include "hotswap/cli/train_print.h"
#include "hotswap/cli/train_signal.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/kernelize/package/device.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/formats/quantised.h"
#include "hotswap/models/lora.h"
#include "hotswap/serve/served_model.h"
#include "hotswap/training/arguments/argument_row.h"
#include "hotswap/training/data/train_file.h"
#include "hotswap/training/output_lock.h"
#include "hotswap/training/ranks/environment.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using OutJson = nlohmann::ordered_json;

struct TrainFlags {
  ModelFlags model;
  KernelFlags kernels;
  std::string train_file, eval_file, arguments_file;
  std::string lora_file;                         // of a new adapter; empty: none
  std::map<std::string, std::string> arguments;  // of flags: the name and its value as it was written
  int64_t max_length = 1024;
  bool packing = false;
  std::string packing_strategy = "bfd";
  bool json = false;
  std::optional<int64_t> check_step;
};

// A flag's value is JSON where it reads as such, as in --liger_kernel_config '{"rope": false}', else a text.
OutJson value_of(const std::string& text) {
  OutJson value = OutJson::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? OutJson(text) : value;
}

TrainingArguments arguments_of(const TrainFlags& flags) {
  TrainingArguments arguments;
  if (!flags.arguments_file.empty()) {
    arguments = training_arguments_from(Json::read(flags.arguments_file), {}, ArgumentsAre::kPart);
  }
  OutJson given = OutJson::object();
  for (const auto& [name, text] : flags.arguments) given[name] = value_of(text);
  arguments = training_arguments_from(Json::parse(given.dump(), "the flag --"), arguments);
  if (arguments.output_dir.empty()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a folder to write",
                 .got = "neither --output-dir nor output_dir in the arguments",
                 .next = "name one that does not exist yet"});
  }
  return arguments;
}

// Another run's lock is OutputLock's error.
void check_free(const fs::path& output) {
  if (!fs::exists(output)) return;
  const auto is_lock = [](const fs::directory_entry& entry) { return entry.path().filename() == OutputLock::kFile; };
  if (fs::is_directory(output) && std::all_of(fs::directory_iterator(output), fs::directory_iterator(), is_lock)) {
    return;
  }
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "an output folder that does not exist yet, or is empty",
               .got = output.string(),
               .next = "name another one, remove it, or go on from its last checkpoint by --resume_from_checkpoint"});
}

// What is frozen stays as small as it is stored: a GGUF file's weights, and those of a quantised checkpoint.
bool keeps_its_format(const ModelFlags& source) {
  if (gguf_path(source)) return true;
  const fs::path config = fs::path(source.model) / "config.json";
  return fs::is_regular_file(config) && may_stay_packed(Json::read(config));
}

// Each rank has a GPU of its own.
std::string device_of_rank(const std::string& device, const RankEnvironment& rank) {
  if (device != "auto" && device != "cuda" && device != "cpu") {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "--device auto, cuda or cpu for ranks: each takes the GPU of its LOCAL_RANK",
                 .got = device,
                 .next = "leave it out; CUDA_VISIBLE_DEVICES chooses GPUs"});
  }
  return device_named(device).is_cuda() ? cat("cuda:", rank.local_rank) : "cpu";
}

ModelFlags source_of(const TrainFlags& flags, const TrainingArguments& arguments) {
  ModelFlags source = located(flags.model);
  source.trains_adapter = true;
  const bool adapts = !flags.lora_file.empty() || !source.adapter.empty();
  source.packed = adapts && keeps_its_format(source) ? "on" : "off";
  if (arguments.use_cpu) source.device = "cpu";
  if (const auto rank = rank_environment(); rank && rank->size > 1)
    source.device = device_of_rank(source.device, *rank);
  if (fs::is_regular_file(source.model) && !adapts) {
    throw Error(
        {.kind = ErrorKind::kUnsupported,
         .wanted = "a model as safetensors to train",
         .got = cat("the GGUF file ", source.model, ", whose weights have no gradient"),
         .next = "train an adapter beside it (--lora), or the safetensors checkpoint that it was converted from"});
  }
  return source;
}

// config.json; none for a GGUF file, which has its own form of it.
std::optional<Json> config_json_of(const ModelFlags& source) {
  if (gguf_path(source)) return std::nullopt;
  return Json::read(fs::path(source.model) / "config.json");
}

// The new adapter's settings, before data are read for it: without weights, its names are compared with the model's.
// None where the adapter came with the model, or the whole model is trained.
std::optional<LoraConfig> new_adapter(const TrainFlags& flags, const ModelFlags& source) {
  if (!source.adapter.empty()) LoraAdapter::read(source.adapter).config();
  if (flags.lora_file.empty()) return std::nullopt;
  LoraConfig config = LoraConfig::read(flags.lora_file);
  if (config.base_model_name_or_path.empty()) config.base_model_name_or_path = flags.model.model;
  if (const auto json = config_json_of(source)) {
    LoraAdapter::check_names(*AutoModelForCausalLM::from_config(*json), config);
  }
  return config;
}

// transformers computes beyond them without a word.
void warn_of_positions(const CausalLM& model, const std::string& name, const TrainFile& file) {
  const int64_t positions = serve::max_positions(model);
  if (positions == 0 || file.longest <= positions) return;
  log_warning(name, " has examples of up to ", file.longest, " tokens, and the model has ", positions,
              " positions (max_position_embeddings): those beyond it are new to it. --max-length ", positions,
              " stays within");
}

TrainFileOptions file_options(const TrainFlags& flags, const ModelFlags& source, const Tokenizer& tokenizer) {
  const auto config = config_json_of(source);
  const SpecialIds& special = tokenizer.special_ids();
  return {.max_length = flags.max_length,
          .chat = find_chat_template(source),
          .pad_id = special.pad.value_or(special.eos.value_or(0)),
          .packing = flags.packing ? packing_from(flags.packing_strategy) : Packing::kNone,
          .vocab_size = config ? config->get<int64_t>("vocab_size", 0) : 0};  // 0: ids of a .bin are not checked
}

// A batch of the longest examples is what takes most.
MemoryEstimate estimated(CausalLM& model, const AdamW& optimizer, const TrainingArguments& arguments,
                         const TrainFile& file, int64_t max_length) {
  const int64_t batch = std::min(arguments.per_device_train_batch_size, file.dataset->size());
  // A batch of packed rows is one row, in which attention sees the examples apart.
  const int64_t rows = file.packed > 0 ? (batch * max_length + file.longest - 1) / file.longest : batch;
  model.train();
  return estimate_memory(model, optimizer,
                         {.rows = rows, .length = file.longest, .forwards = arguments.gradient_accumulation_steps});
}

// Of ranks only the first one prints.
bool is_first_rank() {
  const auto rank = rank_environment();
  return !rank || rank->is_first();
}

// What torchrun starts again finds what the first attempt wrote.
bool may_go_on(const TrainingArguments& arguments) {
  const auto rank = rank_environment();
  return !arguments.resume_from_checkpoint.empty() || (rank && rank->restarts > 0);
}

// The ranks of the attempt before may be on their way out: they notice within seconds that others are lost.
double seconds_for_attempt_before() {
  const auto rank = rank_environment();
  return rank && rank->restarts > 0 ? 60 : 0;
}

struct TrainData {
  TrainFile train, held_out;
};

TrainData read_data(const TrainFlags& flags, const ModelFlags& source) {
  const Tokenizer tokenizer = load_tokenizer(source);
  const TrainFileOptions options = file_options(flags, source, tokenizer);
  const auto read = [&](const std::string& name) {
    TrainFile file = read_train_file(name, tokenizer, options);
    if (is_first_rank()) print_file(name, file);
    return file;
  };
  TrainData data{.train = read(flags.train_file)};
  if (!flags.eval_file.empty()) data.held_out = read(flags.eval_file);
  return data;
}

void check_not_stopped(const Trainer& trainer) {
  const TrainerState& state = trainer.state();
  if (state.global_step >= state.max_steps) return;
  throw StoppedBySignal(SIGTERM, cat("stopped by SIGTERM after update ", state.global_step, " of ", state.max_steps,
                                     ": ", trainer.arguments().output_dir, "/checkpoint-", state.global_step,
                                     " is written, and --resume_from_checkpoint true goes on from it"));
}

void train(const TrainFlags& flags) {
  const TrainingArguments arguments = arguments_of(flags);
  const fs::path output = arguments.output_dir;
  const bool first = is_first_rank();
  const auto check_output = [&] {
    if (first && !may_go_on(arguments)) check_free(output);
  };
  check_output();  // before anything is read
  const auto lock = first ? OutputLock::take(output, seconds_for_attempt_before()) : nullptr;
  check_output();  // a run may have ended meanwhile
  const ModelFlags source = source_of(flags, arguments);
  const auto lora = new_adapter(flags, source);
  const TrainData data = read_data(flags, source);
  const auto model = load_model(source, flags.kernels);
  if (first) warn_of_positions(*model, flags.train_file, data.train);
  if (first) warn_of_positions(*model, flags.eval_file, data.held_out);
  if (lora) model->add_adapter(*lora, static_cast<uint64_t>(arguments.seed));
  const auto optimizer = make_optimizer(*model, arguments);
  std::optional<StepCheck> step_check;
  TrainerParts parts{.eval_dataset = data.held_out.dataset, .optimizer = optimizer};
  parts.callbacks.push_back(std::make_shared<StopOnSignal>());
  if (first && !arguments.disable_tqdm.value_or(false)) parts.callbacks.push_back(std::make_shared<PrintProgress>());
  parts.check_step = flags.check_step;
  parts.on_step_check = [&](const StepCheck& check) {
    step_check = check;
    if (first) print_step_check(check);
  };
  parts.lock = lock;
  Trainer trainer(model, arguments, data.train.dataset, std::move(parts));
  const MemoryEstimate estimate = estimated(*model, *optimizer, arguments, data.train, flags.max_length);
  if (first) std::fprintf(stderr, "memory, estimated: %s\n", estimate.str().c_str());
  const TrainOutput result = trainer.train();
  check_not_stopped(trainer);
  std::optional<EvalMetrics> evaluated;
  if (data.held_out.dataset) evaluated = trainer.evaluate();
  trainer.save_model();
  trainer.save_state();
  if (!first) return;
  write_file(output / "training_arguments.json", to_json(arguments).dump(2) + "\n");
  print_result({.output = output,
                .result = result,
                .estimate = estimate,
                .evaluated = evaluated,
                .kernels = trainer.kernel_report(),
                .step_check = step_check,
                .json = flags.json});
}

void train_verb(const TrainFlags& flags) {
  try {
    train(flags);
  } catch (const StoppedBySignal&) {
    throw;
  } catch (const std::exception& error) {
    const auto rank = env(EnvVar::kRank);
    write_rank_error(cat(rank ? cat("rank ", *rank, ": ") : "", failure_text(error)));
    throw;
  }
}

// --learning_rate as transformers' scripts have it, and --learning-rate.
std::string dashed(std::string name) {
  for (char& c : name) c = c == '_' ? '-' : c;
  return name;
}
std::string flag_names(const std::string& name) {
  return dashed(name) == name ? "--" + name : cat("--", dashed(name), ",--", name);
}

void add_argument_flags(CLI::App& verb, std::map<std::string, std::string>& values) {
  for (const ArgumentRow& row : argument_rows()) {
    // A flag of every verb keeps its meaning: --project is the kernels' folder, and TrainingArguments' project, a name
    // for a service of logs, is read from the file only.
    if (verb.get_option_no_throw("--" + dashed(row.name)) != nullptr) continue;
    const bool read = row.kind == ArgumentKind::kHonoured;
    const std::string help = read                                  ? row.help
                             : row.kind == ArgumentKind::kNoEffect ? "Changes nothing: " + row.why
                                                                   : cat("Only ", row.fallback.dump(), ": ", row.why);
    auto* option = verb.add_option_function<std::string>(
        flag_names(row.name), [&values, name = row.name](const std::string& text) { values[name] = text; }, help);
    option->type_name("VALUE")->group(read ? "TrainingArguments" : "TrainingArguments that a run does not read");
    if (row.is_switch) option->expected(0, 1)->default_str("true");
  }
  verb.add_option_function<std::string>(
          "--optimizer-states,--optimizer_states",
          [&values](const std::string& text) { values["optimizer_states"] = text; },
          "What AdamW keeps: parameter (the parameter's dtype, as Trainer), float32_master, bfloat16_moments (with a\n"
          "float32 master, rounded stochastically) or stochastic (only bfloat16, rounded stochastically)")
      ->type_name("VALUE");
  verb.add_option_function<std::string>(
          "--zero-stage,--zero_stage", [&values](const std::string& text) { values["zero_stage"] = text; },
          "Of ranks: 1 shares AdamW's states out among them (ZeRO's stage 1), so that each keeps its part of the bytes")
      ->type_name("VALUE");
}

}  // namespace

void add_train(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "train",
      "Fine-tune a model on a file: the curve of transformers' Trainer for the same arguments. Writes the model,\n"
      "trainer_state.json with the log, and checkpoints into --output-dir; with --lora or --adapter an adapter "
      "instead\n"
      "of the model, in peft's files");
  auto flags = std::make_shared<TrainFlags>();
  verb->add_option("--model,model", flags->model.model, "Folder of the model, or org/name on the Hub")
      ->required()
      ->type_name("DIR|ID");
  verb->add_option(
          "--train-file", flags->train_file,
          "Text (.txt), a JSON object a line (.jsonl): text, prompt and completion, or messages; or token ids\n"
          "of Megatron or llm.c (.bin)")
      ->required()
      ->type_name("FILE");
  verb->add_option("--eval-file", flags->eval_file, "The same, held out: evaluated at the end and by --eval-strategy")
      ->type_name("FILE");
  verb->add_option("--arguments", flags->arguments_file, "A JSON file of TrainingArguments; flags go before it")
      ->type_name("FILE");
  auto* lora =
      verb->add_option("--lora", flags->lora_file,
                       "Train a LoRA adapter instead of the model: peft's LoraConfig as JSON, or a part of it");
  lora->type_name("FILE");
  verb->add_option("--adapter", flags->model.adapter,
                   "Train this LoRA adapter further: its folder, or org/name on the Hub")
      ->excludes(lora)
      ->type_name("DIR|ID");
  verb->add_flag(
      "--load-in-4bit,--load_in_4bit", flags->model.quantization.load_in_4bit,
      "Of a model that an adapter is trained beside: projections in 4 bits (NF4), by a quarter of the memory");
  verb->add_option("--bnb-4bit-quant-type,--bnb_4bit_quant_type", flags->model.quantization.bnb_4bit_quant_type,
                   "How: nf4 is what is written here")
      ->capture_default_str();
  verb->add_option("--max-length", flags->max_length, "Tokens of an example; of a text, of each piece")
      ->check(above_zero())
      ->capture_default_str();
  verb->add_flag("--packing", flags->packing,
                 "Pack examples of .jsonl into rows of --max-length, where they do not see each other");
  verb->add_option("--packing-strategy,--packing_strategy", flags->packing_strategy,
                   "As TRL's SFTConfig: bfd, bfd_split (longer examples in pieces), wrapped (one stream)")
      ->check(CLI::IsMember({"bfd", "bfd_split", "wrapped"}))
      ->capture_default_str();
  verb->add_option("--revision", flags->model.revision, "Branch, tag or commit of a model of the Hub")
      ->capture_default_str();
  verb->add_option("--device", flags->model.device, "cpu, cuda, cuda:N, or auto")->capture_default_str();
  verb->add_option("--dtype", flags->model.dtype, "float32, bfloat16, or auto: as in config.json")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16"}))
      ->capture_default_str();
  verb->add_option("--attn-implementation", flags->model.attention,
                   "sdpa, eager, or a kernel as org/repo[@revision][:layer]");
  add_kernel_flags(*verb, flags->kernels);
  verb->add_option(
          "--check-step", flags->check_step,
          "Run this update, from 1, with kernels and without, and print by how much the loss and each gradient "
          "differ")
      ->check(above_zero());
  verb->add_flag("--json", flags->json,
                 "Print JSON: output_dir, metrics, eval, tokens_per_second, flops_per_second, mfu,\npeak_memory, "
                 "optimizer_bytes (of each rank), memory_estimate, kernels");
  add_argument_flags(*verb, flags->arguments);
  verb->callback([flags] { train_verb(*flags); });
}

}  // namespace hotswap
