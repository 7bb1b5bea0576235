"""A small Llama with its tokenizer, trained for a moment on this project's licence, and what transformers does with it.

    python golden_model.py OUT           all of this
    python golden_model.py OUT FOLDER    OUT/golden.json alone, shorter, of the model in FOLDER

Writes OUT/models/tiny/, as save_pretrained does, and beside the weights, in the layout of the recorded golden files:
    golden.json           greedy continuations, losses of texts, sampled continuations
    finetune_golden.json  a short fine-tuning run, step by step
and OUT/text/*.txt. All arithmetic is float32 on one thread; the same seeds give the same model.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tokenizers"))

import torch
import transformers
from golden_tokenizers import LICENSE, make_tokenizer
from tokenizers import Tokenizer

END = "."  # an end of text that comes up now and then, besides </s>
PROMPTS = [
    "You may", "Subject to the terms and conditions of this License", "Unless required by applicable law", "Grant of Patent",
    "The", "Derivative Works shall not include", "a", "this License", "(b) You must cause any modified files", "2 + 2 =",
    "reasonable and customary use", "Contribution",
]
SAMPLES = [  # as GenerationConfig names them
    dict(do_sample=True, temperature=1.0, top_k=50),
    dict(do_sample=True, temperature=0.7, top_k=0, top_p=0.8),
    dict(do_sample=True, temperature=1.3, top_k=5, repetition_penalty=1.2),
    dict(do_sample=False, repetition_penalty=1.3),
    dict(do_sample=True, temperature=2.0, top_k=0, min_p=0.05),
    dict(do_sample=True, temperature=1.5, top_k=20, top_p=0.9, min_p=0.1, no_repeat_ngram_size=2),
    dict(do_sample=False, no_repeat_ngram_size=1),
    dict(do_sample=False, no_repeat_ngram_size=3, repetition_penalty=1.1),
]
ENDED = [  # with ends of text; by stop_strings the text ends in the middle of a token, and across two
    dict(do_sample=False),
    dict(do_sample=False, min_new_tokens=12),
    dict(do_sample=True, temperature=1.5, min_new_tokens=6),
    dict(do_sample=False, stop_strings=["zzz", " o"]),
    dict(do_sample=False, stop_strings=["e t"]),
    dict(do_sample=False, max_length=40, min_length=30),
]

ARGUMENTS = dict(per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=7, learning_rate=1e-3,
                 weight_decay=0.1, adam_beta2=0.95, max_grad_norm=1.0, lr_scheduler_type="cosine", warmup_steps=2)


def rows_of(stream, first, rows, columns):
    return torch.tensor(stream[first : first + rows * columns]).view(rows, columns)


def new_model(vocab_size):
    config = transformers.LlamaConfig(
        vocab_size=vocab_size, hidden_size=64, intermediate_size=172, num_hidden_layers=5, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=True, rms_norm_eps=1e-5,
        bos_token_id=1, eos_token_id=2, pad_token_id=0)
    return transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager")


def pretrain(model, stream, steps=100):
    """On the first page alone, which it comes to know: what it says is text, with a clear first choice for each token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(steps):
        ids = rows_of(stream, step * 37 % 512, 8, 64)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def loss_of(model, ids):
    return model(input_ids=ids, labels=ids).loss.item()


def losses_of(model, tokenizer, root, count):
    losses = []
    for file in ("text/license.txt", "text/other.txt"):
        ids = tokenizer.encode((root / file).read_text()).ids[:count]
        losses.append(dict(file=file, tokens=len(ids), mean_loss=loss_of(model, torch.tensor([ids]))))
    return losses


def generated(model, tokenizer, ends, prompts=PROMPTS, new_tokens=64):
    cases = []
    for prompt in prompts:
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        out = model.generate(ids, max_new_tokens=new_tokens, do_sample=False, eos_token_id=ends, pad_token_id=0,
                             output_logits=True, return_dict_in_generate=True)
        logits = torch.cat(out.logits)  # [new, vocab]
        best = logits.topk(2, -1).values
        cases.append(dict(prompt=prompt, input_ids=ids[0].tolist(), output_ids=out.sequences[0, ids.shape[1]:].tolist(),
                          top2_gaps=(best[:, 0] - best[:, 1]).tolist(), first_step_logits=logits[0].tolist()))
    return cases


def sampled(model, tokenizer, prompt, ends):
    samples = []
    for settings in [dict(one, eos_token_id=[]) for one in SAMPLES] + [dict(one, eos_token_id=ends) for one in ENDED]:
        torch.manual_seed(11)
        options = dict(settings) if "max_length" in settings else dict(settings, max_new_tokens=24)
        if "stop_strings" in settings:
            options["tokenizer"] = tokenizer
        out = model.generate(prompt, pad_token_id=0, **dict(options, eos_token_id=settings["eos_token_id"] or None))
        samples.append(dict(settings=settings, output_ids=out[0, prompt.shape[1]:].tolist()))
    return dict(seed=11, input_ids=prompt[0].tolist(), cases=samples)


class Steps(transformers.TrainerCallback):
    """What every update logs."""

    def __init__(self):
        self.losses, self.norms = [], []

    def on_log(self, args, state, control, logs, **kwargs):
        if "grad_norm" in logs:
            self.losses.append(logs["loss"])
            self.norms.append(float(logs["grad_norm"]))


def finetuned(model, stream, root, rows=35, columns=64, eval_columns=128):
    """By transformers' own Trainer. Nine batches make an epoch, the last of three rows, so that the last update of an
    epoch has one batch instead of two; the run goes on into the second epoch."""
    held_out = rows_of(stream, len(stream) - 8 * eval_columns, 8, eval_columns)
    dataset = [dict(input_ids=row, labels=row) for row in rows_of(stream, 0, rows, columns)]
    steps, before = Steps(), loss_of(model, held_out)
    trainer = transformers.Trainer(
        model, transformers.TrainingArguments(
            output_dir=str(root / "trainer"), use_cpu=True, train_sampling_strategy="sequential", logging_steps=1,
            report_to=[], save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, **ARGUMENTS),
        train_dataset=dataset, callbacks=[steps])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    model.eval()
    prompt = torch.tensor([stream[:11]])
    after = model.generate(prompt, max_new_tokens=32, do_sample=False, eos_token_id=None, pad_token_id=0)
    return dict(text="text/license.txt", token_count=len(stream), batch=dict(rows=rows, columns=columns, steps=ARGUMENTS["max_steps"]),
                arguments=ARGUMENTS, eval_columns=eval_columns, train_loss=steps.losses,
                gradient_norm_before_clipping=steps.norms, eval_loss_before=before, eval_loss_after=loss_of(model, held_out),
                greedy_after=dict(input_ids=prompt[0].tolist(), output_ids=after[0, prompt.shape[1]:].tolist()))


def golden_of(folder, root):
    torch.set_num_threads(os.cpu_count())
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    cases = generated(model, tokenizer, ends, prompts=PROMPTS[:2] + ["Gravity is"], new_tokens=24)
    golden = dict(eos_token_ids=ends, cases=cases, losses=losses_of(model, tokenizer, root, 128))
    (root / "golden.json").write_text(json.dumps(golden))


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    text = LICENSE.read_text()
    (root / "text").mkdir(parents=True)
    (root / "text/license.txt").write_text(text)
    (root / "text/other.txt").write_text("It was a dark and stormy night; the rain fell in torrents. " * 20)
    if len(sys.argv) > 2:
        golden_of(Path(sys.argv[2]), root)
        return
    folder = root / "models/tiny"
    folder.mkdir(parents=True)

    tokenizer = make_tokenizer("normalizers")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.save_pretrained(folder)
    stream = [1] + tokenizer.encode(text, add_special_tokens=False).ids
    model = new_model(tokenizer.get_vocab_size())
    pretrain(model, stream)
    model.eval()
    ends = [2, tokenizer.token_to_id(END)]
    model.generation_config.update(eos_token_id=ends)
    model.save_pretrained(folder)

    cases = generated(model, tokenizer, ends)
    golden = dict(eos_token_ids=ends, cases=cases, losses=losses_of(model, tokenizer, root, 300),
                  samples=sampled(model, fast, torch.tensor([cases[0]["input_ids"]]), ends))
    (folder / "golden.json").write_text(json.dumps(golden))
    (folder / "finetune_golden.json").write_text(json.dumps(finetuned(model, stream, root)))


if __name__ == "__main__":
    main()
