"""With attention=True hidden tokens are taken out of a batch; windows and chunks count positions all the same."""

import copy

import pytest
import torch
from tiny import close, model

import hotswap

HOLES = [[1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 0, 1, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]]
FAMILIES = {
    "llama": {},
    "mistral": dict(sliding_window=4),
    "gemma2": dict(sliding_window=4),
    "gemma3_text": dict(sliding_window=4),
    "phi3": dict(sliding_window=4),
    "gpt_oss": dict(sliding_window=4),
    "llama4_text": dict(attention_chunk_size=4),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients(family):
    stock = model(family, **FAMILIES[family]).eval()
    stock.set_attn_implementation("eager")
    ours = hotswap.kernelize(copy.deepcopy(stock), attention=True)
    mask = torch.tensor(HOLES)
    ids = torch.randint(3, 97, mask.shape, generator=torch.Generator().manual_seed(0))
    before = torch.cat([mask[:, :1] * 0, mask[:, :-1]], 1)  # a hidden token's own output is not compared
    labels = ids.masked_fill(mask * before == 0, -100)
    results = []
    for m in (stock, ours):
        out = m(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False)
        out.loss.backward()
        results.append((out.logits[mask.bool()], [p.grad for p in m.parameters() if p.grad is not None]))
    (want, want_gradients), (got, gradients) = results
    close(got, want, 5e-6)
    for g, w in zip(gradients, want_gradients, strict=True):
        close(g, w, 5e-5)


def test_a_prompt_padded_behind_goes_on():
    """A cache with hidden tokens in its middle: what generation makes of a prompt that was padded on the right."""
    stock = model("mistral", sliding_window=4).eval()
    stock.set_attn_implementation("eager")
    ours = hotswap.kernelize(copy.deepcopy(stock), attention=True)
    ids = torch.randint(3, 97, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 4:8] = 0
    with torch.no_grad():
        results = []
        for m in (stock, ours):
            first = m(input_ids=ids[:, :8], attention_mask=mask[:, :8], use_cache=True)
            results.append(m(input_ids=ids[:, 8:], attention_mask=mask, past_key_values=first.past_key_values).logits)
    close(results[1], results[0], 5e-6)
