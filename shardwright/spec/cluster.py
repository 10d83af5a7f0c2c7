"""What a cluster is: devices, the links between them, how many stand in a node.

`Cluster.parse` takes `8xh100` (one node), `64x8xh100` (nodes × GPUs × kind), a catalogue name, or a TOML file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.spec.catalogue import hardware
from shardwright.spec.errors import BadInput, suggestion, unknown
from shardwright.spec.fields import build, require

_SHAPE = re.compile(r"(?:(\d+)x)?(\d+)x([a-z][\w.-]*)")
"""Nodes (one when left out) × GPUs × kind."""


@dataclass(frozen=True)
class Device:
    """One accelerator (or, for `cpu`, one rank's share of a processor)."""

    name: str
    """Name in the catalogue."""
    title: str = ""
    """Name for people."""
    memory: int | None = None
    """Bytes that the driver reports; None where it depends on the machine."""
    bandwidth: float | None = None
    """Bytes a second between the device and its own memory."""
    peak_bf16: float | None = None
    """Dense bf16 FLOP/s, fp32 accumulation; MFU is measured against it."""
    peak_fp8: float | None = None
    """Dense fp8 FLOP/s; None where there is no fp8."""
    inside: str = "pcie4"
    """Usual link inside a node."""
    across: str = "ethernet-25"
    """Usual link between nodes."""
    reported_as: tuple[str, ...] = ()
    """Names under which the driver reports it."""
    source: str = ""
    """Where the figures come from."""

    @classmethod
    def named(cls, name: str, field: str = "device") -> Device:
        """A device of the catalogue."""
        devices = hardware("devices")
        if name not in devices:
            raise unknown(field, name, devices, "device in the catalogue")
        return build(cls, {"name": name, **devices[name]})

    @classmethod
    def reported(cls, name: str) -> Device | None:
        """The device that a driver calls by this name, if the catalogue knows it."""
        for key, fields in hardware("devices").items():
            if name in fields.get("reported_as", ()):
                return cls.named(key)
        return None


@dataclass(frozen=True)
class Link:
    """A connection, as one GPU sees it."""

    name: str
    """Name in the catalogue."""
    bandwidth: float | None = None
    """Bytes a second, one direction, one GPU; None where it depends on the machine."""
    source: str = ""
    """What was published and what was made of it."""

    @classmethod
    def named(cls, name: str, field: str = "link") -> Link:
        """A link of the catalogue."""
        links = hardware("links")
        if name not in links:
            raise unknown(field, name, links, "link in the catalogue")
        return build(cls, {"name": name, **links[name]})


@dataclass(frozen=True)
class Cluster:
    """Equal nodes of equal devices."""

    nodes: int
    """Machines."""
    gpus_per_node: int
    """Devices in each."""
    device: Device
    """What they are."""
    inside: Link
    """What joins devices of one fast domain."""
    across: Link
    """What joins the rest."""
    domain: int
    """Devices that share the fast link: a node's, or more where a switch spans nodes (72 in an NVL72)."""
    name: str = "custom"
    """A label for people."""

    def __post_init__(self) -> None:
        require(self.nodes >= 1, "nodes", self.nodes, "must be at least 1")
        require(self.gpus_per_node >= 1, "gpus_per_node", self.gpus_per_node, "must be at least 1")
        require(
            self.domain >= 1 and (self.domain % self.gpus_per_node == 0 or self.gpus_per_node % self.domain == 0),
            "domain",
            self.domain,
            f"must be a multiple or a divisor of gpus_per_node = {self.gpus_per_node}",
        )

    @property
    def world(self) -> int:
        """Devices in all: one rank each."""
        return self.nodes * self.gpus_per_node

    @classmethod
    def parse(cls, text: str, field: str = "cluster") -> Cluster:
        """`8xh100`, `64x8xh100`, a catalogue name or a TOML file."""
        counts = _SHAPE.fullmatch(text)
        if counts:
            nodes, gpus, kind = counts.groups()
            for part in filter(None, (nodes, gpus)):
                require(int(part) >= 1, field, text, "counts must be at least 1")
            return cls.of({"nodes": int(nodes or 1), "gpus_per_node": int(gpus), "device": kind, "name": text}, field)
        if text.endswith(".toml"):
            return cls.of({"name": Path(text).stem, **_read(text, field)}, field)
        clusters = hardware("clusters")
        if text in clusters:
            return cls.of({"name": text, **clusters[text]}, field)
        raise BadInput(
            field,
            text,
            rule="no such cluster in the catalogue, nor a shape like 8xh100 or 64x8xh100, nor a .toml file",
            fix=suggestion(text, (*clusters, text.lower()) if _SHAPE.fullmatch(text.lower()) else clusters),
        )

    @classmethod
    def of(cls, fields: Mapping[str, Any], field: str = "cluster") -> Cluster:
        """From fields: `device` and links by name; links and domain follow from the device when left out."""
        known = {"name", "nodes", "gpus_per_node", "device", "inside", "across", "domain"}
        for key in fields:
            if key not in known:
                raise BadInput(f"{field}.{key}", rule="unknown key", fix=suggestion(key, known))
        if "device" not in fields:
            raise BadInput(f"{field}.device", rule="is required and missing", fix='Add device = "h100"')
        device = Device.named(str(fields["device"]), f"{field}.device")
        gpus = fields.get("gpus_per_node", 8)
        values = {
            "nodes": 1,
            "gpus_per_node": gpus,
            "domain": gpus,
            **fields,
            "device": device,
            "inside": Link.named(str(fields.get("inside", device.inside)), f"{field}.inside"),
            "across": Link.named(str(fields.get("across", device.across)), f"{field}.across"),
        }
        return build(cls, values, field)


def _read(path: str, field: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise BadInput(field, path, rule="there is no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(field, path, rule=f"cannot be read as TOML: {error}") from None
