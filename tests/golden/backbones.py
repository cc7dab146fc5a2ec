"""Golden backbones: small random encoders and decoders and what transformers computes with them.

Takes an output folder and a seed. Gives one folder per case: the model as `save_pretrained` writes it and
`expected.safetensors` with the inputs and outputs. Every number comes from the model read back from its own folder, in
eager attention (bf16: its default, sdpa); outputs at padded positions are zero, since no one may read them.

Shapes: B texts, L positions, D hidden size, V vocabulary; a suffix `_bld` on a name gives its shape.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers as hf
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file

VOCAB = 80
LENGTHS = (24, 11, 2)
FULL_LENGTH = 16
PAD = 0
# Ten times the usual start, so that a mistake shows; with more, rounding alone moves transformers by over 1e-5.
INIT_STD = 0.2

SMALL = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
BERT = SMALL | dict(max_position_embeddings=64, hidden_act="gelu", pad_token_id=PAD)
ROBERTA = BERT | dict(pad_token_id=1, type_vocab_size=1)
DECODER = SMALL | dict(max_position_embeddings=64, pad_token_id=PAD, bos_token_id=1, eos_token_id=2)
GQA = DECODER | dict(num_key_value_heads=2)


def rope(theta, **scaling):
    return {"rope_type": "default", "rope_theta": theta} | scaling


def modernbert_rope(full, sliding):
    return {"full_attention": rope(full), "sliding_attention": rope(sliding)}


MODERNBERT = SMALL | dict(
    max_position_embeddings=64, num_hidden_layers=3, local_attention=8, pad_token_id=PAD, bos_token_id=1, cls_token_id=1,
    eos_token_id=2, sep_token_id=2, rope_parameters=modernbert_rope(1000.0, 50.0),
)
LLAMA3_ROPE = rope(
    100.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=32,
)


@dataclass
class Case:
    """One model folder: which class makes it, with which config, and how it is saved."""

    model: type
    config: type
    options: dict
    save: dict = field(default_factory=dict)
    v4_config: bool = False
    weights_of: str | None = None  # take the seed of this case, so that both hold the same weights


GEMMA = DECODER | dict(
    num_attention_heads=2, num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=24,
    sliding_window=6, layer_types=["sliding_attention", "full_attention"],
    rope_parameters={
        "full_attention": rope(1000.0, rope_type="linear", factor=8.0), "sliding_attention": rope(50.0),
    },
)
EMBEDDING_GEMMA = GEMMA | dict(use_bidirectional_attention=True, query_pre_attn_scalar=16)
LLAMA = DECODER | dict(rope_parameters=rope(10000.0))
QWEN2 = GQA | dict(rope_parameters=rope(1000.0), tie_word_embeddings=True)
WINDOW = dict(num_hidden_layers=3, use_sliding_window=True, sliding_window=5, max_window_layers=1)
CASES = {
    "bert": Case(hf.BertModel, hf.BertConfig, BERT),
    "bert_mlm": Case(hf.BertForMaskedLM, hf.BertConfig, BERT),
    "bert_gelu_new": Case(hf.BertModel, hf.BertConfig, BERT | dict(hidden_act="gelu_new", num_hidden_layers=1)),
    "roberta": Case(hf.RobertaForMaskedLM, hf.RobertaConfig, ROBERTA),
    "xlm_roberta": Case(hf.XLMRobertaModel, hf.XLMRobertaConfig, ROBERTA),
    "mpnet": Case(hf.MPNetModel, hf.MPNetConfig, BERT | dict(pad_token_id=1)),
    "modernbert": Case(hf.ModernBertModel, hf.ModernBertConfig, MODERNBERT, v4_config=True),
    "modernbert_mlm": Case(
        hf.ModernBertForMaskedLM, hf.ModernBertConfig,
        MODERNBERT | dict(num_hidden_layers=2, norm_bias=True, attention_bias=True, mlp_bias=True),
    ),
    "qwen2": Case(hf.Qwen2ForCausalLM, hf.Qwen2Config, QWEN2, v4_config=True),
    "qwen2_window": Case(hf.Qwen2ForCausalLM, hf.Qwen2Config, QWEN2 | WINDOW, v4_config=True),
    "qwen3": Case(hf.Qwen3ForCausalLM, hf.Qwen3Config, GQA | dict(head_dim=16, rope_parameters=rope(1000.0))),
    "llama": Case(hf.LlamaForCausalLM, hf.LlamaConfig, LLAMA),
    "llama3": Case(hf.LlamaForCausalLM, hf.LlamaConfig,
                   GQA | dict(rope_parameters=LLAMA3_ROPE, max_position_embeddings=256), v4_config=True),
    "llama_linear": Case(hf.LlamaForCausalLM, hf.LlamaConfig,
                         DECODER | dict(rope_parameters=rope(10000.0, rope_type="linear", factor=2.0)), v4_config=True),
    "llama_base": Case(hf.LlamaModel, hf.LlamaConfig, LLAMA),
    "llama_sharded": Case(hf.LlamaForCausalLM, hf.LlamaConfig, LLAMA, save=dict(max_shard_size="40KB"),
                          weights_of="llama"),
    "mistral": Case(hf.MistralForCausalLM, hf.MistralConfig,
                    GQA | dict(rope_parameters=rope(10000.0), sliding_window=6), v4_config=True),
    "gemma3": Case(hf.Gemma3ForCausalLM, hf.Gemma3TextConfig, GEMMA, v4_config=True),
    "gemma3_embedding": Case(hf.Gemma3TextModel, hf.Gemma3TextConfig, EMBEDDING_GEMMA),
}
ENCODERS = (hf.BertConfig, hf.RobertaConfig, hf.XLMRobertaConfig, hf.MPNetConfig, hf.ModernBertConfig)
ADAPTERS = {
    "lora": ("llama", ["q_proj", "v_proj", "down_proj"]),
    "lora_bert": ("bert", ["query", "value"]),
}


def make_backbones(out: Path, seed: int):
    for name, case in CASES.items():
        folder = out / name
        save_model(folder, case, seed_of(case.weights_of or name, seed))
        ids, mask = draw_ids(seed)
        save_expected(folder, expected(folder, case, ids, mask))
    for name, (base, targets) in ADAPTERS.items():
        make_adapter(out, name, base, targets, seed)


def seed_of(name: str, seed: int) -> int:
    """The same case has the same weights whatever other cases the table holds."""
    return seed * 1_000_003 + int.from_bytes(name.encode(), "big") % 1_000_003


def randomise(model, seed: int):
    """Draw every parameter from its own distribution; norms and biases too, so that a dropped one shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator) * INIT_STD
            # a Gemma multiplies by 1 + weight
            is_norm = parameter.dim() == 1 and name.endswith("weight") and model.config.model_type != "gemma3_text"
            parameter.copy_(noise + 1 if is_norm else noise)
    return model


def save_model(folder: Path, case: Case, seed: int):
    config = case.config(**case.options)
    randomise(case.model(config), seed).save_pretrained(folder, **case.save)
    if case.v4_config:
        write_v4_config(folder)


def write_v4_config(folder: Path):
    """The config as transformers 4 wrote it: rope_theta beside rope_scaling, torch_dtype, no layer_types."""
    config = json.loads((folder / "config.json").read_text())
    scaling = config.pop("rope_parameters")
    if config["model_type"] == "modernbert":
        config["global_rope_theta"] = scaling["full_attention"]["rope_theta"]
        config["local_rope_theta"] = scaling["sliding_attention"]["rope_theta"]
        config["global_attn_every_n_layers"] = 3
    elif config["model_type"] == "gemma3_text":
        config["rope_theta"] = scaling["full_attention"].pop("rope_theta")
        config["rope_local_base_freq"] = scaling["sliding_attention"]["rope_theta"]
        config["rope_scaling"] = scaling["full_attention"]
        config["sliding_window_pattern"] = 2
    else:
        config["rope_theta"] = scaling.pop("rope_theta")
        if scaling["rope_type"] == "linear":
            scaling = {"type": "linear", "factor": scaling["factor"]}
        config["rope_scaling"] = None if scaling.get("rope_type") == "default" else scaling
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.46.3"
    config.pop("layer_types", None)
    if config["model_type"] != "gemma3_text":
        config.pop("head_dim", None)
    (folder / "config_v4.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def draw_ids(seed: int):
    """Right-padded texts with ids in 3..V, so that no special id occurs inside a text."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (len(LENGTHS), max(LENGTHS)), generator=generator)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    return ids * mask + PAD * (1 - mask), mask


def expected(folder: Path, case: Case, ids, mask):
    model = load(folder, case)
    tensors = {"ids": ids, "mask": mask} | run(model, ids, mask)
    # in bf16 one rounding more or less is one part in 256, so this is transformers' default attention, eager only for MPNet
    half = load(folder, case, torch.bfloat16, attention="sdpa" if case.model._supports_sdpa else "eager")
    tensors["hidden_bf16"] = run(half, ids, mask)["hidden"].float()
    if case.config in ENCODERS or case.options.get("use_bidirectional_attention"):
        tensors.pop("logits", None)
        check_v4_config(folder, case, tensors)
        return tensors
    tensors |= left_padded(model, ids, mask, tensors["hidden"])
    if case.config is hf.Gemma3TextConfig:
        both = load(folder, case, config=case.config(**case.options | dict(use_bidirectional_attention=True)))
        tensors["bi_hidden"] = run(both, ids, mask)["hidden"]
        assert not close(tensors["bi_hidden"][0, 0], tensors["hidden"][0, 0]), "the first token sees more than itself"
    else:
        tensors["bi_hidden"] = bidirectional(model, ids, mask, tensors["hidden"])
    if "logits" in tensors:
        full_ids = ids[:1, :FULL_LENGTH]
        tensors |= {"full_ids": full_ids, "full_logits": run(model, full_ids, torch.ones_like(full_ids))["logits"]}
    check_v4_config(folder, case, tensors)
    return tensors


def load(folder: Path, case: Case, dtype=torch.float32, attention="eager", **options):
    model = case.model.from_pretrained(folder, dtype=dtype, attn_implementation=attention, **options).eval()
    frequencies = [buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")]
    assert all(buffer.dtype == torch.float32 for buffer in frequencies), "rope frequencies stay f32 in a bf16 model"
    return model


def run(model, ids, mask, attention=None, position_ids=None):
    """hidden (after the final norm), penultimate (the last layer's input) and, with a head, logits."""
    positions = {} if position_ids is None else {"position_ids": position_ids}
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=mask if attention is None else attention,
                    output_hidden_states=True, **positions)
    tensors = {"hidden": out.hidden_states[-1], "penultimate": out.hidden_states[-2]}
    if "logits" in out:
        tensors["logits"] = out.logits
    return {name: tensor * mask[..., None].to(tensor.dtype) for name, tensor in tensors.items()}


def left_padded(model, ids, mask, hidden_bld):
    """The same texts with the padding in front; positions count the real tokens, as generation does it."""
    shifts = (mask.shape[1] - mask.sum(1)).tolist()
    roll = lambda tensor: torch.stack([row.roll(shift, 0) for row, shift in zip(tensor, shifts)])
    left_ids, left_mask = roll(ids), roll(mask)
    positions = (left_mask.cumsum(1) - 1).clamp(min=0)
    left_hidden_bld = run(model, left_ids, left_mask, position_ids=positions)["hidden"]
    assert close(left_hidden_bld, roll(hidden_bld)), "the padding side must not change a text"
    return {"left_ids": left_ids, "left_mask": left_mask, "left_hidden": left_hidden_bld}


def bidirectional(model, ids, mask, causal_bld):
    """Every real token sees every real token; in a sliding layer those with |i - j| < window."""
    hidden_bld = run(model, ids, mask, bidirectional_mask(model, mask))["hidden"]
    assert not close(hidden_bld[0, 0], causal_bld[0, 0]), "the first token sees more than itself"
    changed = ids.clone()
    changed[0, -1] = 3 + (ids[0, -1] - 2) % (VOCAB - 3)
    moved_bld = run(model, changed, mask, bidirectional_mask(model, mask))["hidden"]
    assert close(moved_bld[1:], hidden_bld[1:]), "another text must not change"
    if "sliding_attention" not in layer_kinds(model):
        assert not close(moved_bld[0, 0], hidden_bld[0, 0]), "the first token sees the last"
    elif "full_attention" not in layer_kinds(model):
        reach = model.config.num_hidden_layers * (model.config.sliding_window - 1)
        edge = ids.shape[1] - 1 - reach
        assert close(moved_bld[0, :edge], hidden_bld[0, :edge]), "nothing passes beyond the windows"
        assert not close(moved_bld[0, edge], hidden_bld[0, edge]), "the windows reach this far"
    return hidden_bld


def layer_kinds(model):
    config = model.config
    if config.model_type == "mistral" and config.sliding_window is not None:
        return ["sliding_attention"] * config.num_hidden_layers
    return getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers


def bidirectional_mask(model, mask):
    """The additive [B, 1, L, L] mask; one per kind of layer where a model has both kinds."""
    length = mask.shape[1]
    distance = (torch.arange(length)[:, None] - torch.arange(length)).abs()
    window = getattr(model.config, "sliding_window", None) or length
    reach = {"full_attention": distance < length, "sliding_attention": distance < window}
    blocked = torch.finfo(torch.float32).min
    masks = {kind: torch.where(mask[:, None, None, :].bool() & near, 0.0, blocked) for kind, near in reach.items()}
    kinds = layer_kinds(model)
    return masks if len(set(kinds)) > 1 else masks[kinds[0]]


def check_v4_config(folder: Path, case: Case, tensors):
    """transformers reads the old config as the same model, and the scaled rope of a case is not the plain one."""
    if case.v4_config:
        config = case.config.from_dict(json.loads((folder / "config_v4.json").read_text()))
        old = run(load(folder, case, config=config), tensors["ids"], tensors["mask"])["hidden"]
        assert torch.equal(old, tensors["hidden"]), f"{folder.name}: config_v4.json means another model"
    scaled = case.options.get("rope_parameters", {})
    if scaled.get("rope_type", "default") != "default":
        plain = case.config(**case.options | dict(rope_parameters=rope(scaled["rope_theta"])))
        hidden_bld = run(load(folder, case, config=plain), tensors["ids"], tensors["mask"])["hidden"]
        assert not close(hidden_bld, tensors["hidden"], 1e-2), f"{folder.name}: the rope scaling does not show"


def make_adapter(out: Path, name: str, base: str, targets: list[str], seed: int):
    folder, case = out / name, CASES[base]
    config = LoraConfig(r=4, lora_alpha=8, target_modules=targets, lora_dropout=0.0)
    model = get_peft_model(load(out / base, case), config)
    generator = torch.Generator().manual_seed(seed_of(name, seed))
    for key, parameter in sorted(model.named_parameters()):
        if "lora_" in key:
            parameter.data = torch.randn(parameter.shape, generator=generator) * INIT_STD
    config.base_model_name_or_path = f"../{base}"
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    sort_targets(folder / "adapter_config.json")

    ids, mask = draw_ids(seed)
    adapted = run(PeftModel.from_pretrained(load(out / base, case), folder).eval(), ids, mask)
    plain = run(load(out / base, case), ids, mask)
    assert not close(adapted["hidden"], plain["hidden"], 1e-2), f"{name}: the adapter does not show"
    save_expected(folder, {"ids": ids, "mask": mask} | adapted)


def sort_targets(path: Path):
    """PEFT writes a set in hash order; sorted, two runs give the same file."""
    config = json.loads(path.read_text())
    config["target_modules"].sort()
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def close(left, right, tolerance=1e-4):
    return torch.allclose(left, right, rtol=0, atol=tolerance)


def save_expected(folder: Path, tensors):
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / "expected.safetensors")
