"""What transformers generates with every deterministic setting, from tiny random models of several families.

    python settings_oracle.py OUT [FAMILY...]

OUT/<family>/ as save_pretrained writes it; OUT/cases.json holds {family: [{"settings", "input_ids", "attention_mask",
"output_ids": rows of what was generated, "sampled": whether its ids are drawn with the seed}]}, and "seed".
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["USE_HUB_KERNELS"] = "0"

import torch
import transformers

VOCAB, EOS, SEED = 60, [2, 7], 11
COMMON = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
              head_dim=8, max_position_embeddings=128, num_local_experts=4, num_experts_per_tok=2, bos_token_id=1,
              eos_token_id=EOS, pad_token_id=3, initializer_range=0.4)  # fmt: skip
FAMILIES = {
    "llama": {}, "qwen3": {}, "gemma": {}, "mixtral": {}, "olmo2": {}, "phi3": {}, "mamba": dict(state_size=8, intermediate_size=64),
}  # fmt: skip
GREEDY = [
    dict(bad_words_ids=[[5], [11, 12], [2]]), dict(suppress_tokens=[4, 9, 10, 11]), dict(begin_suppress_tokens=list(range(20, 60))),
    dict(sequence_bias=[[[8], 3.5], [[13, 14], -4.0], [[30], -2.5]]), dict(forced_eos_token_id=[7, 2]), dict(forced_bos_token_id=9),
    dict(exponential_decay_length_penalty=[3, 1.6]), dict(encoder_repetition_penalty=1.7), dict(encoder_repetition_penalty=0.6),
    dict(encoder_no_repeat_ngram_size=2), dict(remove_invalid_values=True, renormalize_logits=True), dict(min_new_tokens=9),
    dict(no_repeat_ngram_size=2, repetition_penalty=1.2, suppress_tokens=[8], bad_words_ids=[[20, 21]]),
    dict(repetition_penalty=1.3, encoder_repetition_penalty=1.2, sequence_bias=[[[6], 2.0]], min_length=12),
]  # fmt: skip
BEAMS = [
    dict(num_beams=2), dict(num_beams=3, num_return_sequences=3), dict(num_beams=4, length_penalty=2.0, num_return_sequences=2),
    dict(num_beams=4, length_penalty=-1.0), dict(num_beams=3, early_stopping=True, num_return_sequences=2), dict(num_beams=5, length_penalty=0.0),
    dict(num_beams=3, early_stopping="never", num_return_sequences=3), dict(num_beams=3, early_stopping="never", length_penalty=0.5),
    dict(num_beams=3, repetition_penalty=1.4), dict(num_beams=3, no_repeat_ngram_size=2, bad_words_ids=[[9], [4, 5]]),
    dict(num_beams=3, min_new_tokens=8, num_return_sequences=2), dict(num_beams=2, forced_eos_token_id=7, suppress_tokens=[10]),
    dict(num_beams=3, renormalize_logits=True, sequence_bias=[[[8], 1.5]]), dict(num_beams=3, exponential_decay_length_penalty=[2, 1.3]),
]  # fmt: skip
SAMPLED = [
    dict(typical_p=0.7), dict(epsilon_cutoff=0.05), dict(eta_cutoff=0.1), dict(top_h=0.5), dict(num_return_sequences=3, top_k=7),
    dict(typical_p=0.9, top_p=0.8, temperature=1.4, renormalize_logits=True), dict(eta_cutoff=0.02, epsilon_cutoff=0.01, min_p=0.02),
]  # fmt: skip
PROMPTS = [[[5, 6, 7, 8, 5, 6]], [[21]], [[11, 12, 13, 14, 15], [30, 31, 32, 33, 34]]]
PADDED = ([[3, 3, 11, 12, 13], [30, 31, 32, 33, 34]], [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


def model_of(family, extra):
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(family, **{**COMMON, **extra})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, p in model.named_parameters():
        if p.dim() > 1 and "A_log" not in name:
            p.data.normal_(0, 1.0 if "embed" in name else p.shape[1] ** -0.5)
    return model.eval()


def case(model, settings, ids, mask=None, sampled=False):
    torch.manual_seed(SEED)
    options = dict(max_new_tokens=12, do_sample=sampled, pad_token_id=3, eos_token_id=EOS) | settings
    tensor = torch.tensor(ids)
    mask = torch.ones_like(tensor) if mask is None else torch.tensor(mask)
    out = model.generate(tensor, attention_mask=mask, **options)
    return dict(settings=settings | dict(do_sample=sampled), input_ids=ids, attention_mask=mask.tolist(), output_ids=out[:, tensor.shape[1]:].tolist())


def its_share(family, cases):
    """All for the first family, every third for each of the others: they differ in how they cache, not in the settings."""
    number = list(FAMILIES).index(family)
    return cases if number == 0 else cases[number % 3 :: 3]


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    root, cases = Path(sys.argv[1]), {}
    for family in sys.argv[2:] or FAMILIES:
        extra = FAMILIES[family]
        model = model_of(family, extra)
        model.save_pretrained(root / family)
        rows = cases[family] = []
        for settings, ids in its_share(family, [(one, ids) for one in GREEDY for ids in PROMPTS[:2]] + [(one, ids) for one in BEAMS for ids in PROMPTS]):
            rows.append(case(model, settings, ids))
        if family != "mamba":  # whose beams read padding
            rows += [case(model, settings, *PADDED) for settings in its_share(family, BEAMS[:8])]
        rows += [case(model, settings, PROMPTS[0], sampled=True) for settings in its_share(family, SAMPLED)]
    (root / "cases.json").write_text(json.dumps(dict(seed=SEED, eos_token_id=EOS, families=cases)))


if __name__ == "__main__":
    main()
