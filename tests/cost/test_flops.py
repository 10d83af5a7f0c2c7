"""FLOPs a token and MFU, against arithmetic done by hand."""

import dataclasses

import pytest

from shardwright.cost import MFU_DEFINITION, mfu, model_flops_per_token
from shardwright.spec import Device, ModelSpec


def test_tiny_by_hand():
    # Attention: query 64×128, key and value 64×64 each, output 128×64. SwiGLU: 3 × 64×128. Head: 320×64.
    block = 64 * 128 + 2 * 64 * 64 + 128 * 64 + 3 * 64 * 128
    matmul = 8 * block + 320 * 64
    attention = 8 * 3 * (2 * 2 * 256 * 16 * 8) / 2
    assert model_flops_per_token(ModelSpec.named("tiny"), 256) == 6 * matmul + attention


def test_llama3_8b_by_hand():
    # 8,030,261,248 parameters, less 128256×4096 of embedding and 65 norms of 4096.
    matmul = 8_030_261_248 - 128_256 * 4096 - 65 * 4096
    attention = 32 * 3 * (2 * 2 * 8192 * 4096) / 2
    flops = model_flops_per_token(ModelSpec.named("llama3-8b"), 8192)
    assert flops == 6 * matmul + attention
    assert flops == pytest.approx(51.5e9, rel=0.005)


def test_mixtral_counts_the_active_experts_and_the_router():
    block = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 4096 * 8 + 2 * 3 * 4096 * 14336
    matmul = 32 * block + 32000 * 4096
    attention = 32 * 3 * (2 * 2 * 4096 * 4096) / 2
    assert model_flops_per_token(ModelSpec.named("mixtral-8x7b"), 4096) == 6 * matmul + attention


def test_a_tied_head_is_still_multiplied():
    tied = ModelSpec.named("llama3.2-1b")
    untied = dataclasses.replace(tied, tied_embeddings=False)
    assert model_flops_per_token(tied, 4096) == model_flops_per_token(untied, 4096)


def test_a_window_counts_what_lies_inside_it():
    open_model = ModelSpec.named("tiny")

    def attention(window: int | None, sequence: int) -> float:
        model = dataclasses.replace(open_model, window=window)
        nothing_seen = dataclasses.replace(open_model, window=1)
        one_key = 8 * 3 * 2 * (1 - 1 / (2 * sequence)) * 16 * 16
        return model_flops_per_token(model, sequence) - model_flops_per_token(nothing_seen, sequence) + one_key

    assert attention(4096, 256) == attention(None, 256)  # a window longer than the sequence changes nothing
    assert attention(256, 256) == attention(None, 256)
    # The half square of 1,024 less the half square of the 896 that nobody sees.
    assert attention(128, 1024) == pytest.approx(8 * 3 * 2 * 16 * 16 * (1024**2 - 896**2) / 2 / 1024)


def test_latent_attention_uses_its_own_head_sizes():
    model = ModelSpec.named("deepseek-v3")
    growth = model_flops_per_token(model, 4096) - model_flops_per_token(model, 2048)
    assert growth == 61 * 3 * 2 * 128 * (128 + 64 + 128) * 2048 / 2


def test_mfu_needs_a_known_peak():
    assert mfu(10_000, 50e9, Device.named("h100")) == pytest.approx(10_000 * 50e9 / 989.4e12)
    assert mfu(10_000, 50e9, Device.named("cpu")) is None
    assert mfu(10_000, 50e9, None) is None
    assert "bf16 peak" in MFU_DEFINITION
