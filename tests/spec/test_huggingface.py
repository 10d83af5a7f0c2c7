"""Configurations as transformers writes them, and as older files spell them."""

import json
from math import log

import pytest

from shardwright.spec import BadInput, ModelSpec, parameter_count

transformers = pytest.importorskip("transformers")
import torch  # noqa: E402

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6, "num_key_value_heads": 4}
DEEPSEEK = {
    **LATENT,
    **EXPERTS,
    "q_lora_rank": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}

CASES = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-bias": ("Llama", {"attention_bias": True}),
    "llama-head-dim": ("Llama", {"head_dim": 16}),
    "llama-all-heads": ("Llama", {"num_key_value_heads": None}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 64}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2", {}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-bias": ("Qwen3", {"head_dim": 16, "attention_bias": True}),
    "qwen3_moe": ("Qwen3Moe", {**EXPERTS, "num_experts": 8, "head_dim": 16, "norm_topk_prob": True}),
    "deepseek_v3": ("DeepseekV3", DEEPSEEK),
    "deepseek_v3-no-query-rank": ("DeepseekV3", {**DEEPSEEK, "q_lora_rank": None, "n_shared_experts": 1}),
}


def read(folder, config_class, **changes):
    config = getattr(transformers, f"{config_class}Config")(**{**SIZES, **changes})
    config.save_pretrained(folder)
    return config, ModelSpec.from_huggingface(str(folder))


@pytest.mark.parametrize(("config_class", "changes"), CASES.values(), ids=CASES)
def test_counts_agree_with_the_model_that_transformers_builds(tmp_path, config_class, changes):
    config, spec = read(tmp_path, config_class, **changes)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    expected = sum(weight.numel() for weight in model.parameters())
    expected += sum(b.numel() for name, b in model.named_buffers() if name.endswith("e_score_correction_bias"))
    assert parameter_count(spec) == expected
    assert spec.name == tmp_path.name


def test_experts_are_read_with_their_routing(tmp_path):
    spec = read(tmp_path / "mixtral", "Mixtral", num_local_experts=4, num_experts_per_tok=3)[1]
    assert (spec.experts.count, spec.experts.active, spec.experts.feed_forward) == (4, 3, 48)
    assert spec.experts.normalize
    spec = read(tmp_path / "qwen", "Qwen3Moe", **EXPERTS, num_experts=8, head_dim=16, norm_topk_prob=False)[1]
    assert (spec.experts.count, spec.experts.normalize, spec.qk_norm) == (8, False, True)
    spec = read(tmp_path / "deepseek", "DeepseekV3", **DEEPSEEK, routed_scaling_factor=1.5)[1]
    experts = spec.experts
    assert (experts.groups, experts.active_groups, experts.shared, experts.dense_layers) == (4, 2, 2, 1)
    assert (experts.scores, experts.scale, experts.selection_bias) == ("sigmoid", 1.5, True)
    assert (spec.head_dim, spec.kv_heads) == (12, 4)


def test_windows_mean_what_each_family_means(tmp_path):
    assert read(tmp_path / "a", "Mistral", sliding_window=64)[1].window == 64
    assert read(tmp_path / "b", "Mistral", sliding_window=None)[1].window is None
    on = {"use_sliding_window": True, "sliding_window": 64}
    assert read(tmp_path / "c", "Qwen2", **on, max_window_layers=0)[1].window == 64
    assert read(tmp_path / "d", "Qwen2", **on, max_window_layers=3)[1].window is None
    assert read(tmp_path / "e", "Qwen2", sliding_window=64)[1].window is None
    with pytest.raises(BadInput, match=r"layer_types: windows in some layers only"):
        read(tmp_path / "f", "Qwen2", **on, max_window_layers=1)
    assert read(tmp_path / "g", "Qwen3Moe", **EXPERTS, num_experts=8, **on)[1].window == 64


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"rope_type": "default"}, {"scaling": "none", "factor": 1.0}),
        ({"rope_type": "linear", "factor": 4.0}, {"scaling": "linear", "factor": 4.0}),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 2.0,
                "high_freq_factor": 5.0,
                "original_max_position_embeddings": 128,
            },
            {
                "scaling": "llama3",
                "factor": 8.0,
                "low_frequency_factor": 2.0,
                "high_frequency_factor": 5.0,
                "original_context": 128,
            },
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 24.0},
            {"scaling": "yarn", "original_context": 128, "beta_fast": 24.0, "beta_slow": 1.0, "attention_factor": 0.0},
        ),
    ],
    ids=lambda value: value.get("rope_type", ""),
)
def test_rope_scalings_as_transformers_writes_them(tmp_path, rope, expected):
    spec = read(tmp_path, "Llama", rope_parameters={"rope_theta": 500_000.0, **rope})[1]
    assert spec.rope.theta == 500_000.0
    assert {name: getattr(spec.rope, name) for name in expected} == expected


OLD = {
    "model_type": "llama",
    **SIZES,
    "rope_theta": 20_000.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}


def old(folder, remove=(), **changes):
    config = {key: value for key, value in {**OLD, **changes}.items() if key not in remove}
    (folder / "config.json").write_text(json.dumps(config))
    return ModelSpec.from_huggingface(str(folder))


def test_the_older_spelling(tmp_path):
    spec = old(tmp_path)
    assert (spec.rope.theta, spec.rope.scaling, spec.norm_epsilon, spec.context) == (20_000.0, "none", 1e-5, 512)
    assert (spec.tied_embeddings, spec.qkv_bias, spec.output_bias, spec.qk_norm) == (False, False, False, False)
    spec = old(tmp_path, rope_scaling={"type": "linear", "factor": 2.0})
    assert (spec.rope.theta, spec.rope.scaling, spec.rope.factor) == (20_000.0, "linear", 2.0)
    spec = old(tmp_path, rope_scaling={"type": "yarn", "factor": 4.0})
    assert (spec.rope.scaling, spec.rope.original_context) == ("yarn", 512)
    assert old(tmp_path, rope_scaling=None).rope.scaling == "none"
    assert old(tmp_path, remove=["rope_theta"]).rope.theta == 10_000.0
    assert old(tmp_path, tie_word_embeddings=True).tied_embeddings
    biased = old(tmp_path, attention_bias=True)
    assert biased.qkv_bias
    assert biased.output_bias


def test_the_older_spelling_of_windows(tmp_path):
    qwen = {"model_type": "qwen2", "sliding_window": 64}
    assert old(tmp_path, **qwen).window is None
    assert old(tmp_path, **qwen, use_sliding_window=False).window is None
    assert old(tmp_path, **qwen, use_sliding_window=True, max_window_layers=0).window == 64
    assert old(tmp_path, **qwen, use_sliding_window=True, max_window_layers=28).window is None
    with pytest.raises(BadInput, match=r"windows in some layers only"):
        old(tmp_path, **qwen, use_sliding_window=True, max_window_layers=2)
    assert old(tmp_path, sliding_window=64).window is None  # Llama has none


def test_qwen2_biases_cover_queries_keys_and_values_only(tmp_path):
    spec = old(tmp_path, model_type="qwen2", attention_bias=True)
    assert spec.qkv_bias
    assert not spec.output_bias


def test_yarn_attention_factors(tmp_path):
    yarn = {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 128}
    assert old(tmp_path, rope_scaling={**yarn, "attention_factor": 1.5}).rope.attention_factor == 1.5
    rope = old(tmp_path, rope_scaling={**yarn, "mscale": 2.0, "mscale_all_dim": 1.0}).rope
    assert rope.attention_factor == pytest.approx((0.2 * log(40) + 1) / (0.1 * log(40) + 1))
    assert rope.softmax_factor == 1.0  # only DeepSeek's attention reads it
    deepseek = {"model_type": "deepseek_v3", **DEEPSEEK}
    rope = old(tmp_path, **deepseek, rope_scaling={**yarn, "mscale": 1.0, "mscale_all_dim": 1.0}).rope
    assert rope.attention_factor == pytest.approx(1.0)
    assert rope.softmax_factor == pytest.approx((0.1 * log(40) + 1) ** 2)
    assert old(tmp_path, **deepseek).rope.softmax_factor == 1.0


def test_deepseek_softmax_scale_agrees_with_transformers(tmp_path):
    yarn = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 128, "rope_theta": 1e4}
    config, spec = read(
        tmp_path, "DeepseekV3", **DEEPSEEK, rope_parameters={**yarn, "mscale": 1.0, "mscale_all_dim": 0.5}
    )
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config).model.layers[0].self_attn.scaling
    assert spec.rope.softmax_factor * spec.head_dim**-0.5 == pytest.approx(theirs)


MOE = {"model_type": "qwen3_moe", **EXPERTS, "num_experts": 8}


@pytest.mark.parametrize(
    ("changes", "remove", "words"),
    [
        ({"model_type": "lama"}, (), 'model_type = "lama": not a family.*Did you mean "llama"'),
        ({}, ("model_type",), "model_type: not a family"),
        ({"hidden_act": "gelu"}, (), 'hidden_act = "gelu": only "silu"'),
        ({"mlp_bias": True}, (), "mlp_bias = true"),
        ({}, ("hidden_size",), "hidden_size: is missing from config.json"),
        ({"model_type": "mixtral"}, (), "num_local_experts: is missing"),
        (MOE, ("moe_intermediate_size",), "moe_intermediate_size: is missing"),
        (MOE, ("num_experts",), "num_experts: is missing"),
        ({"model_type": "deepseek_v3", **DEEPSEEK}, ("kv_lora_rank",), "kv_lora_rank: is missing"),
        ({"model_type": "deepseek_v3", **DEEPSEEK, "attention_bias": True}, (), "attention_bias = true"),
        ({"model_type": "deepseek_v3", **DEEPSEEK, "rope_interleave": False}, (), "rope_interleave = false"),
        ({**MOE, "mlp_only_layers": [0]}, (), "dense layers between expert layers"),
        ({**MOE, "decoder_sparse_step": 2}, (), "dense layers between expert layers"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, (), 'rope_type = "dynamic": not a scaling'),
        ({"rope_scaling": {"type": "linear"}}, (), "factor: is missing"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, (), "low_freq_factor: is missing"),
        ({"hidden_size": "32"}, (), 'hidden = "32": must be a whole number'),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(tmp_path, changes, remove, words):
    with pytest.raises(BadInput, match=words):
        old(tmp_path, remove, **changes)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(BadInput, match=r"there is no config.json. Name a Hugging Face model folder"):
        ModelSpec.from_huggingface(str(tmp_path))
    with pytest.raises(BadInput, match=r"there is no config.json"):
        ModelSpec.from_huggingface(str(tmp_path / "nowhere"))
    (tmp_path / "config.json").write_text('{"model_type": ')
    with pytest.raises(BadInput, match=r"cannot be read as JSON"):
        ModelSpec.from_huggingface(str(tmp_path))
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match=r"cannot be read as JSON"):
        ModelSpec.from_huggingface(str(tmp_path))
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(BadInput, match=r"must hold one JSON object"):
        ModelSpec.from_huggingface(str(tmp_path))


def test_the_file_itself_may_be_named(tmp_path):
    assert old(tmp_path) == ModelSpec.from_huggingface(str(tmp_path / "config.json"))
