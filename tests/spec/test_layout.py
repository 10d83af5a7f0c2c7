"""A layout's text, its sizes, and every rule it must keep."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.spec import BadInput, Cluster, Layout, ModelSpec

TINY = ModelSpec.named("tiny")
MOE = ModelSpec.named("tiny-moe")


@st.composite
def layouts(draw):
    """Layouts that keep every rule."""
    values = {name: draw(st.integers(1, 64)) for name in ("tp", "pp", "cp", "ep", "microbatch") if draw(st.booleans())}
    if draw(st.booleans()):
        values["dp"] = draw(st.integers(1, 64))
    values["zero"] = draw(st.integers(0, 3))
    if values["zero"] and draw(st.booleans()):
        dp = values.get("dp", 12)
        values["shard"] = draw(st.sampled_from([d for d in range(1, dp + 1) if dp % d == 0]))
    values["schedule"] = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipev"]))
    if values["schedule"] in ("zbv", "dualpipev"):
        values["interleave"] = 2
    elif values["schedule"] in ("interleaved", "zero-bubble"):
        values["interleave"] = draw(st.integers(1, 4))
    values["context"] = draw(st.sampled_from(["ring", "allgather", "ulysses", "usp"]))
    values["placement"] = draw(st.sampled_from(["contiguous", "zigzag", "striped"]))
    values["recompute"] = draw(
        st.sampled_from(["none", "full", "selective", "every:1", "every:3", "budget:0.4", "budget:1", "budget:.5"])
    )
    values["precision"] = draw(st.sampled_from(["bf16", "fp32", "fp16", "fp8-tensor", "fp8-row", "fp8-tile"]))
    values["state"] = "fp32" if values["precision"] == "fp32" else draw(st.sampled_from(["16", "18", "12", "8"]))
    values["offload"] = draw(st.sampled_from(["none", "optimizer", "optimizer-disk", "activations"]))
    values["sp"] = draw(st.booleans())
    values["compile"] = draw(st.booleans())
    return Layout(**values)


@given(layouts())
def test_text_and_layout_are_inverses(layout):
    assert Layout.parse(str(layout)) == layout


@given(layouts(), st.integers(1, 8))
def test_completing_fills_dp_and_nothing_else(layout, dp):
    ranks = layout.model_ranks
    if layout.dp is not None:
        assert layout.complete(layout.world) is layout
        return
    if layout.shard:
        dp *= layout.shard
    complete = layout.complete(dp * ranks)
    assert (complete.dp, complete.world) == (dp, dp * ranks)
    assert dataclasses.replace(complete, dp=None) == layout


def test_text():
    layout = Layout.parse(" dp=128, tp=8,pp=16 ,zero=1,schedule=1f1b,recompute=selective,sp=false,state=18")
    assert (layout.dp, layout.tp, layout.pp, layout.zero) == (128, 8, 16, 1)
    assert (layout.schedule, layout.recompute, layout.sp, layout.state) == ("1f1b", "selective", False, "18")
    assert str(layout) == "dp=128,zero=1,tp=8,sp=false,pp=16,recompute=selective,state=18"
    assert Layout.parse("") == Layout()
    assert Layout.parse(str(Layout())).dp is None
    assert str(Layout(dp=1)) == "dp=1"


def test_fp32_compute_keeps_fp32_state():
    assert Layout(precision="fp32").state == "fp32"
    assert str(Layout(precision="fp32")) == "precision=fp32"


def test_sizes():
    layout = Layout(dp=8, cp=2, tp=4, pp=16, ep=8)
    assert (layout.model_ranks, layout.world) == (128, 1024)
    with pytest.raises(BadInput, match=r"dp: is not known yet. Give dp"):
        _ = Layout(tp=2).world


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp", 'layout = "dp": each part is name=value. Write dp=2,tp=4.'),
        ("tpp=2", 'layout.tpp: unknown key. Did you mean "tp" or "pp"?'),
        ("tp=2,tp=4", 'layout.tp = "4": is given twice.'),
        ("tp=two", 'layout.tp = "two": must be a whole number, not text.'),
        ("tp=1.5", 'layout.tp = "1.5": must be a whole number, not text.'),
        ("tp=true", "layout.tp = true: must be a whole number, not true or false."),
        ("tp=0", "layout.tp = 0: must be at least 1."),
        ("dp=-2", "layout.dp = -2: must be at least 1."),
        ("microbatch=0", "layout.microbatch = 0: must be at least 1."),
        ("ep=0", "layout.ep = 0: must be at least 1."),
        ("cp=0", "layout.cp = 0: must be at least 1."),
        ("pp=0", "layout.pp = 0: must be at least 1."),
        ("interleave=0", "layout.interleave = 0: must be at least 1."),
        ("zero=1,shard=0", "layout.shard = 0: must be at least 1."),
        ("zero=4", "layout.zero = 4: not one of the choices. Known: 0, 1, 2, 3."),
        ("schedule=1f1", 'layout.schedule = "1f1": not one of the choices. Did you mean "1f1b"?'),
        ("context=rings", 'layout.context = "rings": not one of the choices. Did you mean "ring"?'),
        ("placement=zigzags", 'layout.placement = "zigzags": not one of the choices. Did you mean "zigzag"?'),
        ("offload=optimiser", 'layout.offload = "optimiser": not one of the choices. Did you mean "optimizer"'),
        ("recompute=selctive", 'layout.recompute = "selctive": not one of the choices. Did you mean "selective"?'),
        ("recompute=full:2", 'layout.recompute = "full:2": "full" takes no amount. Write "full".'),
        ("recompute=every", 'layout.recompute = "every": every:k needs a whole k. Write every:2.'),
        ("recompute=every:0", 'layout.recompute = "every:0": every:k needs a whole k. Write every:2.'),
        ("recompute=budget:1.5", 'layout.recompute = "budget:1.5": budget:f needs a fraction from 0 to 1.'),
        ("recompute=budget:", 'layout.recompute = "budget:": budget:f needs a fraction from 0 to 1.'),
        ("state=fp32", 'layout.state = "fp32": does not go with precision = "bf16". Use state = "fp32" with'),
        ("precision=fp32,state=8", 'layout.state = "8": does not go with precision = "fp32".'),
        ("dp=4,shard=2", "layout.shard = 2: a sharding group needs zero = 1, 2 or 3."),
        ("dp=4,zero=3,shard=3", "layout.shard = 3: must divide dp = 4. Use 2 or 4."),
        ("pp=2,interleave=2", 'layout.interleave = 2: schedule = "1f1b" holds one stage a rank. Use schedule ='),
        ("pp=2,schedule=zbv", 'layout.interleave = 1: schedule = "zbv" holds exactly two stages a rank. Use interl'),
        ("pp=2,schedule=dualpipev,interleave=3", 'layout.interleave = 3: schedule = "dualpipev" holds exactly two'),
    ],
)
def test_every_rule_names_field_value_rule_and_fix(text, message):
    with pytest.raises(BadInput) as error:
        Layout.parse(text)
    assert str(error.value).startswith(message)


def test_completing_refuses_what_does_not_multiply():
    with pytest.raises(BadInput) as error:
        Layout(tp=4, pp=3).complete(64)
    message = str(error.value)
    assert message.startswith("layout.dp: world 64 = dp × cp 1 × tp 4 × pp 3 has no whole dp: 64 / 12 = 5.33")
    assert "Use 60 ranks" in message
    with pytest.raises(BadInput) as error:
        Layout(dp=2, tp=2).complete(8)
    assert "dp 2 × cp 1 × tp 2 × pp 1 = 4, but the world has 8 ranks. Use 4 ranks, or leave dp out" in str(error.value)
    with pytest.raises(BadInput, match=r"Use 12 ranks"):
        Layout(tp=4, pp=3).complete(2)
    with pytest.raises(BadInput, match=r"^layout.shard = 3: must divide dp = 4"):
        Layout(zero=1, shard=3).complete(4)


ODD = ModelSpec(vocabulary=30, hidden=64, layers=4, heads=16, kv_heads=4, feed_forward=36)


@pytest.mark.parametrize(
    ("model", "layout", "message"),
    [
        (ODD, "tp=3", "layout.tp = 3: must divide the 16 heads. Use 2 or 4."),
        (ODD, "tp=8", "layout.tp = 8: must divide the 4 key-value heads. Use 4."),
        (ODD, "tp=4", "layout.tp = 4: must divide the 30 rows of the vocabulary. Use 3 or 5."),
        (
            dataclasses.replace(TINY, feed_forward=36),
            "tp=8",
            "layout.tp = 8: must divide the 36 columns of the feed-forward network. Use 6 or 9.",
        ),
        (ODD, "pp=8", "layout.pp = 8: pp 8 × interleave 1 = 8 stages, but the model has 4 layers. Use at most 4"),
        (ODD, "pp=4,schedule=interleaved,interleave=2", "layout.pp = 4: pp 4 × interleave 2 = 8 stages, but the"),
        (
            TINY,
            "tp=2,cp=8,context=ulysses",
            (
                "layout.cp = 8: Ulysses gives each rank whole heads, and a tensor rank has 4 key-value heads. "
                'Use cp = 4, or context = "usp".'
            ),
        ),
        (TINY, "dp=2,ep=2", 'layout.ep = 2: model "tiny" has no experts. Use ep = 1.'),
        (MOE, "dp=3,ep=3", "layout.ep = 3: must divide the 8 experts. Use 2 or 4."),
        (MOE, "dp=2,cp=3,ep=4", "layout.ep = 4: must divide the 6 ranks of dp 2 × cp 3. Use 3 or 6."),
    ],
)
def test_rules_of_a_layout_on_a_model(model, layout, message):
    with pytest.raises(BadInput) as error:
        Layout.parse(layout).check(model)
    assert str(error.value).startswith(message)


def test_context_chunks():
    zigzag = Layout(cp=4)
    assert zigzag.check(TINY, sequence=64) == []
    with pytest.raises(BadInput) as error:
        zigzag.check(TINY, sequence=20)
    assert str(error.value) == (
        'data.sequence = 20: placement "zigzag" cuts it into 8 equal chunks for cp = 4. Use 16 or 24.'
    )
    with pytest.raises(BadInput, match=r"Use 8\.$"):
        zigzag.check(TINY, sequence=7)
    for placement in ("contiguous", "striped"):
        assert Layout(cp=4, placement=placement).check(TINY, sequence=20) == []
    assert Layout(cp=8, context="ulysses").check(TINY) == []
    assert Layout(cp=1).check(TINY, sequence=7) == []


def test_latent_attention_has_no_key_value_heads_to_divide():
    assert Layout(tp=8, pp=16, ep=64, dp=64).check(ModelSpec.named("deepseek-v3")) == []


def test_a_cluster_gives_dp_before_the_rules_are_held():
    cluster = Cluster.parse("4xh100")
    with pytest.raises(BadInput, match=r"layout.ep = 8: must divide the 4 ranks of dp 4 × cp 1. Use 4"):
        Layout(ep=8).check(MOE, cluster=cluster)
    assert Layout(ep=4).check(MOE, cluster=cluster) == []
    with pytest.raises(BadInput, match=r"world has 4 ranks"):
        Layout(dp=8).check(MOE, cluster=cluster)
    with pytest.raises(BadInput, match=r"layout.shard"):
        Layout(zero=3, shard=3).check(MOE, cluster=cluster)


def test_tensor_parallelism_across_the_fast_domain_is_warned_of():
    cluster = Cluster.parse("4x4xh100")
    assert Layout(tp=4).check(TINY, cluster=cluster) == []
    (warning,) = Layout(tp=8).check(TINY, cluster=cluster)
    assert warning.startswith("layout.tp = 8 is wider than the 4 devices that share nvlink4")
    assert "infiniband-ndr, 9 times slower" in warning
    (warning,) = Layout(tp=8).check(TINY, cluster=Cluster.parse("4x4xcpu"))
    assert "slower" not in warning
    assert Layout(tp=8).check(TINY, cluster=Cluster.parse("gb200-nvl72")) == []


def test_too_few_microbatches_are_warned_of():
    layout = Layout(pp=4)
    assert layout.batch_warnings(4) == []
    assert Layout(pp=1).batch_warnings(1) == []
    (warning,) = layout.batch_warnings(3)
    assert "3 microbatches for 4 pipeline stages leave 50% of the step idle" in warning
    assert "use at least 4" in warning


def test_the_published_layouts_of_llama3_405b():
    model, cluster = ModelSpec.named("llama3-405b"), Cluster.parse("llama3-16k")
    short = Layout.parse("tp=8,pp=16,zero=1")
    assert short.complete(cluster.world).dp == 128
    assert short.check(model, sequence=8192, cluster=cluster) == []
    assert Layout.parse("dp=8,cp=16,tp=8,pp=16").check(model, sequence=131_072, cluster=cluster) == []
