// fine_tune MODEL TEXT OUT: trains a model on a text file with its layers swapped for kernels, and saves it.
#include <hotswap/hotswap.h>

#include <fstream>
#include <iostream>
#include <iterator>

using namespace hotswap;

int main(int argc, char** argv) try {
  if (argc != 4)
    throw Error({ErrorKind::kInvalidArgument, "MODEL TEXT OUT", cat(argc - 1, " words"), "pass all three"});
  const auto model = AutoModelForCausalLM::from_pretrained(argv[1], {.use_kernels = true, .dtype = "float32"});
  const auto tokenizer = Tokenizer::from_pretrained(argv[1]);
  std::ifstream file(argv[2]);
  const std::string text(std::istreambuf_iterator<char>(file), {});

  const auto dataset = std::make_shared<PackedDataset>(tokenizer.ids(text), /*example_length=*/32);
  Trainer trainer(model, {.per_device_train_batch_size = 2, .max_steps = 20, .learning_rate = 1e-3}, dataset);
  const TrainOutput out = trainer.train();
  std::cout << "loss " << out.steps.front().loss << " -> " << out.steps.back().loss << "\n\n" << model->kernel_report();
  model->save_pretrained(argv[3]);  // safetensors and config.json, which transformers reads
} catch (const Error& error) {
  std::cerr << "fine_tune: " << error.what() << "\n";
  return 1;
}
