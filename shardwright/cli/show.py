"""`shardwright show`: what a model, a cluster or a run is."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from shardwright.cli.options import Json, Settings, run_file
from shardwright.cost.flops import model_flops_per_token
from shardwright.spec import BadInput, Cluster, ModelSpec, RunSpec, active_parameter_count, parameter_count, parameters
from shardwright.spec.catalogue import hardware, model_names
from shardwright.spec.errors import suggestion
from shardwright.spec.fields import plain

Rows = list[tuple[str, str]]


def show(
    what: Annotated[str | None, Parameter(help="A model, a cluster, a run.toml or a run directory.")] = None,
    /,
    *,
    settings: Settings = (),
    json_output: Json = False,
) -> None:
    """Show what a model, a cluster or a run is; with nothing named, what has a name.

    A model is a catalogue name or a Hugging Face folder; a cluster is a name,
    a shape like 64x8xh100 or a TOML file.
    """
    facts, lines = describe(what, settings)
    print(json.dumps(facts) if json_output else "\n".join(lines))


def describe(what: str | None, settings: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """The thing as JSON values and as lines for people."""
    if what is None:
        return _catalogue()
    path = Path(what)
    if what in model_names():
        return _model(ModelSpec.named(what))
    if path.is_dir() and (path / "run.toml").is_file():
        facts, lines = _run(run_file(what, settings).resolve())
        state = list(_state(path))
        return facts | {"state": dict(state)}, [*lines, "", *_aligned([(k, str(v)) for k, v in state])]
    if path.is_dir() or path.name == "config.json":
        return _model(ModelSpec.from_huggingface(what))
    if path.suffix == ".toml" and path.is_file():
        try:
            is_cluster = "model" not in (table := tomllib.loads(path.read_text("utf-8"))) and "device" in table
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            is_cluster = False  # the run reader says what is wrong
        return _cluster(Cluster.parse(what)) if is_cluster else _run(run_file(what, settings).resolve())
    try:
        return _cluster(Cluster.parse(what))
    except BadInput as error:
        if error.field != "cluster":
            raise
    known = [*model_names(), *hardware("clusters")]
    raise BadInput(
        "what",
        what,
        rule="not a model or cluster in the catalogue, a shape like 64x8xh100, a Hugging Face folder, a run.toml or a "
        "run directory",
        fix=suggestion(what, known),
    )


def _catalogue() -> tuple[dict[str, Any], list[str]]:
    models = [(name, ModelSpec.named(name)) for name in model_names()]
    rows = [(name, f"{parameter_count(model):>18,} parameters") for name, model in models]
    devices, clusters = list(hardware("devices")), list(hardware("clusters"))
    facts = {"models": {n: parameter_count(m) for n, m in models}, "devices": devices, "clusters": clusters}
    lines = ["Models", *_aligned(rows, "  "), "", "Devices", f"  {', '.join(devices)}", "", "Clusters"]
    return facts, [*lines, f"  {', '.join(clusters)}, or a shape like 64x8xh100"]


def _model(model: ModelSpec) -> tuple[dict[str, Any], list[str]]:
    count, active = parameter_count(model), active_parameter_count(model)
    by_role: dict[str, int] = {}
    for parameter in parameters(model):
        by_role[parameter.role] = by_role.get(parameter.role, 0) + parameter.size
    flops = model_flops_per_token(model, model.context)
    rows: Rows = [
        ("parameters", f"{count:,}"),
        ("active a token", f"{active:,}" if active != count else "all"),
        *((f"  {role.replace('_', '-')}", f"{size:,} ({size / count:.1%})") for role, size in by_role.items()),
        ("hidden × layers", f"{model.hidden:,} × {model.layers}"),
        ("attention", _attention(model)),
        ("feed-forward", _feed_forward(model)),
        ("vocabulary", f"{model.vocabulary:,}{', tied to the head' if model.tied_embeddings else ''}"),
        ("context", f"{model.context:,}, rope {model.rope.theta:,.0f} {_scaling(model)}".rstrip()),
        ("weights in bf16", f"{count * 2 / 2**30:,.2f} GiB"),
        ("training state", f"{count * 16 / 2**30:,.2f} GiB at 16 bytes a parameter (bf16, fp32 master and moments)"),
        ("FLOPs a token", f"{flops:.4g} forward and backward, at the full context"),
    ]
    facts = {
        "kind": "model",
        "name": model.name,
        "parameters": count,
        "active_parameters": active,
        "parameters_by_role": by_role,
        "flops_per_token": flops,
        "model": plain(model),
    }
    return facts, [model.name, *_aligned(rows, "  ")]


def _attention(model: ModelSpec) -> str:
    if model.latent is not None:
        latent = model.latent
        ranks = f"queries through {latent.query_rank}, keys and values through {latent.kv_rank}"
        return f"latent: {model.heads} heads, {ranks}"
    extras = [name for on, name in ((model.qk_norm, "qk-norm"), (model.qkv_bias, "bias on q, k, v")) if on]
    if model.window is not None:
        extras.append(f"window {model.window:,}")
    return ", ".join([f"{model.heads} heads of {model.head_dim}, {model.kv_heads} for keys and values", *extras])


def _feed_forward(model: ModelSpec) -> str:
    experts = model.experts
    if experts is None:
        return f"SwiGLU {model.feed_forward:,}"
    shared = f", {experts.shared} shared" if experts.shared else ""
    dense = f"; first {experts.dense_layers} layers dense {model.feed_forward:,}" if experts.dense_layers else ""
    return f"{experts.count} experts of {experts.feed_forward:,}, {experts.active} a token{shared}{dense}"


def _scaling(model: ModelSpec) -> str:
    return "" if model.rope.scaling == "none" else f"({model.rope.scaling} × {model.rope.factor:g})"


def _cluster(cluster: Cluster) -> tuple[dict[str, Any], list[str]]:
    device = cluster.device
    rows: Rows = [
        ("devices", f"{cluster.world:,} = {cluster.nodes:,} nodes × {cluster.gpus_per_node} {device.title}"),
        ("memory", _amount(device.memory, 2**30, "GiB each")),
        ("peak", f"{_amount(device.peak_bf16, 1e12, 'TFLOP/s bf16')}, {_amount(device.peak_fp8, 1e12, 'fp8')}, dense"),
        ("memory bandwidth", _amount(device.bandwidth, 1e12, "TB/s")),
        (
            "fast link",
            f"{cluster.inside.name}, {cluster.domain} devices, {_amount(cluster.inside.bandwidth, 1e9, 'GB/s')}",
        ),
        ("slow link", f"{cluster.across.name}, {_amount(cluster.across.bandwidth, 1e9, 'GB/s')}"),
        ("", "links: one direction, one device"),
        ("source", device.source),
    ]
    facts = {"kind": "cluster", "name": cluster.name, "world": cluster.world, "cluster": plain(cluster)}
    return facts, [cluster.name, *_aligned(rows, "  ")]


def _amount(value: float | None, unit: float, name: str) -> str:
    return f"n/a {name}" if value is None else f"{value / unit:,.4g} {name}"


def _run(run: RunSpec) -> tuple[dict[str, Any], list[str]]:
    tokens = run.tokens_per_step * run.steps
    flops = model_flops_per_token(run.model, run.data.sequence) * tokens
    source = ", ".join(f"{one.source} × {one.weight:g}" for one in run.data.mixture) or run.data.source
    batch = (
        f"{run.batch.sequences} sequences = microbatch {run.layout.microbatch} × accumulation "
        f"{run.batch.accumulation} × data ranks {run.layout.dp}; {run.tokens_per_step:,} tokens"
    )
    rows: Rows = [
        ("model", f"{run.model.name}, {parameter_count(run.model):,} parameters"),
        ("data", f"{source}, {run.data.tokenizer} tokens, sequences of {run.data.sequence:,}"),
        ("batch", batch),
        ("steps", f"{run.steps:,}: {tokens:,} tokens, {flops:.3g} FLOPs"),
        ("optimizer", f"{run.optimizer.name}, peak rate {run.optimizer.learning_rate:g}, {run.schedule.name}"),
        ("layout", f"{run.layout} on {run.layout.world} ranks"),
    ]
    facts = {"kind": "run", "name": run.name, "tokens": tokens, "flops": flops, "run": plain(run)}
    return facts, [run.name, *_aligned(rows, "  ")]


def _state(directory: Path) -> Iterator[tuple[str, Any]]:
    """Where a run stands, from its directory."""
    metrics = directory / "metrics.jsonl"
    lines = metrics.read_text("utf-8").splitlines() if metrics.is_file() else []
    if lines:
        last = json.loads(lines[-1])
        yield "step", last["step"]
        yield "loss", last["loss"]
    checkpoints = sorted(entry.name for entry in (directory / "checkpoints").glob("step-*"))
    yield "checkpoints", ", ".join(checkpoints) or "none"


def _aligned(rows: Rows, indent: str = "") -> list[str]:
    width = max((len(name) for name, _ in rows), default=0)
    return [f"{indent}{name:<{width}}  {text}" for name, text in rows]
