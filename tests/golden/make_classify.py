#!/usr/bin/env python3
"""Golden answers of transformers' pipelines for token and text classification.

    python tests/golden/make_classify.py             # rewrites classify/expected.json beside this file
    python tests/golden/make_classify.py --out FILE  # writes them elsewhere, for a comparison
    ... --seed N                                     # other models, and more texts

The models are those of tests/support/tiny_labels.py, so no weights are kept. A case is a model, the pipeline's arguments, the options of plimsoll
classify that ask for the same, texts and answers.
"""
import argparse
import json
import os
import random
import sys
import tempfile
import warnings

import transformers as hf

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "support"))
from tiny_labels import MODELS, POSITIONS, make_labels_model

TEXTS = [
    "Ada Lovelace lived in London, and wrote to Charles Babbage.",
    "Jean-Baptiste Poquelin était né à Paris; Ünïcode naïve Straße.",
    "東京 and 大阪 are cities of 日本",
    "  spaces\tand\u00a0tabs  \u200b zero\u200bwidth  ",
    "emoji 🙂🙃 family 👩‍👩‍👧 end",
    "e\u0301a\u0308 combining, ﬁ ligature, İstanbul, ǅ, ΑΣ",
    "don't... (42%) $3.50 @home #tag <mask> [SEP] x",
    "Supercalifragilisticexpialidocious antidisestablishmentarianism",
    "",
    " ",
    "x",
]
PAIRS = [("A man is asleep.", "He sleeps, in London."), ("one", ""), ("naïve 東京", "no blank here"), ("long " * 12, "short")]
LONG = "Ada Lovelace of London met Charles Babbage in Turin; then Luigi Menabrea wrote. " * 4
SPECIAL = {"bert": dict(unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", mask_token="[MASK]"),
           "roberta": dict(unk_token="<unk>", cls_token="<s>", sep_token="</s>", bos_token="<s>", eos_token="</s>", pad_token="<pad>", mask_token="<mask>")}


def random_texts(rng, count):
    pool = "Ada London été 東京 🙂 don't x-ray ABC 12.5 \u200b \u00a0 ﬁ İ e\u0301 ## , . \t ß Straße Ġ <s> _ a\u0300\u0316 한국 ไทย हिन्दी".split(" ")
    return ["".join(rng.choice(["", " ", " ", "  "]) + rng.choice(pool) for _ in range(rng.randint(0, 8))) for _ in range(count)]


def cases(name, texts):
    kind, labels, of_tokens, _ = MODELS[name]
    if of_tokens:
        for how in ("none", "simple", "first", "average", "max"):
            yield dict(aggregation_strategy=how), ["--aggregation", how], texts
        yield dict(aggregation_strategy="simple", ignore_labels=[]), ["--aggregation", "simple", "--ignore-label", ""], texts
        yield dict(aggregation_strategy="none", ignore_labels=["O", "MISC"]), ["--ignore-label", "O", "--ignore-label", "MISC"], texts
        for stride in (0, 7):
            yield dict(aggregation_strategy="first", stride=stride), ["--aggregation", "first", "--stride", str(stride)], [LONG, "short"]
    else:
        yield {}, [], texts
        yield dict(top_k=2), ["--top-k", "2"], texts[:4]
        yield dict(top_k=None), ["--top-k", "0"], texts[:4]
        for function in ("sigmoid", "softmax", "none"): yield dict(function_to_apply=function), ["--function", function], texts[:3]
        yield dict(truncation=True, max_length=POSITIONS), ["--truncate"], [*PAIRS, LONG, (LONG, LONG), (LONG, "short"), ("short", LONG)]


def number(x):
    return {k: float(v) if k == "score" else v for k, v in x.items()}


def answer(pipe, of_tokens, arguments, text):
    if of_tokens: return [number(e) for e in pipe(text, **arguments)]
    given = text if isinstance(text, str) else dict(text=text[0], text_pair=text[1])
    result = pipe([given], **arguments)[0]
    return [number(e) for e in result] if isinstance(result, list) else number(result)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(here, "classify", "expected.json"))
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    hf.logging.set_verbosity_error()
    texts = TEXTS + ([] if args.seed == 7 else random_texts(random.Random(args.seed), 40))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (kind, _, of_tokens, _) in MODELS.items():
            path = make_labels_model(f"{folder}/{name}", name, args.seed)
            tokenizer = hf.PreTrainedTokenizerFast(tokenizer_file=f"{path}/tokenizer.json", model_max_length=POSITIONS, **SPECIAL["roberta" if kind == "roberta" else "bert"])
            tokenizer.model_input_names = ["input_ids", "attention_mask"] + ["token_type_ids"] * (kind == "bert")
            model = (hf.AutoModelForTokenClassification if of_tokens else hf.AutoModelForSequenceClassification).from_pretrained(path)
            pipe = hf.pipeline("token-classification" if of_tokens else "text-classification", model=model, tokenizer=tokenizer, device="cpu")
            for arguments, options, inputs in cases(name, texts):
                if name.endswith(("one", "regression")) and "top_k" in arguments: continue
                found.append(dict(model=name, options=options, texts=inputs, answers=[answer(pipe, of_tokens, arguments, text) for text in inputs]))
    os.makedirs(os.path.dirname(args.out), exist_ok=True)
    with open(args.out, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in found) + "\n]\n")
    print(len(found), "cases,", os.path.getsize(args.out), "bytes")


if __name__ == "__main__": main()
