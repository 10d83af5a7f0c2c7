"""Run files: read, set over, complained about by line, and written out resolved."""

import json
import pickle
import shutil

import pytest

from shardwright.spec import (
    BadInput,
    BatchSpec,
    DataSpec,
    Experts,
    Ingredient,
    LatentAttention,
    Layout,
    ModelSpec,
    ObserveSpec,
    Rope,
    RunFile,
    RunSpec,
    ScheduleSpec,
    write_run,
)

FILE = """\
# A first run.
name = "first"   # the folder

[model]
preset = "tiny"  # small enough
rope = { theta = 20000.0 }

[data]
sequence = 128

[layout]
dp = 2           # two ranks
# a remark of its own
zero = 1

[optimizer]
learning_rate = 3e-4
betas = [0.9, 0.99]

[[data.mixture]]
source = "a"     # the first
[[data.mixture]]
source = "b"
weight = 2
"""


def read(tmp_path, text=FILE, *settings):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return RunFile.read(path, settings)


def complaint(tmp_path, text, *settings, world=None):
    with pytest.raises(BadInput) as error:
        read(tmp_path, text, *settings).resolve(world)
    return str(error.value).replace(f"{tmp_path}/", "")


def test_read(tmp_path):
    run = read(tmp_path).spec()
    assert (run.name, run.model.name, run.model.rope.theta) == ("first", "tiny", 20_000.0)
    assert run.model.hidden == 64
    assert (run.layout.dp, run.layout.zero, run.data.sequence) == (2, 1, 128)
    assert (run.optimizer.learning_rate, run.optimizer.betas) == (3e-4, (0.9, 0.99))
    assert run.data.mixture == (Ingredient("a", 1.0), Ingredient("b", 2.0))
    assert run.seed == 42
    assert run.batch == BatchSpec()


def test_short_forms(tmp_path):
    run = read(tmp_path, 'model = "tiny-moe"\nlayout = "dp=2,ep=2,recompute=every:2"\n').spec()
    assert run.model == ModelSpec.named("tiny-moe")
    assert run.layout == Layout(dp=2, ep=2, recompute="every:2")
    assert read(tmp_path, 'model = "tiny"\nlayout.state = 8').spec().layout.state == "8"


def test_a_model_from_fields_or_with_fields_over_a_preset(tmp_path):
    fields = "vocabulary = 10\nhidden = 8\nlayers = 2\nheads = 2\nfeed_forward = 4\n"
    assert read(tmp_path, f"[model]\n{fields}").spec().model == ModelSpec(10, 8, 2, 2, 4)
    text = '[model]\npreset = "tiny-moe"\nlayers = 4\nexperts.active = 3\n'
    model = read(tmp_path, text).spec().model
    assert (model.layers, model.experts.active, model.experts.count, model.hidden) == (4, 3, 8, 64)


def test_settings(tmp_path):
    run = read(
        tmp_path,
        FILE,
        "steps=7",
        "layout.dp=4",
        "optimizer.learning_rate=1e-2",
        "optimizer.betas=[0.8, 0.9]",
        "data.document_mask=false",
        "device=cpu",
        'observe.sample_prompt="a = b"',
        "model.rope.theta=5e4",
        "guard.timeout = 30",
        "data.source=some/folder with spaces",
        "layout.recompute=every:2",
        "checkpoint.every=1e2",
    ).spec()
    assert (run.steps, run.layout.dp, run.layout.zero, run.optimizer.learning_rate) == (7, 4, 1, 1e-2)
    assert (run.optimizer.betas, run.data.document_mask, run.device) == ((0.8, 0.9), False, "cpu")
    assert (run.observe.sample_prompt, run.model.rope.theta, run.guard.timeout) == ("a = b", 5e4, 30.0)
    assert (run.data.source, run.layout.recompute) == ("some/folder with spaces", "every:2")
    assert run.checkpoint.every == 100


def test_settings_over_and_of_short_forms(tmp_path):
    short = 'model = "tiny"\nlayout = "dp=2,precision=fp32"\n'
    run = read(tmp_path, short, "layout.tp=2", "model.layers=4").spec()
    assert (run.layout, run.model.layers) == (Layout(dp=2, tp=2, precision="fp32"), 4)
    assert read(tmp_path, FILE, "layout=dp=2,tp=4").spec().layout == Layout(dp=2, tp=4)
    assert read(tmp_path, FILE, "model=tiny-moe").spec().model == ModelSpec.named("tiny-moe")
    # Nothing is checked before it has been set over.
    assert read(tmp_path, short, "layout.precision=bf16").spec().layout == Layout(dp=2)
    bad = 'model = "tiny"\nlayout = "dp=4,zero=1,shard=3"\n'
    assert read(tmp_path, bad, "layout.dp=3").spec().layout == Layout(dp=3, zero=1, shard=3)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("steps", '--set = "steps": must be name=value. Write --set layout.dp=2.'),
        ("=3", '--set = "=3": must be name=value.'),
        ("a b=3", '--set = "a b=3": must be name=value.'),
        ("name.x=3", '--set = "name.x": "name" is a value, not a table.'),
        ("stepps=3", '--set stepps: stepps: unknown key. Did you mean "steps"?'),
        ("layout.tpp=3", '--set layout.tpp: layout.tpp: unknown key. Did you mean "tp" or "pp"?'),
        ("layout.tp=3", "--set layout.tp: layout.tp = 3: must divide the 16 heads."),
        ("layout=dp=2,tp=3", "--set layout: layout.tp = 3: must divide the 16 heads."),
        ("steps=many", '--set steps: steps = "many": must be a whole number, not text.'),
        ("steps=2.5", "--set steps: steps = 2.5: must be a whole number, not a decimal number."),
        ("steps=true", "--set steps: steps = true: must be a whole number, not true or false."),
        (
            "optimizer.learning_rate=fast",
            '--set optimizer.learning_rate: optimizer.learning_rate = "fast": must be a n',
        ),
        (
            "data.document_mask=1",
            "--set data.document_mask: data.document_mask = 1: must be true or false, not a number.",
        ),
        ("optimizer.betas=[0.9]", "--set optimizer.betas: optimizer.betas = [0.9]: must have 2 values, has 1."),
        ("optimizer.betas=0.9", "--set optimizer.betas: optimizer.betas = 0.9: must be a list."),
        ('optimizer.betas=[0.9, "x"]', '--set optimizer.betas: optimizer.betas[1] = "x": must be a number, not text.'),
        ("layout.zero=true", "--set layout.zero: layout.zero = true: not one of the choices. Known: 0, 1, 2, 3."),
        ("name=3", "--set name: name = 3: must be text in quotes, not a number."),
        ("device=gpu", '--set device: device = "gpu": not one of the choices.'),
        ("data=x", '--set data: data = "x": must be a table. Write its fields under [data].'),
        ("layout=3", '--set layout: layout = 3: must be a table or text like "dp=2,tp=4".'),
        ("model=3", "--set model: model = 3: must be a table or the name of a preset."),
        ("model=tinny", '--set model: model.preset = "tinny": no such model in the catalogue. Did you mean "tiny"'),
        ("model.hf=x", '--set model.hf: model.hf = "x": stands beside model.preset = "tiny". Keep one of them.'),
        ("model.preset=3", "--set model.preset: model.preset = 3: must be text in quotes."),
    ],
)
def test_mistakes_in_settings_name_the_setting(tmp_path, setting, message):
    assert complaint(tmp_path, FILE, setting).startswith(message)


def line_of(text, words):
    return next(number for number, line in enumerate(text.splitlines(), 1) if words in line)


@pytest.mark.parametrize(
    ("old", "new", "words", "message"),
    [
        ('name = "first"', 'nmae = "first"', "nmae", 'nmae: unknown key. Did you mean "name"?'),
        ("[optimizer]", "[optimiser]", "[optimiser]", 'optimiser: unknown key. Did you mean "optimizer"?'),
        ("dp = 2 ", "dpp = 2 ", "dpp", 'layout.dpp: unknown key. Did you mean "pp" or "dp"?'),
        ("theta", "tehta", "tehta", 'model.rope.tehta: unknown key. Did you mean "theta"'),
        ("weight = 2", "wieght = 2", "wieght", 'data.mixture[1].wieght: unknown key. Did you mean "weight"?'),
        ('source = "b"', "", "weight = 2", None),
        ('source = "a" ', "source = 3", "source = 3", "data.mixture[0].source = 3: must be text in quotes"),
        ("weight = 2", "weight = -2", "weight = -2", "data.mixture[1].weight = -2.0: must be positive."),
        ("zero = 1", "zero = 7", "zero = 7", "layout.zero = 7: not one of the choices."),
        ("zero = 1", "zero = 1\nshard = 3", "shard = 3", "layout.shard = 3: must divide dp = 2. Use 2."),
        ("zero = 1", "zero = 1\ntp = 3", "tp = 3", "layout.tp = 3: must divide the 16 heads."),
        ("[0.9, 0.99]", "[0.9, true]", "betas", "optimizer.betas[1] = true: must be a number"),
        ("[0.9, 0.99]", "[0.9, 1]", "betas", "optimizer.betas = [0.9, 1.0]: must lie in [0, 1)."),
        ('preset = "tiny"', 'preset = "tinny"', "preset", 'model.preset = "tinny": no such model in the catalogue.'),
        ('preset = "tiny"', 'hf = "nowhere"', "hf", 'model.hf = "nowhere": there is no config.json.'),
        ('preset = "tiny"', "hidden = 8", "[model]", "model.vocabulary: is required and missing."),
        ("sequence = 128", "sequence = 8192", "sequence", "data.sequence = 8192: must not be longer than the model's"),
    ],
)
def test_mistakes_in_a_file_name_their_line(tmp_path, old, new, words, message):
    assert FILE.count(old) == 1
    text = FILE.replace(old, new)
    got = complaint(tmp_path, text)
    if message is None:  # a missing key is named at the table that lacks it
        lines = [number for number, line in enumerate(text.splitlines(), 1) if line == "[[data.mixture]]"]
        assert got.startswith(f"run.toml:{lines[1]}: data.mixture[1].source: is required and missing.")
    else:
        assert got.startswith(f"run.toml:{line_of(text, words)}: {message}")


def test_a_setting_beside_the_mistake_is_not_blamed(tmp_path):
    text = 'model = "tiny"\n[layout]\ntp = 3\n'
    assert complaint(tmp_path, text, "layout.dp=2").startswith("run.toml:3: layout.tp = 3")
    # A setting that replaced the whole section is.
    assert complaint(tmp_path, text, "layout=tp=5").startswith("--set layout: layout.tp = 5")


def test_mistakes_found_by_the_world_name_their_line(tmp_path):
    text = 'model = "tiny"\n[layout]\nzero = 1\nshard = 3\n'
    assert complaint(tmp_path, text, world=4).startswith("run.toml:4: layout.shard = 3: must divide dp = 4")
    assert complaint(tmp_path, text).startswith("run.toml:4: layout.shard = 3: must divide dp = 1")
    text = 'model = "tiny"\nlayout = "tp=2"\n'
    assert complaint(tmp_path, text, world=3).startswith("run.toml:2: layout.dp: world 3 = dp × cp 1 × tp 2")
    text = 'model = "tiny"\nbatch.sequences = 3\nlayout = "dp=2"\n'
    assert complaint(tmp_path, text).startswith("run.toml:2: batch.sequences = 3: 3 = microbatch 1")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(BadInput, match=r"there is no such file. Name a run.toml"):
        RunFile.read(tmp_path / "nowhere.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(BadInput, match=r"cannot be read"):
        RunFile.read(tmp_path / "bytes.toml")
    with pytest.raises(BadInput, match=r"run.toml: is not valid TOML: .*line 2"):
        read(tmp_path, 'name = "a"\nsteps = \n').spec()
    assert complaint(tmp_path, "steps = 3").startswith("run.toml: model: is required and missing. Add [model] with")


def test_resolved_keeps_comments_and_order_and_says_everything(tmp_path):
    file = read(tmp_path, FILE, "layout.dp=4", "data.document_mask=false")
    run = file.resolve()
    text = file.resolved(run)
    for line in (
        "# A first run.",
        'name = "first"   # the folder',
        'preset = "tiny"  # small enough',
        "dp = 4           # two ranks",
        "# a remark of its own",
        'source = "a"     # the first',
    ):
        assert line in text.splitlines()
    order = [text.index(section) for section in ("[model]", "[data]", "[layout]", "[optimizer]")]
    assert order == sorted(order)
    assert "accumulation = 1" in text
    assert "hidden = 64" in text
    assert RunFile(text).spec() == run
    assert RunFile(text).resolved(run) == text


def test_resolved_short_forms_keep_their_comment(tmp_path):
    file = read(tmp_path, 'model = "tiny"  # little\nlayout = "dp=2"\nsteps = 9 # few\n')
    run = file.resolve()
    text = file.resolved(run)
    assert "# little" in text
    assert "steps = 9 # few" in text
    assert RunFile(text).spec() == run


def test_resolved_forgets_what_was_set_over(tmp_path):
    for settings in (["model=tiny"], ["model.preset=tiny"]):
        file = read(tmp_path, '[model]\npreset = "tiny-moe"\n', *settings)
        run = file.resolve()
        assert run.model.experts is None
        text = file.resolved(run)
        assert RunFile(text).spec() == run
        assert "tiny-moe" not in text


@pytest.mark.parametrize("text", ['[model]\npreset = "small"  # which\n', 'model = "small"\n'])
def test_resolved_names_the_preset_that_was_set(tmp_path, text):
    file = read(tmp_path, text, "model.preset=tiny")
    resolved = file.resolved(file.resolve())
    assert 'preset = "tiny"' in resolved
    assert "small" not in resolved


def test_resolved_says_another_run_than_the_file_when_given_one(tmp_path):
    """The guard writes the run it goes on with, which may lack what the file said."""
    file = read(tmp_path, 'model = "tiny-moe"\nlayout = "dp=4,zero=3,shard=2,ep=2"\n[schedule]\nname="wsd"\ndecay=5\n')
    other = RunSpec(model=ModelSpec.named("mistral-7b"), layout=Layout(dp=2)).resolve()
    assert RunFile(file.resolved(other)).spec() == other
    file = read(tmp_path, '[model]\npreset = "mistral-7b"\n[layout]\ndp = 4\nzero = 1\nshard = 2\n')
    other = RunSpec(model=ModelSpec(10, 8, 2, 2, 4), layout=Layout(dp=3, zero=1)).resolve()
    assert RunFile(file.resolved(other)).spec() == other


HF = {
    "model_type": "mistral",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "sliding_window": 64,
}


def test_resolved_needs_no_hugging_face_folder(tmp_path):
    folder = tmp_path / "mistral"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(HF))
    file = read(tmp_path, f'[model]\nhf = "{folder}"  # theirs\nlayers = 4\n[data]\nsequence = 64\n')
    run = file.resolve(2)
    text = file.resolved(run)
    shutil.rmtree(folder)
    assert RunFile(text).spec() == run
    assert (run.model.layers, run.model.window, run.model.name) == (4, 64, "mistral")


VARIED = {
    "default": RunSpec(model=ModelSpec.named("tiny")),
    "experts": RunSpec(
        model=ModelSpec(10, 8, 4, 2, 4, experts=Experts(8, 2, 4, shared=1, groups=4, active_groups=2)),
        layout=Layout(dp=4, ep=4, zero=3, shard=2, recompute="budget:0.4"),
        batch=BatchSpec(sequences=16),
    ),
    "latent": RunSpec(
        model=ModelSpec(
            10,
            8,
            2,
            2,
            4,
            latent=LatentAttention(0, 4, 4, 2, 4),
            rope=Rope(scaling="yarn", factor=4.0, original_context=64, softmax_factor=1.5),
        ),
        layout=Layout(pp=2, schedule="zero-bubble", precision="fp32"),
    ),
    "deepseek": RunSpec(model=ModelSpec.named("deepseek-v3"), layout=Layout(tp=8, pp=4, dp=8, ep=8, state="12")),
    "mixture": RunSpec(
        model=ModelSpec.named("mistral-7b"),
        data=DataSpec(mixture=(Ingredient("a/b", 0.25), Ingredient('quo"ted\\', 3.0)), separator="<|end|>", workers=2),
        observe=ObserveSpec(sample=5, sample_prompt='line\nbreak "quoted" é \t'),
    ),
    "schedule": RunSpec(
        model=ModelSpec.named("small"),
        name="a.b-c_1",
        steps=50,
        seed=0,
        schedule=ScheduleSpec(name="wsd", warmup=5, decay=10, final=0.0),
        batch=BatchSpec(accumulation=3),
    ),
}


@pytest.mark.parametrize("run", VARIED.values(), ids=VARIED)
def test_every_run_can_be_written_and_read_again(run):
    assert RunFile(write_run(run)).spec() == run
    resolved = run.resolve()
    assert RunFile(write_run(resolved)).spec() == resolved
    # ... and over any other file.
    for other in VARIED.values():
        assert RunFile(RunFile(write_run(other)).resolved(run)).spec() == run


@pytest.mark.parametrize("run", VARIED.values(), ids=VARIED)
def test_runs_and_complaints_cross_processes(run):
    assert pickle.loads(pickle.dumps(run)) == run


def test_complaints_keep_their_parts_across_processes():
    error = BadInput("layout.tp", 3, rule="must divide the 16 heads", fix="Use 2 or 4", where="run.toml:3")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "run.toml:3: layout.tp = 3: must divide the 16 heads. Use 2 or 4."
    assert (copy.field, copy.value, copy.rule, copy.fix, copy.where) == (
        "layout.tp",
        3,
        "must divide the 16 heads",
        "Use 2 or 4",
        "run.toml:3",
    )
    assert str(error.at("elsewhere")) == str(error)
