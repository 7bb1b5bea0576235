"""What quantised formats hold: FORMATS is {name: (quantization_config, module)}, where module(shape) makes a random weight
as the format's writer does, and what it stands for in float32. quantised_model_oracle.py writes files of them.

compressed-tensors and bitsandbytes write and read their own formats; what has no package that runs here (GPTQ, AWQ, FP8
in blocks, ModelOpt) is written bit by bit from its description, and expected from float64."""

import json
import secrets

import numpy as np
import torch

seed = secrets.randbits(31)
print("seed", seed)
torch.manual_seed(seed)
random = np.random.default_rng(seed)


def once(values):  # float64 -> float32
    return torch.from_numpy(values.astype(np.float32))


def words(codes, bits, axis):
    """Codes one after another along the axis, from the low bit on, in int32 words."""
    codes = np.moveaxis(np.asarray(codes, dtype=np.uint64), axis, -1)
    count = codes.shape[-1] * bits // 32
    stream = (codes[..., None] >> np.arange(bits, dtype=np.uint64) & 1).reshape(*codes.shape[:-1], count, 32)
    made = (stream << np.arange(32, dtype=np.uint64)).sum(-1).astype(np.uint32).view(np.int32)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(made, -1, axis)))


def scales_of(shape, dtype=torch.float16):
    scale = torch.randn(shape) * 0.01
    odd = torch.tensor([0.0, 1e-7, -0.25])  # none, subnormal in float16, negative
    scale.view(-1)[:3] = odd[: scale.numel()]
    return scale.to(dtype)


def gptq(bits, group, version, act_order=False, sym=False, mislabelled=False):
    def module(shape):
        rows, columns = shape
        groups = -(-columns // group)
        codes = random.integers(0, 1 << bits, (columns, rows))
        zeros = random.integers(0, 1 << bits, (groups, rows))
        if sym:
            zeros[:] = (1 << (bits - 1)) - (version == 1)
        order = np.arange(columns) // group
        if act_order:
            order = random.permutation(order)
        scale = scales_of((groups, rows))
        less_one = version == 1
        value = (codes - (zeros[order] + less_one)) * scale.numpy().astype(np.float64)[order]
        parts = {"qweight": words(codes, bits, 0), "qzeros": words(zeros, bits, 1), "scales": scale,
                 "g_idx": torch.from_numpy(order.astype(np.int32))}
        return parts, once(value.T)

    named = "gptq_v2" if (version == 2) != mislabelled else "gptq"
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order, "sym": sym,
            "checkpoint_format": named}, module


def awq(group):
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def module(shape):
        rows, columns = shape
        codes = random.integers(0, 16, (columns, rows))
        zeros = random.integers(0, 16, (columns // group, rows))
        scale = scales_of((columns // group, rows))
        mixed = [words(c.reshape(c.shape[0], -1, 8)[:, :, order].reshape(c.shape), 4, 1) for c in (codes, zeros)]
        each = np.arange(columns) // group
        value = (codes - zeros[each]) * scale.numpy().astype(np.float64)[each]
        return {"qweight": mixed[0], "qzeros": mixed[1], "scales": scale}, once(value.T)

    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}, module


def e4m3(shape):
    codes = torch.from_numpy(random.integers(0, 256, shape, dtype=np.uint8))
    codes[codes % 128 == 127] = 126  # no NaN
    return codes.view(torch.float8_e4m3fn)


def fp8_blocks(shape):
    rows, columns = shape
    data, scale = e4m3(shape), scales_of((-(-rows // 128), -(-columns // 128)), torch.float32)
    each = scale.double().numpy()[np.arange(rows)[:, None] // 128, np.arange(columns)[None] // 128]
    return {"weight": data, "weight_scale_inv": scale}, once(data.double().numpy() * each)


def fp8_whole(shape):
    data, scale = e4m3(shape), torch.tensor(0.0123)
    value = data.double().numpy() * scale.double().numpy()
    return {"weight": data, "weight_scale": scale, "input_scale": torch.tensor(1.0)}, once(value)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def modelopt_nvfp4(shape):
    rows, columns = shape
    pairs = random.integers(0, 256, (rows, columns // 2), dtype=np.uint8)
    codes = np.stack([pairs & 15, pairs >> 4], -1).reshape(shape)
    scale, whole = e4m3((rows, columns // 16)), torch.tensor(0.037)
    local = np.repeat(scale.float().numpy(), 16, axis=1)
    value = (E2M1[codes].astype(np.float32) * local) * whole.numpy()  # the first product is exact
    return ({"weight": torch.from_numpy(pairs), "weight_scale": scale, "weight_scale_2": whole,
             "input_scale": torch.tensor(1.0)}, once(value))


def exact_nvfp4(made, rounded):
    """compressed-tensors reads NVFP4 into bfloat16: here before that rounding."""
    pairs = made["weight_packed"].numpy()
    codes = np.stack([pairs & 15, pairs >> 4], -1).reshape(pairs.shape[0], -1)
    local = made["weight_scale"].float() / made["weight_global_scale"].float()
    value = E2M1[codes].astype(np.float32) * np.repeat(local.numpy(), 16, axis=1)
    exact = torch.from_numpy(value)
    assert torch.equal(exact.to(torch.bfloat16), rounded.to(torch.bfloat16)), "not what compressed-tensors reads"
    return exact


def compressed(form, bits=4, kind="int", strategy="group", group=64, symmetric=True, extra=None):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    weights = QuantizationArgs(num_bits=bits, type=kind, strategy=strategy, group_size=group, symmetric=symmetric,
                               **(extra or {}))
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, format=form)

    def module(shape):
        compressor = BaseCompressor.get_value_from_registry(form)
        rows, columns = shape
        weight = torch.randn(shape)
        groups = columns // group if group else 1
        # Of 16 bits, as checkpoints have them: in blocks a scale leaves its last byte to the zero.
        scale = weight.view(rows, groups, -1).abs().amax(-1) / (1 << (bits - 1)) if kind == "int" else None
        scale = None if scale is None else scale.bfloat16().float()
        parts = {"weight": weight}
        if form == "nvfp4-pack-quantized":
            parts["weight_global_scale"] = (2688 / weight.abs().max()).reshape(1)
            local = weight.view(rows, groups, -1).abs().amax(-1) / 6 * parts["weight_global_scale"]
            parts["weight_scale"] = local.to(torch.float8_e4m3fn).float()
        elif kind == "float":
            parts["weight_scale"] = weight.abs().amax(-1, keepdim=True) / 448
        else:
            parts["weight_scale"] = scale
        if not symmetric:
            parts["weight_zero_point"] = torch.randint(-(1 << (bits - 1)), 1 << (bits - 1), scale.shape).to(torch.int8)
        made = compressor.compress(parts, scheme)
        back = compressor.decompress(dict(made), scheme)["weight"]
        return made, exact_nvfp4(made, back) if form == "nvfp4-pack-quantized" else back

    group_of_config = {"targets": ["Linear"], "weights": json.loads(weights.model_dump_json())}
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
            "config_groups": {"group_0": group_of_config}, "ignore": ["lm_head"]}, module


def bitsandbytes_4bit(kind, nested):
    import bitsandbytes.functional as bnb

    def module(shape):
        weight = torch.randn(shape)
        data, state = bnb.quantize_4bit(weight, quant_type=kind, blocksize=64, compress_statistics=nested)
        parts = {"weight": data} | {f"weight.{end}": t for end, t in state.as_dict(packed=True).items()}
        return parts, bnb.dequantize_4bit(data, state)

    return {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind,
            "bnb_4bit_use_double_quant": nested}, module


FORMATS = {
    "gptq_v1": gptq(4, 64, 1), "gptq_v2": gptq(4, 64, 2), "gptq_act_order": gptq(4, 32, 1, act_order=True),
    "gptq_2bit": gptq(2, 64, 1), "gptq_3bit": gptq(3, 64, 2), "gptq_8bit": gptq(8, 64, 1),
    "gptq_one_group": gptq(4, 1024, 1), "gptq_sym": gptq(4, 64, 1, sym=True),
    "gptq_mislabelled": gptq(4, 64, 2, sym=True, mislabelled=True),
    "awq": awq(64),
    "fp8_blocks": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, fp8_blocks),
    "modelopt_fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8_whole),
    "modelopt_nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, modelopt_nvfp4),
    "ct_w4a16": compressed("pack-quantized"), "ct_w4a16_asym": compressed("pack-quantized", symmetric=False),
    "ct_w8a16": compressed("pack-quantized", bits=8),
    "ct_int8": compressed("int-quantized", bits=8, strategy="channel", group=None),
    "ct_fp8": compressed("float-quantized", bits=8, kind="float", strategy="channel", group=None),
    "ct_nvfp4": compressed("nvfp4-pack-quantized", kind="float", strategy="tensor_group", group=16),
    "bnb_nf4": bitsandbytes_4bit("nf4", False), "bnb_nf4_nested": bitsandbytes_4bit("nf4", True),
    "bnb_fp4": bitsandbytes_4bit("fp4", False),
}
