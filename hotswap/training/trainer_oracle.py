"""trainer_oracle.py OUT: what transformers' Trainer does, for trainer_oracle_test.cpp.

arguments.json   TrainingArguments.to_json_string() of the defaults
schedules.json   learning rates of each schedule, step by step
order.json       the order of the examples of some epochs
runs/FAMILY/     a tiny model before the run, its data, and run.json: the arguments and the log
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers.optimization import get_scheduler

COMMON = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              head_dim=8, max_position_embeddings=64, initializer_range=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
              attn_implementation="eager")  # fmt: skip
FAMILIES = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", dict(sliding_window=None)),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", dict(tie_word_embeddings=True)),
    "gemma": ("Gemma", {}),
    "olmo2": ("Olmo2", {}),
    "phi3": ("Phi3", {}),
    "granite": ("Granite", dict(logits_scaling=2.0, residual_multiplier=0.5)),
    "mixtral": ("Mixtral", dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=None)),
}
ARGUMENTS = dict(per_device_train_batch_size=3, per_device_eval_batch_size=4, gradient_accumulation_steps=2, max_steps=60,
                 learning_rate=3e-3, weight_decay=0.1, warmup_steps=5, lr_scheduler_type="cosine", seed=7, logging_steps=1,
                 eval_strategy="steps", eval_steps=20, include_num_input_tokens_seen="all")  # fmt: skip
SCHEDULES = [
    ("linear", {}), ("cosine", {}), ("cosine", dict(num_cycles=1.25)), ("cosine_with_restarts", dict(num_cycles=3)),
    ("cosine_with_min_lr", dict(min_lr_rate=0.1)), ("cosine_with_min_lr", dict(min_lr=1e-5)),
    ("cosine_warmup_with_min_lr", dict(min_lr_rate=0.2)), ("cosine_warmup_with_min_lr", dict(min_lr=2e-5, warmup_lr_rate=0.3)),
    ("polynomial", {}), ("polynomial", dict(power=2.5, lr_end=1e-6)), ("inverse_sqrt", {}), ("inverse_sqrt", dict(timescale=30)),
    *(("warmup_stable_decay", dict(num_decay_steps=11, warmup_type=up, decay_type=down, min_lr_ratio=0.05))
      for up, down in (("linear", "cosine"), ("cosine", "1-sqrt"), ("1-sqrt", "linear"))),
    ("constant", {}), ("constant_with_warmup", {}),
]  # fmt: skip


def rates(name, kwargs, warmup, total, peak):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=peak)
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=total, scheduler_specific_kwargs=dict(kwargs))
    found = []
    for _ in range(total + 2):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


def schedules():
    out = []
    for name, kwargs in SCHEDULES:
        for warmup, total in ((0, 37), (7, 53)):
            if name == "constant":
                warmup = 0
            peak = 3e-4
            out.append(dict(name=name, kwargs=kwargs, warmup=warmup, total=total, peak=peak, rates=rates(name, kwargs, warmup, total, peak)))
    return out


def examples(count, generator):
    """Rows of lengths of their own; the first third of each is a prompt, whose labels do not count."""
    rows = []
    for _ in range(count):
        length = int(torch.randint(4, 17, (1,), generator=generator))
        ids = torch.randint(3, COMMON["vocab_size"], (length,), generator=generator).tolist()
        rows.append(dict(input_ids=ids, labels=[-100] * (length // 3) + ids[length // 3 :]))
    return rows


def collate(rows):
    width = max(len(row["input_ids"]) for row in rows)
    pad = lambda values, fill: values + [fill] * (width - len(values))
    return {
        "input_ids": torch.tensor([pad(row["input_ids"], 0) for row in rows]),
        "labels": torch.tensor([pad(row["labels"], -100) for row in rows]),
        "attention_mask": torch.tensor([pad([1] * len(row["input_ids"]), 0) for row in rows]),
    }


def trainer_of(model, folder, train, held_out, **arguments):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to=[], disable_tqdm=True, remove_unused_columns=False, **arguments)
    trainer = transformers.Trainer(model, arguments, train_dataset=train, eval_dataset=held_out, data_collator=collate)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def run(family, out):
    name, own = FAMILIES[family]
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**(COMMON | own))
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    folder = out / "runs" / family
    model.save_pretrained(folder / "model")
    generator = torch.Generator().manual_seed(11)
    train, held_out = examples(53, generator), examples(11, generator)
    trainer = trainer_of(model, folder / "trainer", train, held_out, save_strategy="no", **ARGUMENTS)
    trainer.train()
    trainer.save_state()
    run = dict(arguments=ARGUMENTS, train=train, held_out=held_out, state=json.loads((folder / "trainer/trainer_state.json").read_text()))
    (folder / "run.json").write_text(json.dumps(run))


class Seen(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count, self.order = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.order.append(index)
        return dict(input_ids=[3, 4, 5], labels=[3, 4, 5])


def orders(out):
    """As Trainer itself reads a dataset."""
    found = []
    for count, seed, data_seed in ((23, 42, None), (1000, 7, None), (40, 42, 5)):
        seen = Seen(count)
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(COMMON | dict(num_hidden_layers=1, hidden_size=8, head_dim=2))))
        trainer = trainer_of(model, out / "order", seen, None, save_strategy="no", seed=seed, data_seed=data_seed, num_train_epochs=2,
                             per_device_train_batch_size=64, logging_strategy="no")  # fmt: skip
        trainer.train()
        found.append(dict(count=count, seed=seed, data_seed=data_seed, epochs=[seen.order[:count], seen.order[count:]]))
    return found


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    arguments = transformers.TrainingArguments(output_dir="trainer_output", use_cpu=True)
    (out / "arguments.json").write_text(arguments.to_json_string())
    (out / "schedules.json").write_text(json.dumps(schedules()))
    (out / "order.json").write_text(json.dumps(orders(out)))
    for family in FAMILIES:
        run(family, out)


if __name__ == "__main__":
    main()
