"""Documents packed into one row: each token's logits and each weight's gradient are those of its document alone, however
the row says where documents begin."""

import copy

import pytest
import torch
from test_mamba import MODELS, model
from tiny import close, gradients, same_gradients

import hotswap

LENGTHS = [5, 1, 9, 2]
NAMES = [name for name in MODELS if name != "qwen3_next"]  # its delta rule is not ours


def row():
    return torch.randint(3, 97, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(3))


def bounds():
    lengths = torch.tensor(LENGTHS)
    seq_idx = torch.arange(len(LENGTHS), dtype=torch.int32).repeat_interleave(lengths)[None]
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    position_ids = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    return dict(seq_idx=dict(seq_idx=seq_idx), cu_seq_lens_q=dict(cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=9, max_length_k=9),
                position_ids=dict(position_ids=position_ids))  # fmt: skip


WAYS = {**{name: (name,) for name in bounds()}, "all": tuple(bounds())}


def of_way(way):
    return {name: value for part in WAYS[way] for name, value in bounds()[part].items()}


@pytest.fixture(params=NAMES)
def swapped(request):
    return hotswap.kernelize(model(request.param)).eval()


def alone(m, ids):
    return torch.cat([m(input_ids=document, use_cache=False).logits for document in ids.split(LENGTHS, 1)], 1)


@torch.no_grad()
def test_logits_are_those_of_each_document_alone(swapped):
    want = alone(swapped, row())
    for way in WAYS:
        close(swapped(input_ids=row(), **of_way(way)).logits, want, 1e-5)
    masked = dict(bounds()["seq_idx"], attention_mask=torch.ones_like(row()))
    close(swapped(input_ids=row(), **masked).logits, want, 1e-5)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_each_document_alone(swapped, checkpointing):
    reference = copy.deepcopy(swapped)
    want = gradients(reference, alone(reference, row()).square().sum())
    swapped.train()
    if checkpointing:
        swapped.gradient_checkpointing_enable({"use_reentrant": False})
    got = swapped(input_ids=row(), **of_way("all")).logits.square().sum()
    same_gradients(gradients(swapped, got), want, 1e-4)


@torch.no_grad()
def test_padding_behind_documents_changes_none_of_them(swapped):
    ids = torch.nn.functional.pad(row(), (0, 3), value=7)
    seq_idx = torch.nn.functional.pad(bounds()["seq_idx"]["seq_idx"], (0, 3), value=3)
    mask = torch.nn.functional.pad(torch.ones_like(row()), (0, 3))
    got = swapped(input_ids=ids, seq_idx=seq_idx, attention_mask=mask).logits[:, : sum(LENGTHS)]
    close(got, alone(swapped, row()), 1e-5)


@torch.no_grad()
def test_rows_that_count_on_are_one_document(swapped):
    ids = row()
    want = swapped(input_ids=ids).logits
    out = swapped(input_ids=ids, position_ids=torch.arange(ids.shape[1])[None], use_cache=True)
    assert torch.equal(out.logits, want)


def test_a_cache_of_packed_documents_is_refused_where_attention_would_read_it():
    m = hotswap.kernelize(model("jamba")).eval()
    with pytest.raises(ValueError, match="expected packed documents without a cache"):
        m(input_ids=row(), use_cache=True, **of_way("seq_idx"))


def test_taking_out_leaves_the_classes_forwards():
    m = model("jamba")
    before = {name: dict(part.__dict__) for name, part in m.named_modules()}
    hotswap.unkernelize(hotswap.kernelize(m))
    assert all("forward" not in part.__dict__ and part.__dict__.keys() == before[n].keys() for n, part in m.named_modules())
