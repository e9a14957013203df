#!/usr/bin/env python3
"""Training of encoders on the CPU, plimsoll and PyTorch side by side: BERT-base-shaped entity recognition and MiniLM-shaped pairs of
sentences with in-batch negatives.

    python bench/encoders.py [--job entities|pairs] [--precision fp32|bf16] [--threads N] [--rows N] [--steps N] [--share 0.6] [--compile] [--out FILE.json]

Needs torch and transformers in the Python that runs it. Both sides have the same shapes, AdamW, dropout 0.1 and threads; PyTorch
trains in fp32 and, beside plimsoll's bf16, with bf16 autocast over fp32 weights as well, because on some CPUs that is slower than its fp32:
plimsoll's bf16 is compared with the faster of the two, by CPU seconds. PyTorch is eager, and with --compile it runs under torch.compile too. It
reads its tensors from memory, plimsoll its text from a file. Each is
a process of its own, one after the other. The rate is rows a second over all steps but the first; the memory is the process's peak
as the system reports it. plimsoll is given `share` of what PyTorch took, at the least, as its budget. CPU seconds of the same steps are told too: on
a busy machine they say more than the clock. --out adds everything that was measured to a file, as one JSON object in a line.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PLIMSOLL = os.environ.get("PLIMSOLL", os.path.join(HERE, "..", "build", "release", "plimsoll"))
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB, LABELS = 30522, ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
JOBS = {
    "entities": dict(objective="token_labels", rows=8, time=128, hidden_size=768, intermediate_size=3072, layers=12, heads=12),
    "pairs": dict(objective="sentence_pairs", rows=32, time=64, hidden_size=384, intermediate_size=1536, layers=6, heads=12),
}


def theirs(job, args):
    """The other side, in this process."""
    import torch
    import transformers as hf
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    config = hf.BertConfig(vocab_size=VOCAB, hidden_size=job["hidden_size"], intermediate_size=job["intermediate_size"], num_labels=len(LABELS),
                           num_hidden_layers=job["layers"], num_attention_heads=job["heads"], max_position_embeddings=512)
    entities = args.job == "entities"
    model = hf.BertForTokenClassification(config) if entities else hf.BertModel(config, add_pooling_layer=False)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, weight_decay=0)
    shape, rows = (job["rows"] * (1 if entities else 2), job["time"]), job["rows"]
    mask = torch.ones(shape, dtype=torch.long)

    def loss_of(ids, targets):
        if entities: return model(input_ids=ids, attention_mask=mask, labels=targets).loss
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        made = torch.nn.functional.normalize((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=1)
        return torch.nn.functional.cross_entropy(20 * made[:rows] @ made[rows:].T, torch.arange(rows))

    compute = torch.compile(loss_of) if args.compile else loss_of

    def step():
        ids, targets = torch.randint(5, VOCAB, shape), torch.randint(0, len(LABELS), shape)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"): loss = compute(ids, targets)
        loss.backward()
        optimizer.step()

    step()
    wall, cpu = time.monotonic(), time.process_time()
    for _ in range(args.steps): step()
    print(json.dumps(dict(seconds=time.monotonic() - wall, cpu=time.process_time() - cpu, torch=torch.__version__, transformers=hf.__version__)))


def run(command):
    """(stdout, peak bytes, CPU seconds) of a process."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen([str(c) for c in command], stdout=out, stderr=err)
        _, status, used = os.wait4(child.pid, 0)
        out.seek(0), err.seek(0)
        if status: sys.exit(f"{command[0]}: {err.read()}")
        return out.read(), used.ru_maxrss * 1024, used.ru_utime + used.ru_stime


def write_tokenizer(path):
    vocab = {t: i for i, t in enumerate(MARKS + [f"w{i}" for i in range(len(MARKS), VOCAB)])}
    added = [dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for i, t in enumerate(MARKS)]
    post = dict(type="TemplateProcessing", single=[{"SpecialToken": dict(id="[CLS]", type_id=0)}, {"Sequence": dict(id="A", type_id=0)},
                {"SpecialToken": dict(id="[SEP]", type_id=0)}], pair=[{"Sequence": dict(id="A", type_id=0)}, {"Sequence": dict(id="B", type_id=1)}],
                special_tokens={t: dict(id=t, ids=[vocab[t]], tokens=[t]) for t in ("[CLS]", "[SEP]")})
    with open(path, "w") as f:
        json.dump(dict(version="1.0", added_tokens=added, normalizer=None, pre_tokenizer=dict(type="BertPreTokenizer"), post_processor=post, decoder=None,
                       model=dict(type="WordPiece", unk_token="[UNK]", continuing_subword_prefix="##", max_input_chars_per_word=100, vocab=vocab)), f)


def write_job(folder, job, args):
    rng, rows, words = random.Random(1), job["rows"] * (args.steps + 1), job["time"] - 2
    text = lambda: [f"w{rng.randrange(5, VOCAB)}" for _ in range(words)]
    with open(f"{folder}/data.jsonl", "w") as f:
        for _ in range(rows):
            record = dict(tokens=text(), labels=rng.choices(LABELS, k=words)) if args.job == "entities" else dict(text_a=" ".join(text()), text_b=" ".join(text()))
            f.write(json.dumps(record) + "\n")
    write_tokenizer(f"{folder}/tokenizer.json")
    with open(f"{folder}/job.yaml", "w") as f:
        f.write(f"""model: {{architecture: bert, vocab_size: {VOCAB}, hidden_size: {job["hidden_size"]}, intermediate_size: {job["intermediate_size"]},
  num_layers: {job["layers"]}, num_attention_heads: {job["heads"]}, max_position_embeddings: 512, dropout: 0.1}}
data: {{train: [{folder}/data.jsonl], tokenizer: {folder}, max_length: {job["time"]}}}
training: {{objective: {job["objective"]}, batch_size: {job["rows"]}, steps: {args.steps + 1}, learning_rate: 3e-5, device: cpu, threads: {args.threads},
  mixed_precision: {args.precision}}}
output: {{dir: {folder}/run}}
""")
    return f"{folder}/job.yaml"


def ours(job, args, budget):
    with tempfile.TemporaryDirectory() as folder:
        path = write_job(folder, job, args)
        command = [PLIMSOLL, "train", path, "--json", "-q", "--no-checkpoint", "--budget", budget]
        said, peak, cpu = run(command)
        _, _, first = run([*command, "--steps", 1])
    events = [json.loads(line) for line in said.splitlines()]
    steps = [e["step_ms"] / 1e3 for e in events if e["event"] == "step"]
    return dict(seconds=sum(steps[1:]), cpu=cpu - first, peak=peak, knobs=[e for e in events if e["event"] == "plan"][0]["knobs"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--job", choices=sorted(JOBS), default="entities")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("--rows", type=int, help="rows, or pairs, of a step (8; 32)")
    parser.add_argument("--compile", action="store_true", help="PyTorch under torch.compile as well as eager")
    parser.add_argument("--out", help="add what was measured to this file")
    parser.add_argument("--theirs", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    job = dict(JOBS[args.job], rows=args.rows or JOBS[args.job]["rows"])
    if args.theirs: return theirs(job, args)
    others = rivals(job, args)
    best, least = min(others, key=lambda r: r["cpu"]), min(r["peak"] for r in others)
    own = dict(ours(job, args, int(args.share * least)), name=f"plimsoll {args.precision}")
    for r in (own, *others):
        print(f"{r['name']:>22}: {job['rows'] * args.steps / r['seconds']:7.2f} rows/s, {r['cpu'] / args.steps:6.2f} CPU s a step, {r['peak'] / 2**20:7.1f} MiB at the peak")
    print(f"{args.job} {args.precision}, {args.threads} threads, beside {best['name']}: {best['seconds'] / own['seconds']:.2f} x the speed, {best['cpu'] / own['cpu']:.2f} x fewer CPU seconds, "
          f"{own['peak'] / best['peak']:.3f} x the memory; {own['knobs']}")
    if args.out: keep(args, job, own, others)


def rivals(job, args):
    """PyTorch in every way that a user of this precision may choose."""
    found = []
    for precision in ("fp32", "bf16") if args.precision == "bf16" else ("fp32",):
        for compiled in (False, True) if args.compile else (False,):
            said, peak, _ = run([sys.executable, os.path.abspath(__file__), "--theirs", "--job", args.job, "--precision", precision, "--threads", args.threads,
                                 "--steps", args.steps, "--rows", job["rows"], *(["--compile"] if compiled else [])])
            name = f"PyTorch {precision}{', compiled' if compiled else ', eager'}"
            found.append(dict(json.loads(said.splitlines()[-1]), peak=peak, name=name))
    return found


def keep(args, job, own, others):
    load = os.getloadavg()[0]
    with open(args.out, "a") as f:
        f.write(json.dumps(dict(job=args.job, precision=args.precision, rows=job["rows"], steps=args.steps, threads=args.threads, machine=os.uname().machine,
                                date=time.strftime("%Y-%m-%d", time.gmtime()), load=load, plimsoll=own, torch=others)) + "\n")


if __name__ == "__main__":
    main()
