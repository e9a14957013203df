"""Records memory snapshots of PyTorch on a GPU, to compare `plimsoll replay` and `plimsoll pack` with what PyTorch itself reached.

usage: torch_snapshots.py FOLDER [--workload NAME]... [--conf NAME]...     on the GPU: records into FOLDER
       torch_snapshots.py FOLDER --compare PLIMSOLL                        anywhere: replays and packs what was recorded

Three workloads, each in a process of its own under several option strings (PYTORCH_CUDA_ALLOC_CONF):

train       LLaMA-like model of 1.2 billion parameters, AdamW, bf16 autocast, four equal steps
inference   the same model, prompts of varied lengths, keys and values grown by torch.cat token by token
finetune    BERT-base, AdamW, a new sequence length in every step

History begins before the first allocation, so that a replay sees everything. For each run the folder gets WORKLOAD-CONF.pickle.gz
(torch.cuda.memory._dump_snapshot, Python stacks) and one line in peaks.jsonl: PyTorch's own peaks, counters, options and card.
Plain PyTorch is all it needs. Everything together stays below 64 MB. A comparison needs no PyTorch; it exits with 1 when a replay
reserves more than PyTorch did, or a packed arena is more than 0.5 % above its lower bound.
"""
import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile

# Option strings, and a limit in GiB where garbage collection needs one: PyTorch collects only under a memory fraction.
CONFS = {
    "default": ("", {}),
    "expandable": ("expandable_segments:True", {}),
    "split128": ("max_split_size_mb:128", {}),
    "power2": ("roundup_power2_divisions:8", {}),
    "collect": ("garbage_collection_threshold:0.6", {"train": 60, "inference": 12, "finetune": 16}),
}
STATS = ["allocated_bytes.all", "reserved_bytes.all", "active_bytes.all", "inactive_split_bytes.all", "requested_bytes.all", "segment.all",
         "reserved_bytes.large_pool", "reserved_bytes.small_pool", "allocation.all", "active.all"]
COUNTERS = ["num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free", "num_sync_all_streams", "oversize_allocations.current", "oversize_segments.current"]


def llama(torch):
    """Grouped-query attention, rotary positions, gated MLP, tied head; a cache of keys and values where one is given."""
    nn, F = torch.nn, torch.nn.functional

    class Norm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight.to(x.dtype)

    class Layer(nn.Module):
        def __init__(self, hidden, inter, heads, kv):
            super().__init__()
            self.heads, self.kv, self.width = heads, kv, hidden // heads
            self.q, self.o = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
            self.k, self.v = nn.Linear(hidden, kv * self.width, bias=False), nn.Linear(hidden, kv * self.width, bias=False)
            self.gate, self.up = nn.Linear(hidden, inter, bias=False), nn.Linear(hidden, inter, bias=False)
            self.down = nn.Linear(inter, hidden, bias=False)
            self.before, self.after = Norm(hidden), Norm(hidden)

        def rotate(self, x, at):
            half = self.width // 2
            angle = at[:, None] * torch.exp(-torch.arange(half, device=x.device) * (13.1 / half))
            cos, sin, a, b = angle.cos().to(x.dtype), angle.sin().to(x.dtype), x[..., :half], x[..., half:]
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

        def attend(self, x, cache, index):
            B, T, C = x.shape
            split = lambda y, n: y.view(B, T, n, self.width).transpose(1, 2)
            past = cache[index][0].shape[2] if cache and index in cache else 0
            at = torch.arange(past, past + T, device=x.device)
            q, k, v = self.rotate(split(self.q(x), self.heads), at), self.rotate(split(self.k(x), self.kv), at), split(self.v(x), self.kv)
            if cache is not None:
                if past: k, v = torch.cat((cache[index][0], k), 2), torch.cat((cache[index][1], v), 2)
                cache[index] = (k, v)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=past == 0, enable_gqa=True)
            return self.o(y.transpose(1, 2).reshape(B, T, C))

        def forward(self, x, cache=None, index=0):
            x = x + self.attend(self.before(x), cache, index)
            y = self.after(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    class Llama(nn.Module):
        def __init__(self, vocab=128256, hidden=2048, inter=8192, layers=16, heads=32, kv=8):
            super().__init__()
            self.embed = nn.Embedding(vocab, hidden)
            self.layers = nn.ModuleList(Layer(hidden, inter, heads, kv) for _ in range(layers))
            self.norm = Norm(hidden)

        def forward(self, ids, cache=None, last=False):
            x = self.embed(ids)
            for i, layer in enumerate(self.layers): x = layer(x, cache, i)
            x = self.norm(x)
            return F.linear(x[:, -1:] if last else x, self.embed.weight)

    return Llama


def train(torch):
    F = torch.nn.functional
    model = llama(torch)().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(4):
        ids = torch.randint(128256, (4, 1025), device="cuda")
        with torch.autocast("cuda", torch.bfloat16): logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        del logits
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def inference(torch):
    draw = random.Random(7)
    model = llama(torch)().to(torch.bfloat16).cuda()
    with torch.no_grad():
        for _ in range(10):
            cache = {}
            token = model(torch.randint(128256, (draw.choice((1, 2, 4, 8)), draw.randint(16, 3000)), device="cuda"), cache, last=True).argmax(-1)
            for _ in range(draw.randint(4, 12)): token = model(token, cache, last=True).argmax(-1)
    return int(token[0, 0])


def finetune(torch):
    nn, draw = torch.nn, random.Random(11)

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.word, self.place = nn.Embedding(30522, 768), nn.Embedding(512, 768)
            layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.1, "gelu", batch_first=True)
            self.encoder, self.head = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), nn.Linear(768, 2)

        def forward(self, ids):
            x = self.word(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
            return self.head(self.encoder(x)[:, 0])

    model = Bert().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    for _ in range(10):
        ids = torch.randint(30522, (32, draw.randint(24, 512)), device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16): loss = nn.functional.cross_entropy(model(ids).float(), ids[:, 0] % 2)
        loss.backward()
        optimizer.step()
    return loss.item()


WORKLOADS = {"train": train, "inference": inference, "finetune": finetune}


def record(folder, workload, conf):
    """One run in this process, whose environment has the option string already."""
    import torch
    options, limits = CONFS[conf]
    torch.manual_seed(0)
    total = torch.cuda.get_device_properties(0).total_memory
    limit = limits.get(workload, 0) << 30
    if limit: torch.cuda.set_per_process_memory_fraction(limit / total)
    torch.cuda.memory._record_memory_history(max_entries=1 << 20, stacks="python")
    row = dict(workload=workload, conf=conf, options=options, fraction_bytes=limit, torch=torch.__version__, card=torch.cuda.get_device_name(0), memory=total)
    try:
        row["result"] = WORKLOADS[workload](torch)
    except torch.cuda.OutOfMemoryError as e:
        row["oom"] = str(e).split(". ")[0]
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    row.update({f"{name}.peak": stats.get(f"{name}.peak") for name in STATS})
    row.update({f"{name}.current": stats.get(f"{name}.current") for name in STATS})
    row.update({name: stats.get(name) for name in COUNTERS})
    name = f"{workload}-{conf}.pickle"
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, name)
        torch.cuda.memory._dump_snapshot(path)
        row["bytes"] = os.path.getsize(path)
        with open(path, "rb") as f, gzip.open(os.path.join(folder, name + ".gz"), "wb", 6) as out: out.write(f.read())
    return row


def told(plimsoll, command, path, *args):
    done = subprocess.run([plimsoll, command, path, "--json", *map(str, args)], capture_output=True, text=True)
    return json.loads(done.stdout) if done.stdout else sys.exit(f"{command} {path}: {done.stderr.strip()}")


def compare(folder, plimsoll):
    """A line for each run: what PyTorch reached, what a replay under the same options reaches, what a perfect arena takes. GiB."""
    worse, gib = 0, lambda n: f"{n / 2**30:8.3f}"
    print("run                     reserved: torch   replay   active: torch   replay    OOMs   arena   bound   ratio  saving")
    with open(os.path.join(folder, "peaks.jsonl")) as f: rows = [json.loads(line) for line in f]
    for row in rows:
        name = f"{row['workload']}-{row['conf']}"
        if "failed" in row: continue
        with tempfile.TemporaryDirectory() as scratch:
            path = os.path.join(scratch, name + ".pickle")
            with gzip.open(os.path.join(folder, name + ".pickle.gz")) as f, open(path, "wb") as out: out.write(f.read())
            replay = told(plimsoll, "replay", path, "--conf", row["options"], "--memory", row["fraction_bytes"] or row["memory"])["results"][0]
            pack = told(plimsoll, "pack", path)["devices"][0]
        stats = replay["stats"]
        worse += stats["reserved_bytes.all.peak"] > row["reserved_bytes.all.peak"] or pack["arena_bytes"] > 1.005 * pack["lower_bound_bytes"]
        print(f"{name:22}       {gib(row['reserved_bytes.all.peak'])} {gib(stats['reserved_bytes.all.peak'])}        {gib(row['active_bytes.all.peak'])} {gib(stats['active_bytes.all.peak'])}"
              f" {row['num_ooms']}/{replay['ooms']} {gib(pack['arena_bytes'])}{gib(pack['lower_bound_bytes'])}  {pack['arena_over_bound']:.4f} {100 * pack['saving_share']:5.1f} %")
    print(f"{worse} of {len(rows)} worse than they may be")
    return 1 if worse else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--conf", action="append", choices=CONFS)
    parser.add_argument("--compare", metavar="PLIMSOLL", help="replay and pack what is in FOLDER")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.compare: return compare(a.folder, a.compare)
    os.makedirs(a.folder, exist_ok=True)
    if a.here:
        print(json.dumps(record(a.folder, a.workload[0], a.conf[0])))
        return 0
    with open(os.path.join(a.folder, "peaks.jsonl"), "a") as peaks:
        for workload in a.workload or WORKLOADS:
            for conf in a.conf or CONFS:
                options = CONFS[conf][0]
                environment = {k: v for k, v in os.environ.items() if k not in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")}
                if options: environment["PYTORCH_CUDA_ALLOC_CONF"] = options
                done = subprocess.run([sys.executable, os.path.abspath(__file__), a.folder, "--workload", workload, "--conf", conf, "--here"],
                                      env=environment, stdout=subprocess.PIPE, text=True)
                line = done.stdout.strip().splitlines()[-1] if done.returncode == 0 else json.dumps(dict(workload=workload, conf=conf, failed=done.returncode))
                print(line, flush=True)
                print(line, file=peaks, flush=True)
    size = sum(os.path.getsize(os.path.join(a.folder, name)) for name in os.listdir(a.folder))
    print(f"{size / 1e6:.1f} MB in {a.folder}", file=sys.stderr)
    return 0


if __name__ == "__main__": sys.exit(main())
