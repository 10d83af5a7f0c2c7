"""Runs: the rules between their parts, and the batch equation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.spec import (
    BadInput,
    BatchSpec,
    CheckpointSpec,
    DataSpec,
    GuardSpec,
    Ingredient,
    Layout,
    ModelSpec,
    ObserveSpec,
    OptimizerSpec,
    RunSpec,
    ScheduleSpec,
)

TINY = ModelSpec.named("tiny")


def run(**changes):
    return RunSpec(model=TINY, **changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: run(steps=0), "steps = 0: must be at least 1."),
        (lambda: run(seed=-1), "seed = -1: must not be negative."),
        (lambda: run(name="a/b"), 'name = "a/b": names a folder'),
        (lambda: run(name="../up"), 'name = "../up": names a folder'),
        (lambda: run(name=""), 'name = "": names a folder'),
        (lambda: run(name="a\n"), 'name = "a\n": names a folder'),
        (
            lambda: run(steps=5, schedule=ScheduleSpec(warmup=6)),
            "schedule.warmup = 6: must not be longer than the run of 5",
        ),
        (
            lambda: run(steps=10, schedule=ScheduleSpec(name="wsd", warmup=4, decay=7)),
            "schedule.decay = 7: with warmup 4 it is longer than the run of 10 steps.",
        ),
        (
            lambda: run(data=DataSpec(sequence=8192)),
            "data.sequence = 8192: must not be longer than the model's context of 4096",
        ),
        (lambda: ScheduleSpec(warmup=-1), "warmup = -1: must not be negative."),
        (lambda: ScheduleSpec(decay=0), "decay = 0: must be at least 1."),
        (lambda: ScheduleSpec(final=1.5), "final = 1.5: must lie between 0 and 1."),
        (lambda: DataSpec(sequence=0), "sequence = 0: must be at least 1."),
        (lambda: DataSpec(held_out=1.0), "held_out = 1.0: must be at least 0 and less than 1."),
        (lambda: DataSpec(workers=0), "workers = 0: must be at least 1."),
        (lambda: Ingredient("a", weight=0.0), "weight = 0.0: must be positive."),
        (lambda: BatchSpec(sequences=0), "sequences = 0: must be at least 1."),
        (lambda: BatchSpec(accumulation=0), "accumulation = 0: must be at least 1."),
        (lambda: OptimizerSpec(learning_rate=0.0), "learning_rate = 0.0: must be positive."),
        (lambda: OptimizerSpec(learning_rate=float("nan")), "learning_rate = nan: must be positive."),
        (lambda: OptimizerSpec(betas=(0.9, 1.0)), "betas = [0.9, 1.0]: must lie in [0, 1)."),
        (lambda: OptimizerSpec(epsilon=0.0), "epsilon = 0.0: must be positive."),
        (lambda: OptimizerSpec(weight_decay=-0.1), "weight_decay = -0.1: must not be negative."),
        (lambda: OptimizerSpec(clip=-1.0), "clip = -1.0: must not be negative."),
        (lambda: CheckpointSpec(every=-1), "every = -1: must not be negative."),
        (lambda: CheckpointSpec(keep=0), "keep = 0: must be at least 1."),
        (lambda: GuardSpec(timeout=0.0), "timeout = 0.0: must be positive."),
        (lambda: GuardSpec(restarts=-1), "restarts = -1: must not be negative."),
        (lambda: ObserveSpec(sample=-1), "sample = -1: must not be negative."),
        (lambda: ObserveSpec(evaluate_every=-1), "evaluate_every = -1: must not be negative."),
        (lambda: ObserveSpec(log_seconds=0.0), "log_seconds = 0.0: must be positive."),
    ],
)
def test_rules(make, message):
    with pytest.raises(BadInput) as error:
        make()
    assert str(error.value).startswith(message)


def test_rules_hold_up_to_their_bounds():
    run(steps=10, schedule=ScheduleSpec(warmup=10), data=DataSpec(sequence=4096))
    run(steps=10, schedule=ScheduleSpec(name="wsd", warmup=4, decay=6))


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_the_batch_equation_is_solved_for_what_is_missing(microbatch, accumulation, dp):
    layout = Layout(dp=dp, microbatch=microbatch)
    sequences = microbatch * accumulation * dp
    whole = BatchSpec(sequences, accumulation)
    for batch in (whole, BatchSpec(sequences=sequences), BatchSpec(accumulation=accumulation)):
        resolved = run(layout=layout, batch=batch).resolve()
        assert resolved.batch == whole
        assert resolved.tokens_per_step == sequences * 256
        assert resolved.resolve() == resolved
        assert resolved.resolve(dp) == resolved
    assert run(layout=layout).resolve().batch == BatchSpec(microbatch * dp, 1)


def test_model_ranks_do_not_multiply_the_batch():
    resolved = run(layout=Layout(tp=2, pp=2, cp=2), batch=BatchSpec(sequences=8)).resolve(16)
    assert (resolved.layout.dp, resolved.batch.accumulation) == (2, 4)


def test_batches_without_a_whole_answer_show_the_numbers():
    with pytest.raises(BadInput) as error:
        run(layout=Layout(dp=2, microbatch=2), batch=BatchSpec(sequences=10)).resolve()
    assert str(error.value) == (
        "batch.sequences = 10: 10 = microbatch 2 × accumulation ? × data ranks 2 has no whole answer: "
        "10 / 4 = 2.5. Use 8 or 12 sequences, or another microbatch."
    )
    with pytest.raises(BadInput, match=r"Use 4 sequences"):
        run(layout=Layout(dp=2, microbatch=2), batch=BatchSpec(sequences=3)).resolve()
    with pytest.raises(BadInput) as error:
        run(layout=Layout(dp=2), batch=BatchSpec(sequences=10, accumulation=4)).resolve()
    assert str(error.value) == (
        "batch.sequences = 10: 10 ≠ microbatch 1 × accumulation 4 × data ranks 2 = 8. "
        "Leave one of batch.sequences and batch.accumulation out."
    )


def test_the_world_completes_the_layout():
    assert run(layout=Layout(tp=2)).resolve(8).layout.dp == 4
    assert run(layout=Layout(tp=2)).resolve().layout.dp == 1
    assert run(layout=Layout(dp=3, tp=2)).resolve().layout.world == 6
    with pytest.raises(BadInput, match=r"world has 8 ranks"):
        run(layout=Layout(dp=2)).resolve(8)


def test_resolving_holds_the_layout_against_model_and_sequence():
    with pytest.raises(BadInput, match=r"layout.tp = 3"):
        run(layout=Layout(tp=3)).resolve()
    with pytest.raises(BadInput, match=r"data.sequence = 100"):
        run(layout=Layout(cp=8), data=DataSpec(sequence=100)).resolve()
