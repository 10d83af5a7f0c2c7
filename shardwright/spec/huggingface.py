"""Hugging Face `config.json` → the fields of `ModelSpec`.

Covers the families that Shardwright can describe: Llama, Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE and
DeepSeek-V3. A setting that would change the mathematics and that ModelSpec cannot say is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import log
from pathlib import Path
from typing import Any

from shardwright.spec.errors import BadInput, suggestion

FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3")

_SIZES = {
    "vocab_size": "vocabulary",
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "feed_forward",
}


def read_config(folder: str, field: str = "model") -> dict[str, Any]:
    """The fields of the model that a folder's `config.json` describes."""
    path = Path(folder)
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise BadInput(field, folder, rule="there is no config.json", fix="Name a Hugging Face model folder") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(field, str(file), rule=f"cannot be read as JSON: {error}") from None
    if not isinstance(config, Mapping):
        raise BadInput(field, str(file), rule="must hold one JSON object")
    fields = from_config(config, field)
    fields["name"] = path.resolve().name if path.is_dir() else path.resolve().parent.name
    return fields


class _Config(dict[str, Any]):
    """A configuration in which a missing key is the file's mistake."""

    def __init__(self, values: Mapping[str, Any], field: str) -> None:
        super().__init__(values)
        self.field = field

    def __missing__(self, key: str) -> Any:
        raise BadInput(f"{self.field}: {key}", rule="is missing from config.json")


def from_config(config: Mapping[str, Any], field: str = "model") -> dict[str, Any]:
    """The same from the configuration itself."""
    config = _Config(config, field)
    family = config.get("model_type")
    if family not in FAMILIES:
        raise BadInput(
            f"{field}: model_type",
            family,
            rule="not a family that can be read",
            fix=suggestion(str(family), FAMILIES),
        )
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise BadInput(f"{field}: hidden_act", activation, rule='only "silu" (SwiGLU) is known')
    if config.get("mlp_bias"):
        raise BadInput(f"{field}: mlp_bias", True, rule="a bias in the feed-forward network is not known")

    fields: dict[str, Any] = {ours: config[theirs] for theirs, ours in _SIZES.items()}
    fields["kv_heads"] = config.get("num_key_value_heads") or fields["heads"]
    if config.get("head_dim"):
        fields["head_dim"] = config["head_dim"]
    fields["context"] = config.get("max_position_embeddings", 4096)
    fields["norm_epsilon"] = config.get("rms_norm_eps", 1e-6)
    fields["tied_embeddings"] = bool(config.get("tie_word_embeddings", False))
    fields["qk_norm"] = family in ("qwen3", "qwen3_moe")
    # Qwen2 has biases on q, k, v without saying so; the others say `attention_bias`, which covers the output too.
    biased = bool(config.get("attention_bias", False))
    fields["qkv_bias"] = biased or family == "qwen2"
    fields["output_bias"] = biased and family != "qwen2"
    fields["window"] = _window(config, field)
    fields["rope"] = _rope(config, field)
    if family == "mixtral":
        fields["experts"] = {
            "count": config["num_local_experts"],
            "active": config["num_experts_per_tok"],
            "feed_forward": config["intermediate_size"],
            "balance_loss": config.get("router_aux_loss_coef", 0.0),
        }
    if family == "qwen3_moe":
        fields["experts"] = _qwen_experts(config, field)
    if family == "deepseek_v3":
        fields |= _deepseek(config, field)
    return fields


def _window(config: Mapping[str, Any], field: str) -> int | None:
    """The window of every layer. Qwen wants it switched on, and Qwen2 and Qwen3 only from `max_window_layers` on."""
    family, window = config["model_type"], config.get("sliding_window")
    switched_on = config.get("use_sliding_window", not family.startswith("qwen"))
    if not window or not switched_on or family in ("llama", "deepseek_v3"):
        return None
    kinds = set(config.get("layer_types") or ())
    if not kinds and family in ("qwen2", "qwen3"):
        full, layers = config.get("max_window_layers", 28), config["num_hidden_layers"]
        kinds = {"sliding_attention" if layer >= full else "full_attention" for layer in range(layers)}
    if len(kinds) > 1:
        raise BadInput(f"{field}: layer_types", rule="windows in some layers only are not known")
    return None if kinds == {"full_attention"} else window


def _qwen_experts(config: Mapping[str, Any], field: str) -> dict[str, Any]:
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise BadInput(f"{field}: decoder_sparse_step", rule="dense layers between expert layers are not known")
    return {
        "count": config.get("num_local_experts") or config["num_experts"],
        "active": config["num_experts_per_tok"],
        "feed_forward": config["moe_intermediate_size"],
        "normalize": bool(config.get("norm_topk_prob", False)),
        "balance_loss": config.get("router_aux_loss_coef", 0.0),
    }


def _deepseek(config: Mapping[str, Any], field: str) -> dict[str, Any]:
    if config.get("attention_bias"):
        raise BadInput(f"{field}: attention_bias", True, rule="a bias in latent attention is not known")
    if not config.get("rope_interleave", True):
        raise BadInput(f"{field}: rope_interleave", False, rule="only interleaved rotary weights are known")
    return {
        "head_dim": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "kv_heads": config["num_attention_heads"],
        "latent": {
            "query_rank": config.get("q_lora_rank") or 0,
            "kv_rank": config["kv_lora_rank"],
            "nope_head_dim": config["qk_nope_head_dim"],
            "rope_head_dim": config["qk_rope_head_dim"],
            "value_head_dim": config["v_head_dim"],
        },
        "experts": {
            "count": config["n_routed_experts"],
            "active": config["num_experts_per_tok"],
            "feed_forward": config["moe_intermediate_size"],
            "shared": config.get("n_shared_experts") or 0,
            "dense_layers": config.get("first_k_dense_replace", 0),
            "scores": config.get("scoring_func", "sigmoid"),
            "normalize": bool(config.get("norm_topk_prob", True)),
            "scale": config.get("routed_scaling_factor", 1.0),
            "groups": config.get("n_group") or 1,
            "active_groups": config.get("topk_group") or 1,
            "selection_bias": True,
        },
    }


def _rope(config: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Newer files keep everything in `rope_parameters`; older ones split `rope_theta` and `rope_scaling`."""
    parameters = _Config(config.get("rope_parameters") or config.get("rope_scaling") or {}, field)
    rope: dict[str, Any] = {"theta": parameters.get("rope_theta") or config.get("rope_theta") or 10_000.0}
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return rope
    if kind not in ("linear", "llama3", "yarn"):
        raise BadInput(
            f"{field}: rope_type",
            kind,
            rule="not a scaling that is known",
            fix=suggestion(kind, ("linear", "llama3", "yarn")),
        )
    rope |= {"scaling": kind, "factor": parameters["factor"]}
    if kind == "llama3":
        rope["low_frequency_factor"] = parameters["low_freq_factor"]
        rope["high_frequency_factor"] = parameters["high_freq_factor"]
    if kind == "yarn":
        rope["beta_fast"] = parameters.get("beta_fast") or 32.0
        rope["beta_slow"] = parameters.get("beta_slow") or 1.0
        rope["attention_factor"] = _yarn_attention_factor(parameters)
        if config["model_type"] == "deepseek_v3":
            rope["softmax_factor"] = (
                0.1 * (parameters.get("mscale_all_dim") or 0) * log(parameters["factor"]) + 1
            ) ** 2
    if kind in ("llama3", "yarn"):
        rope["original_context"] = (
            parameters.get("original_max_position_embeddings") or config["max_position_embeddings"]
        )
    return rope


def _yarn_attention_factor(parameters: Mapping[str, Any]) -> float:
    """The factor on cosines and sines; 0 leaves it to the paper's formula. DeepSeek writes it as a quotient."""
    if parameters.get("attention_factor"):
        return float(parameters["attention_factor"])
    mscale, over_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if mscale and over_all:
        return (0.1 * mscale * log(parameters["factor"]) + 1) / (0.1 * over_all * log(parameters["factor"]) + 1)
    return 0.0
