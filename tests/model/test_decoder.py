"""The decoder computes what it should: names, transformers' own logits, document masks."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import shardwright.model
from shardwright.model import Decoder, build, materialise
from shardwright.spec import BadInput, Experts, ModelSpec, Rope, parameters

BASE = ModelSpec(vocabulary=96, hidden=48, layers=3, heads=6, kv_heads=2, feed_forward=80, context=256)
EXPERTS = Experts(count=6, active=2, feed_forward=24)

VARIANTS = {
    "plain": BASE,
    "multi-head": replace(BASE, kv_heads=6),
    "one kv head": replace(BASE, kv_heads=1),
    "tied": replace(BASE, tied_embeddings=True),
    "biases": replace(BASE, qkv_bias=True, output_bias=True),
    "qk-norm, wide heads": replace(BASE, qk_norm=True, head_dim=16),
    "experts": replace(BASE, experts=EXPERTS),
    "shared experts, dense first": replace(BASE, experts=replace(EXPERTS, shared=2, dense_layers=1)),
}


def made(spec: ModelSpec, seed: int = 3) -> Decoder:
    model = build(spec)
    materialise(model, seed=seed, device="cpu")
    return model


@pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS)
def test_parameters_are_those_of_the_spec(spec: ModelSpec) -> None:
    built = [(name, tuple(parameter.shape)) for name, parameter in build(spec).named_parameters()]
    assert built == [(parameter.name, parameter.shape) for parameter in parameters(spec)]


def test_building_takes_no_memory() -> None:
    model = build(ModelSpec.named("llama3-405b"))
    assert all(parameter.is_meta for parameter in model.parameters())


# Our name → the name in a transformers model; experts are stacked there too, gate and up in one tensor.
NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feed_forward.router.weight": "mlp.gate.weight",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}


def their_weight(theirs: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """The tensor of a transformers state dict that one of our parameters corresponds to."""
    if ".experts." in name:
        prefix = f"model.{name.rsplit('.feed_forward', 1)[0]}.mlp.experts"
        kind = name.rsplit(".", 1)[1]
        if kind == "down":
            return theirs[f"{prefix}.down_proj"]
        gate, up = theirs[f"{prefix}.gate_up_proj"].chunk(2, dim=1)
        return gate if kind == "gate" else up
    if name in NAMES:
        return theirs[NAMES[name]]
    layer, rest = name.split(".", 2)[1], name.split(".", 2)[2]
    for ours, other in NAMES.items():
        if rest == ours or rest.startswith(f"{ours}."):
            return theirs[f"model.layers.{layer}.{other}{rest.removeprefix(ours)}"]
    raise KeyError(name)


SMALL = {
    "vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 80, "max_position_embeddings": 256,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "rope_theta": 500.0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
QWEN_EXPERTS = {
    "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "head_dim": 16, "norm_topk_prob": True,
}  # fmt: skip
FAMILIES = {
    "llama": ("Llama", {}),
    "llama3 scaling": ("Llama", {"rope_parameters": LLAMA3}),
    "llama, tied, biased": ("Llama", {"tie_word_embeddings": True, "attention_bias": True}),
    "linear scaling": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}}),
    "yarn scaling": ("Llama", {"rope_parameters": YARN}),
    "mistral, window": ("Mistral", {"sliding_window": 10, "head_dim": 8}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "mixtral": ("Mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 8}),
    "qwen3 experts": ("Qwen3Moe", QWEN_EXPERTS),
}


@pytest.mark.parametrize(("family", "options"), FAMILIES.values(), ids=FAMILIES)
def test_logits_equal_transformers(family: str, options: dict[str, object], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SMALL, **options, attn_implementation="eager")
    reference = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for parameter in reference.parameters():  # norms and biases away from their first values
        parameter.data += 0.1 * torch.randn_like(parameter)
    config.save_pretrained(tmp_path)

    model = made(ModelSpec.from_huggingface(str(tmp_path)))
    theirs = reference.state_dict()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(their_weight(theirs, name))
    tokens = torch.randint(0, 96, (2, 48))
    with torch.no_grad():
        expected = reference(tokens).logits
        actual = model.logits(tokens)
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("window", [None, 7])
def test_packed_documents_are_as_if_alone(window: int | None) -> None:
    """Hidden states of packed documents equal those of each document at the same positions by itself."""
    model = made(replace(BASE, window=window))
    tokens = torch.randint(0, 96, (1, 40))
    documents = torch.tensor([[0] * 13 + [1] * 27])
    with torch.no_grad():
        packed, _ = model.hidden(tokens, documents)
        first, _ = model.hidden(tokens[:, :13])
        # Rotary attention depends on distances alone, so a document gives the same from position 0.
        second, _ = model.hidden(tokens[:, 13:])
    torch.testing.assert_close(packed[:, :13], first, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed[:, 13:], second, rtol=1e-4, atol=1e-5)
    unmasked, _ = model.hidden(tokens)
    assert not torch.allclose(unmasked[:, 13:], second, atol=1e-3)


def test_the_future_is_not_seen() -> None:
    model = made(BASE)
    tokens = torch.randint(0, 96, (1, 20))
    changed = tokens.clone()
    changed[0, 12:] = (changed[0, 12:] + 1) % 96
    with torch.no_grad():
        before, after = model.logits(tokens), model.logits(changed)
    assert torch.equal(before[0, :12], after[0, :12])
    assert not torch.equal(before[0, 12:], after[0, 12:])


def test_parameters_kept_wider_than_the_computation() -> None:
    """fp32 weights and bf16 products: gradients come back in fp32, and the loss is near the fp32 one."""
    model = made(BASE)
    tokens = torch.randint(0, 96, (2, 33))
    exact = model(tokens[:, :-1], tokens[:, 1:]).next_token.item()
    model.compute_dtype = torch.bfloat16
    losses = model(tokens[:, :-1], tokens[:, 1:])
    losses.next_token.backward()
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in model.parameters())
    # bf16 keeps 8 bits: a relative error of 2⁻⁸ in each of the few numbers a logit is made of.
    assert losses.next_token.item() == pytest.approx(exact, rel=2**-8)


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(BadInput, match="latent attention can be planned but not yet trained"):
        build(ModelSpec.named("deepseek-v3"))
    with pytest.raises(BadInput, match="selection_bias"):
        build(replace(BASE, experts=replace(EXPERTS, selection_bias=True)))


def test_rope_scaling_is_not_ignored() -> None:
    stretched = replace(BASE, rope=Rope(scaling="linear", factor=4.0))
    tokens = torch.randint(0, 96, (1, 20))
    with torch.no_grad():
        assert not torch.allclose(made(BASE).logits(tokens), made(stretched).logits(tokens))


def test_no_module_knows_of_ranks() -> None:
    """Promise 3: nothing in model/ imports torch.distributed or names a rank, mesh or process group."""
    for file in Path(shardwright.model.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Name):
                names = [node.id]
            for name in names:
                words = set(name.lower().replace(".", "_").split("_"))
                assert not words & {"distributed", "rank", "mesh", "world"}, f"{file.name}: {name}"
