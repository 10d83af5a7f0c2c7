"""Counts of published models, exact, and what each weight is."""

import dataclasses

import pytest

from shardwright.spec import BadInput, Experts, LatentAttention, ModelSpec, Rope, parameter_count, parameters
from shardwright.spec import active_parameter_count as active

PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "deepseek-v3": 671_026_419_200,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items(), ids=PUBLISHED)
def test_published_counts_are_exact(name, count):
    assert parameter_count(ModelSpec.named(name)) == count


def test_every_published_model_of_the_catalogue_is_in_this_table():
    from shardwright.spec.catalogue import model_names

    assert set(model_names()) == {"tiny", "tiny-moe", "small", *PUBLISHED}


def test_active_counts():
    assert active(ModelSpec.named("mixtral-8x7b")) == 12_879_925_248
    assert active(ModelSpec.named("qwen3-30b-a3b")) == pytest.approx(3.35e9, rel=2e-3)
    assert active(ModelSpec.named("deepseek-v3")) == pytest.approx(37.55e9, rel=1e-3)
    dense = ModelSpec.named("llama3-8b")
    assert active(dense) == parameter_count(dense)


@pytest.mark.parametrize("name", ["tiny", "tiny-moe", "small", "deepseek-v3", "qwen2.5-7b"])
def test_names_are_unique_and_norms_are_no_matrix_products(name):
    weights = list(parameters(ModelSpec.named(name)))
    assert len({weight.name for weight in weights}) == len(weights)
    for weight in weights:
        assert weight.is_matmul == (len(weight.shape) > 1 and weight.role != "embedding")
        assert (weight.layer is None) == (not weight.name.startswith("layers."))
        assert weight.role == "norm" or "norm" not in weight.name


def test_presets_for_one_machine_divide_by_eight_in_every_direction():
    for name in ("tiny", "tiny-moe"):
        model = ModelSpec.named(name)
        sizes = [model.vocabulary, model.hidden, model.layers, model.heads, model.kv_heads, model.feed_forward]
        if model.experts:
            sizes += [model.experts.count, model.experts.feed_forward]
        assert all(size % 8 == 0 for size in sizes)


def test_each_switch_adds_the_weights_it_names():
    base = ModelSpec(vocabulary=10, hidden=8, layers=3, heads=2, feed_forward=4)
    count = parameter_count(base)

    def added(**changes):
        return parameter_count(dataclasses.replace(base, **changes)) - count

    assert added(tied_embeddings=True) == -10 * 8
    assert added(qk_norm=True) == 3 * 2 * 4
    assert added(qkv_bias=True) == 3 * 3 * 8
    assert added(output_bias=True) == 3 * 8
    assert added(window=4) == 0
    # Dense first layer, then two of 5 experts of width 6 with a router, its bias, and 2 shared of width 6.
    experts = Experts(count=5, active=2, feed_forward=6, shared=2, dense_layers=1, selection_bias=True)
    assert added(experts=experts) == 2 * (5 * 3 * 6 * 8 + 5 * 8 + 5 + 3 * 12 * 8 - 3 * 4 * 8)


def test_deepseek_scales_its_softmax_as_published():
    from math import log

    rope = ModelSpec.named("deepseek-v3").rope
    assert rope.softmax_factor == pytest.approx((0.1 * log(40) + 1) ** 2)
    assert rope.attention_factor == 1
    assert ModelSpec.named("llama3-405b").rope.softmax_factor == 1


SMALL = {"vocabulary": 10, "hidden": 8, "layers": 2, "heads": 2, "feed_forward": 4}
LATENT = LatentAttention(query_rank=0, kv_rank=4, nope_head_dim=4, rope_head_dim=2, value_head_dim=4)


def test_sizes_left_out_follow_from_the_others():
    model = ModelSpec(**SMALL)
    assert (model.kv_heads, model.head_dim) == (2, 4)
    assert ModelSpec(**SMALL, latent=LATENT).head_dim == 6


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"hidden": 0}, "hidden", "at least 1"),
        ({"heads": 3}, "heads", "must divide hidden = 8"),
        ({"heads": 3}, "heads", "Use 2 or 4, or give head_dim"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads", "Use 2 or 4"),
        ({"kv_heads": 4}, "kv_heads", "must divide heads = 2"),
        ({"kv_heads": -1}, "kv_heads", "must divide heads = 2"),
        ({"head_dim": 5}, "head_dim", "even"),
        ({"head_dim": -2}, "head_dim", "positive"),
        ({"norm_epsilon": 0.0}, "norm_epsilon", "positive"),
        ({"window": 0}, "window", "at least 1"),
        ({"context": 0}, "context", "at least 1"),
        ({"experts": Experts(4, 2, 8, dense_layers=3)}, "experts.dense_layers", "layers = 2"),
        ({"latent": LATENT, "head_dim": 4}, "head_dim", "nope 4 + rope 2 = 6"),
        ({"latent": LATENT, "kv_heads": 1}, "kv_heads", "heads = 2"),
        ({"latent": LATENT, "qkv_bias": True}, "qkv_bias", "latent"),
        ({"latent": LATENT, "output_bias": True}, "output_bias", "latent"),
        ({"latent": LATENT, "qk_norm": True}, "qk_norm", "latent"),
    ],
)
def test_model_rules(changes, field, words):
    with pytest.raises(BadInput) as error:
        ModelSpec(**{**SMALL, **changes})
    assert error.value.field == field
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("make", "field", "words"),
    [
        (lambda: Experts(4, 5, 8), "active", "at most all 4"),
        (lambda: Experts(4, 0, 8), "active", "at least 1"),
        (lambda: Experts(0, 1, 8), "count", "at least 1"),
        (lambda: Experts(4, 2, 0), "feed_forward", "at least 1"),
        (lambda: Experts(4, 2, 8, shared=-1), "shared", "negative"),
        (lambda: Experts(4, 2, 8, groups=3), "groups", "divide the 4 experts"),
        (lambda: Experts(4, 1, 8, groups=2, active_groups=3), "active_groups", "groups = 2"),
        (lambda: Experts(8, 3, 8, groups=4, active_groups=1), "active", "hold only 2 experts"),
        (lambda: dataclasses.replace(LATENT, rope_head_dim=3), "rope_head_dim", "even"),
        (lambda: dataclasses.replace(LATENT, kv_rank=0), "kv_rank", "at least 1"),
        (lambda: dataclasses.replace(LATENT, query_rank=-1), "query_rank", "negative"),
        (lambda: Rope(theta=1.0), "theta", "greater than 1"),
        (lambda: Rope(factor=0.5), "factor", "at least 1"),
        (lambda: Rope(scaling="yarn", factor=2.0), "original_context", '"yarn"'),
        (
            lambda: Rope(scaling="llama3", original_context=8, low_frequency_factor=4.0),
            "high_frequency_factor",
            "greater than low_frequency_factor = 4.0",
        ),
    ],
)
def test_part_rules(make, field, words):
    with pytest.raises(BadInput) as error:
        make()
    assert error.value.field == field
    assert words in str(error.value)


def test_unknown_model_is_answered_with_near_names():
    with pytest.raises(BadInput, match=r'model = "llama3-8B": no such model.*Did you mean "llama3-8b"'):
        ModelSpec.named("llama3-8B")


def test_a_named_model_cannot_be_spoilt_by_its_neighbours():
    ModelSpec.from_fields({"preset": "tiny-moe", "experts": {"count": 4}})
    assert ModelSpec.named("tiny-moe").experts.count == 8
