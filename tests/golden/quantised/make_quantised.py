#!/usr/bin/env python3
"""Small quantised folders, and the values that their own libraries make of them.

    pip install torch transformers bitsandbytes compressed-tensors; pip install --no-deps autoawq
    python tests/golden/quantised/make_quantised.py            # rewrites every folder beside this file

Each folder has config.json and model.safetensors as the method's library writes them, and expected.json: for each weight its
shape, a type, and a hash (FNV-1a, 64 bits) of its elements in that type as the library dequantises them. Folders named after a
method are whole models of one layer, with transformers' log-probabilities of a row of tokens in logprobs.json; the others
hold single weights. written.safetensors has what
bitsandbytes makes of given numbers. GPTQ's values are those of its formula: its library needs a GPU.
"""
import importlib.util
import json
import os
import shutil
import sys

import bitsandbytes.functional as bnb
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations import mxfp4
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

HERE = os.path.dirname(os.path.abspath(__file__))
HIDDEN, INNER, HEADS, KV, VOCAB = 64, 128, 4, 2, 256
NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data: value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def expected(value):
    value = value.contiguous()
    return {"shape": list(value.shape), "type": NAMES[value.dtype], "hash": fnv(value.view(torch.uint8).flatten().tolist())}


def random(*shape, dtype=torch.float32):
    return (torch.randn(*shape) * 0.08).to(dtype)


def layer(inner):
    width = HIDDEN // HEADS
    shapes = {f"self_attn.{n}_proj": (r * width, HIDDEN) for n, r in (("q", HEADS), ("k", KV), ("v", KV), ("o", HEADS))}
    shapes |= {"mlp.gate_proj": (inner, HIDDEN), "mlp.up_proj": (inner, HIDDEN), "mlp.down_proj": (HIDDEN, inner)}
    return {f"model.layers.0.{n}": s for n, s in shapes.items()}


def write(name, config, tensors, want, model=None):
    folder = f"{HERE}/{name}"
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    whole = dict(model or {"model_type": "llama"}, quantization_config=config)
    with open(f"{folder}/config.json", "w") as f: json.dump(whole, f, indent=1)
    with open(f"{folder}/expected.json", "w") as f: json.dump({n: expected(v) for n, v in sorted(want.items())}, f, indent=1)
    save_file({n: t.contiguous() for n, t in tensors.items()}, f"{folder}/model.safetensors", {"format": "pt"})


def model(name, config, quantise, dtype="float16", inner=INNER):
    """A whole model; quantise(name, weight) gives the tensors of a linear layer, its values and, where the library rounds those to 16 bits, what
    they are in fp32."""
    kind = getattr(torch, dtype)
    facts = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": inner,
             "num_attention_heads": HEADS, "num_key_value_heads": KV, "num_hidden_layers": 1, "vocab_size": VOCAB,
             "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "torch_dtype": dtype,
             "bos_token_id": 1, "eos_token_id": 2}
    tensors = {"model.embed_tokens.weight": random(VOCAB, HIDDEN, dtype=kind) * 4, "model.norm.weight": torch.ones(HIDDEN, dtype=kind)}
    for n in ("input", "post_attention"): tensors[f"model.layers.0.{n}_layernorm.weight"] = torch.ones(HIDDEN, dtype=kind)
    want, whole = {}, dict(tensors)
    for n, shape in layer(inner).items():
        parts, values, *exact = quantise(n, random(*shape, dtype=kind))
        tensors |= parts
        want[f"{n}.weight"], whole[f"{n}.weight"] = values, exact[0] if exact else values
    write(name, config, tensors, want, facts)
    answers(name, facts, whole)


def answers(name, facts, weights):
    """Log-probabilities of a row of tokens by transformers, in fp32."""
    whole = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in facts.items() if k not in ("model_type", "architectures", "torch_dtype")})).float().eval()
    missing, extra = whole.load_state_dict({n: t.float() for n, t in weights.items()}, strict=False)
    assert not extra and missing in ([], ["lm_head.weight"]), (missing, extra)
    whole.tie_weights()
    ids = torch.randint(3, VOCAB, (1, 24))
    scores = torch.log_softmax(whole(ids).logits.float(), -1)[0, :-1].gather(1, ids[0, 1:, None]).flatten()
    with open(f"{HERE}/{name}/logprobs.json", "w") as f: json.dump({"prompt": ids[0].tolist(), "logprobs": scores.tolist()}, f)


# --- bitsandbytes ------------------------------------------------------------------------------------------------------

def four_bits(kind, double, blocksize=64):
    def quantise(name, weight):
        packed, state = bnb.quantize_4bit(weight, blocksize=blocksize, quant_type=kind, compress_statistics=double)
        parts = {f"{name}.weight": packed} | {f"{name}.weight.{k}": v for k, v in state.as_dict(packed=True).items()}
        state.dtype = torch.float32
        return parts, bnb.dequantize_4bit(packed, state) + 0.0  # its kernels do not agree about the sign of FP4's second zero
    return quantise


def eight_bits(name, weight):
    codes, scales, _ = bnb.int8_vectorwise_quant(weight.half())
    parts = {f"{name}.weight": codes, f"{name}.SCB": scales, f"{name}.weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, bnb.int8_vectorwise_dequant(codes, scales)


def bitsandbytes():
    def config(kind, double):
        return {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": kind,
                "bnb_4bit_use_double_quant": double, "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8"}
    model("nf4", config("nf4", False), four_bits("nf4", False), "bfloat16")
    model("nf4-double", config("nf4", True), four_bits("nf4", True), "bfloat16", inner=256)
    model("fp4", config("fp4", False), four_bits("fp4", False))
    model("int8", {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}, eight_bits)
    parts, want = {}, {}
    for name, kind, double, blocksize, shape in (("a", "nf4", False, 128, (4, 192)), ("b", "fp4", True, 64, (5, 256)), ("c", "nf4", True, 64, (7, 36)),
                                                 ("d", "nf4", False, 32, (3, 64)), ("e", "fp4", False, 64, (3, 50)), ("f", "nf4", True, 128, (300, 256))):
        p, want[f"{name}.weight"] = four_bits(kind, double, blocksize)(name, random(*shape))
        parts |= p
    write("bnb-blocks", config("nf4", True), parts, want)
    source = random(6, 128)
    source[0, :64] = 0
    source[1, 0], source[1, 1], source[1, 2] = 1, 0.001, -0.001
    made = {"source": source}
    for kind in ("nf4", "fp4"):
        packed, state = bnb.quantize_4bit(source, blocksize=64, quant_type=kind)
        made |= {f"{kind}.codes": packed.flatten(), f"{kind}.absmax": state.absmax}
    save_file(made, f"{HERE}/written.safetensors")


# --- AWQ and GPTQ ------------------------------------------------------------------------------------------------------

def rounded(weight, bits, group, symmetric):
    """Codes and zeros [out,in] and [out,groups], scales [out,groups] in fp16."""
    most = 2**bits - 1
    parts = weight.float().view(weight.shape[0], -1, group)
    if symmetric:
        scale = parts.abs().amax(-1).clamp(min=1e-5) / (most // 2)
        zero = torch.full_like(scale, 2 ** (bits - 1))
    else:
        low, high = parts.amin(-1).clamp(max=-1e-5), parts.amax(-1).clamp(min=1e-5)
        scale = (high - low) / most
        zero = torch.clamp(torch.round(-low / scale), 1, most)
    scale = scale.half()
    codes = torch.clamp(torch.round(parts / scale.float()[..., None]) + zero[..., None], 0, most)
    return codes.view(weight.shape).int(), zero.int(), scale


def bits_along(codes, bits):
    """The last dimension as a stream of bits in words."""
    out = torch.zeros(*codes.shape[:-1], codes.shape[-1] * bits // 32, dtype=torch.int64)
    for i in range(codes.shape[-1]):
        word, shift = divmod(i * bits, 32)
        out[..., word] |= codes[..., i].long() << shift
        if shift + bits > 32: out[..., word + 1] |= codes[..., i].long() >> (32 - shift)
    return (out & 0xFFFFFFFF).to(torch.int64).where(out & 0xFFFFFFFF < 2**31, (out & 0xFFFFFFFF) - 2**32).int()


def awq_packing():
    spec = importlib.util.find_spec("awq")
    path = os.path.join(os.path.dirname(spec.origin), "utils", "packing_utils.py")
    loaded = importlib.util.spec_from_file_location("packing_utils", path)
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    return module


def awq(name, weight, group=32):
    library, order = awq_packing(), [0, 2, 4, 6, 1, 3, 5, 7]
    codes, zeros, scales = rounded(weight, 4, group, False)
    def pack(lines):  # [n,out] -> [n,out/8]
        eights = lines.view(lines.shape[0], -1, 8)[..., order]
        return bits_along(eights, 4).squeeze(-1)
    qweight, qzeros, s = pack(codes.T.contiguous()), pack(zeros.T.contiguous()), scales.T.contiguous()
    values = library.dequantize_gemm(qweight, qzeros, s, 4, group).T
    exact = (codes - zeros.repeat_interleave(group, 1)).float() * scales.float().repeat_interleave(group, 1)
    assert torch.equal(exact.half(), values)
    return {f"{name}.qweight": qweight, f"{name}.qzeros": qzeros, f"{name}.scales": s}, values, exact


def gptq(name, weight, bits=4, group=32, symmetric=True, less_one=True, act=False):
    group = group if group > 0 else weight.shape[1]
    order = torch.randperm(weight.shape[1]) if act else torch.arange(weight.shape[1])
    index = torch.empty(weight.shape[1], dtype=torch.int32)
    index[order] = torch.arange(weight.shape[1], dtype=torch.int32) // group
    codes, zeros, scales = rounded(weight[:, order], bits, group, symmetric)
    codes = codes[:, torch.argsort(order)]
    values = (codes - zeros[:, index.long()]).float() * scales.float()[:, index.long()]
    stored = (zeros - (1 if less_one else 0)).T.contiguous()
    parts = {"qweight": bits_along(codes, bits).T, "qzeros": bits_along(stored, bits), "scales": scales.T, "g_idx": index}
    return {f"{name}.{k}": v for k, v in parts.items()}, values


def awq_and_gptq():
    model("awq", {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}, awq)
    def config(**more):
        return {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False, "checkpoint_format": "gptq"} | more
    model("gptq", config(), gptq)
    model("gptq-act", config(desc_act=True, sym=False, checkpoint_format="gptq_v2"), lambda n, w: gptq(n, w, symmetric=False, less_one=False, act=True))
    for bits in (2, 3, 8):
        parts, values = gptq("a", random(64, 96), bits, -1 if bits == 8 else 32, symmetric=False)
        write(f"gptq-bits{bits}", config(bits=bits, group_size=-1 if bits == 8 else 32), parts, {"a.weight": values})


# --- fp8, mxfp4 --------------------------------------------------------------------------------------------------------

def blocks_of_fp8(name, weight, block=32, dtype=torch.float32):
    rows, columns = weight.shape[0] // block, weight.shape[1] // block
    parts = weight.float().view(rows, block, columns, block)
    scale = (parts.abs().amax((1, 3)) / 448).to(dtype).float()
    codes = (parts / scale[:, None, :, None]).view(weight.shape).to(torch.float8_e4m3fn)
    values = Fp8Dequantize(None)._dequantize_one(codes, scale, torch.float32)
    return {f"{name}.weight": codes, f"{name}.weight_scale_inv": scale}, values


def odd_fp8():
    """Blocks of 128 that the weight is no multiple of, and one scale for the whole weight."""
    weight = random(200, 320)
    scale = torch.rand(2, 3) * 1e-3
    codes = (weight * 448).to(torch.float8_e4m3fn)
    grid = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:200, :320]
    parts = {"a.weight": codes, "a.weight_scale_inv": scale}
    want = {"a.weight": codes.float() * grid}
    write("fp8-odd", {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3", "activation_scheme": "dynamic"}, parts, want)
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    every[127], every[255] = 0, 0  # NaNs
    codes, scale = every.view(8, 32), torch.tensor(0.37)
    write("fp8-tensor", {"quant_method": "fp8", "activation_scheme": "static"},
          {"a.weight": codes, "a.weight_scale_inv": scale, "a.input_scale": torch.tensor(1.0)}, {"a.weight": codes.float() * scale})


def fp8_and_mxfp4():
    model("fp8", {"quant_method": "fp8", "weight_block_size": [32, 32], "fmt": "e4m3", "activation_scheme": "dynamic"}, blocks_of_fp8, "bfloat16")
    odd_fp8()
    blocks = torch.randint(0, 256, (2, 6, 3, 16), dtype=torch.uint8)
    scales = torch.randint(110, 130, (2, 6, 3), dtype=torch.uint8)
    values = mxfp4.convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).transpose(1, 2)
    write("mxfp4", {"quant_method": "mxfp4"}, {"experts.up_blocks": blocks, "experts.up_scales": scales}, {"experts.up": values})


# --- compressed-tensors ------------------------------------------------------------------------------------------------

def compressed(kind, dtype=torch.bfloat16, act=False, **facts):
    """Weights quantised and dequantised by the library; the scales are ours."""
    args = QuantizationArgs(**facts)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=kind)
    compressor = BaseCompressor.get_value_from_registry(kind)
    most = {"int": 2 ** (args.num_bits - 1) - 1, "float": 6 if args.num_bits == 4 else 448}[args.type]
    def quantise(name, weight):
        rows, columns = weight.shape
        group = args.group_size or columns
        if args.strategy == "tensor": size = weight.float().abs().amax().view(1)
        elif args.strategy == "block":
            high, wide = args.block_structure
            size = weight.float().view(rows // high, high, columns // wide, wide).abs().amax((1, 3))
        else: size = weight.float().view(rows, -1, group).abs().amax(-1)
        state = {"weight": weight, "weight_scale": (size / most * 1.1).to(dtype)}
        if args.strategy == "tensor_group":
            state["weight_global_scale"] = torch.tensor([448 * 6 / float(weight.float().abs().amax())])
            state["weight_scale"] = (size / 6 * state["weight_global_scale"]).to(torch.float8_e4m3fn).float()
        if kind.startswith("mx"): state["weight_scale"] = 2 ** torch.floor(torch.log2(state["weight_scale"].float()))
        if not args.symmetric: state["weight_zero_point"] = torch.randint(-3, 4, state["weight_scale"].shape, dtype=torch.int8)
        parts = compressor.compress(state, scheme)
        values = compressor.decompress(parts, scheme)["weight"]
        exact = values
        if kind == "pack-quantized": exact = compressor.decompress(parts | {"weight_scale": parts["weight_scale"].float()}, scheme)["weight"]
        if kind == "nvfp4-pack-quantized":
            scale = (parts["weight_scale"].float() / parts["weight_global_scale"]).repeat_interleave(16, 1)
            exact = unpack_fp4_from_uint8(parts["weight_packed"], rows, columns, torch.float32) * scale
        assert torch.equal(exact.to(values.dtype), values)
        return {f"{name}.{k}": v for k, v in parts.items()}, values, exact
    return quantise


def facts(kind, **more):
    return {"quant_method": "compressed-tensors", "format": kind, "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": more, "format": kind}}}


def compressed_tensors():
    four = dict(num_bits=4, type="int", strategy="group", group_size=32, symmetric=True)
    model("ct-pack", facts("pack-quantized", **four), compressed("pack-quantized", **four), "bfloat16")
    small = dict(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True)
    model("ct-nvfp4", facts("nvfp4-pack-quantized", **small), compressed("nvfp4-pack-quantized", **small), "bfloat16")
    cases = {"a": ("pack-quantized", dict(num_bits=4, type="int", strategy="group", group_size=32, symmetric=False)),
             "b": ("pack-quantized", dict(num_bits=8, type="int", strategy="channel", symmetric=True)),
             "c": ("pack-quantized", dict(num_bits=3, type="int", strategy="group", group_size=32, symmetric=True)),
             "d": ("int-quantized", dict(num_bits=8, type="int", strategy="channel", symmetric=True)),
             "e": ("int-quantized", dict(num_bits=8, type="int", strategy="group", group_size=32, symmetric=False)),
             "f": ("float-quantized", dict(num_bits=8, type="float", strategy="tensor", symmetric=True)),
             "g": ("float-quantized", dict(num_bits=8, type="float", strategy="channel", symmetric=True)),
             "h": ("float-quantized", dict(num_bits=8, type="float", strategy="block", block_structure=[32, 32], symmetric=True)),
             "i": ("mxfp4-pack-quantized", dict(num_bits=4, type="float", strategy="group", group_size=32, symmetric=True)),
             "j": ("mxfp8-quantized", dict(num_bits=8, type="float", strategy="group", group_size=32, symmetric=True, scale_dtype=torch.uint8))}
    parts, want = {}, {}
    for name, (kind, more) in cases.items():
        p, want[f"{name}.weight"], _ = compressed(kind, torch.float16 if name in "bd" else torch.bfloat16, **more)(name, random(64, 96, dtype=torch.bfloat16))
        parts |= p
    write("ct-mixed", facts("mixed-precision"), parts, want)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with torch.no_grad():
        bitsandbytes()
        awq_and_gptq()
        fp8_and_mxfp4()
        compressed_tensors()


if __name__ == "__main__":
    sys.exit(main())
