"""Random tiny text models of each family as transformers computes them: what text_parity_test compares with.

    python text_oracle.py OUT SEED

OUT/cases.json holds {family: {case: {"config": {...}, "time": tokens of a row, "tasks": [...]}}}. Writes
OUT/<family>/<case>/<task>/ as save_pretrained does, OUT/<family>/error.txt with the traceback where a family fails, and
OUT/<family>/<case>/<task>/expected.safetensors:
    input_ids, mask [3, time], token_type_ids    row 0 is padded on the right, row 1 has one token of padding
    labels                                       of the task
    hidden.<i>, pooler                           of the base model, without a mask
    logits, loss, grad.<parameter>               of a task, with the mask
    masked                                       last_hidden_state of the base model, with the mask
    bf16                                         what the task or the base model gives in bfloat16, without a mask
    plain                                        the same in float32
"""

import json
import os
import sys
import traceback

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["USE_HUB_KERNELS"] = "0"

import torch
import transformers
from safetensors.torch import save_file

CLASSES = {
    "base": transformers.AutoModel,
    "sequence": transformers.AutoModelForSequenceClassification,
    "token": transformers.AutoModelForTokenClassification,
    "masked_lm": transformers.AutoModelForMaskedLM,
}


def randomise(model):
    for name, p in model.named_parameters():
        if p.dim() == 1:
            p.data.normal_(0, 0.2).add_(0.0 if name.endswith("bias") else 1.0)
        else:
            p.data.normal_(0, 1.0 if "embed" in name else p.shape[1] ** -0.5)


def labels_of(task, config, mask):
    rows, time = mask.shape
    if task == "sequence":
        if config.num_labels == 1:
            return torch.randn(rows)
        if getattr(config, "problem_type", None) == "multi_label_classification":
            return torch.randint(0, 2, (rows, config.num_labels)).float()
        if getattr(config, "soft_labels", False):  # the cases' own key
            return torch.softmax(torch.randn(rows, config.num_labels), -1)
        return torch.randint(0, config.num_labels, (rows,))
    labels = torch.randint(0, config.num_labels if task == "token" else config.vocab_size, (rows, time))
    labels[mask == 0] = -100
    labels[:, 1] = -100
    return labels


def first_names(model):
    """{name: parameter}, a tied one once: as the embedding that it is, whichever module transformers registers first."""
    names = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        if id(p) not in names or "word_embeddings" in name:
            names[id(p)] = (name, p)
    return dict(names.values())


def main_output(task, result):
    return result.last_hidden_state if task == "base" else result.logits


def write_task(folder, task, config, time):
    model = CLASSES[task].from_config(config, dtype=torch.float32)
    randomise(model)
    model.eval()
    model.save_pretrained(folder)
    pad = config.pad_token_id if config.pad_token_id is not None else 0
    ids = torch.randint(pad + 3, config.vocab_size, (3, time))
    mask = torch.ones_like(ids)
    mask[0, time // 2 :] = 0
    mask[1, time - 1 :] = 0
    padded = ids.masked_fill(mask == 0, pad)
    inputs = {"input_ids": padded, "attention_mask": mask}
    out = {"input_ids": padded, "full_ids": ids, "mask": mask}
    extra = {}
    if getattr(config, "type_vocab_size", 0) and config.model_type != "distilbert":
        extra["token_type_ids"] = torch.randint(0, config.type_vocab_size, ids.shape)
        out |= extra
    with torch.no_grad():
        plain = model(input_ids=ids, **extra)
        out["plain"] = main_output(task, plain)
        if task == "base":
            if not getattr(config, "head_dim", None) and hasattr(config, "attention_probs_dropout_prob"):
                states = model(input_ids=ids, output_hidden_states=True, **extra).hidden_states
                out |= {f"hidden.{i}": h for i, h in enumerate(states)}
            if getattr(plain, "pooler_output", None) is not None:
                out["pooler"] = plain.pooler_output
            out["masked"] = model(**inputs, **extra).last_hidden_state
    if task != "base":
        out["labels"] = labels_of(task, config, mask)
        result = model(**inputs, **extra, labels=out["labels"])
        result.loss.backward()
        out["logits"], out["loss"] = result.logits.detach(), result.loss.detach()
        if task == "sequence":  # DeBERTa's has no second dimension where it has one label
            out["logits"] = out["logits"].view(len(ids), -1)
        out |= {f"grad.{name}": p.grad.clone() for name, p in first_names(model).items() if p.grad is not None}
    with torch.no_grad():
        fresh = CLASSES[task].from_config(config, dtype=torch.float32).eval()
        fresh.load_state_dict(model.state_dict())
        for p in fresh.parameters():  # not .to(): rotary frequencies stay float32, as from_pretrained has them
            p.data = p.data.bfloat16()
        out["bf16"] = main_output(task, fresh(input_ids=ids, **extra))
    save_file({k: v.contiguous().clone() for k, v in out.items()}, os.path.join(folder, "expected.safetensors"))


def main():
    root, seed = sys.argv[1], int(sys.argv[2])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(2)
    with open(os.path.join(root, "cases.json")) as f:
        families = json.load(f)
    for family, cases in families.items():
        torch.manual_seed(seed)
        try:
            for name, case in cases.items():
                for task in case["tasks"]:
                    config = transformers.AutoConfig.for_model(**case["config"])
                    write_task(os.path.join(root, family, name, task), task, config, case["time"])
        except Exception:  # the tests of this family fail with it, those of the others run
            os.makedirs(os.path.join(root, family), exist_ok=True)
            with open(os.path.join(root, family, "error.txt"), "w") as f:
                traceback.print_exc(file=f)


if __name__ == "__main__":
    main()
