"""Shapes, names and files of clusters; units of their links."""

import pytest

from shardwright.spec import BadInput, Cluster, Device, Link
from shardwright.spec.catalogue import hardware


def test_notation():
    one = Cluster.parse("8xh100")
    assert (one.nodes, one.gpus_per_node, one.domain, one.world, one.device.name) == (1, 8, 8, 8, "h100")
    many = Cluster.parse("64x4xh200")
    assert (many.nodes, many.gpus_per_node, many.domain, many.world) == (64, 4, 4, 256)
    assert many.name == "64x4xh200"
    assert Cluster.parse("2xcpu").device.peak_bf16 is None


def test_links_are_bytes_per_direction_and_gpu():
    cluster = Cluster.parse("2x8xh100")
    assert cluster.inside.bandwidth == 450e9  # 900 GB/s are both directions
    assert cluster.across.bandwidth == 50e9  # 400 Gb/s
    expected = {
        "nvlink3": 300e9,
        "nvlink5": 900e9,
        "infiniband-hdr": 25e9,
        "infiniband-xdr": 100e9,
        "ethernet-25": 3.125e9,
        "ethernet-100": 12.5e9,
        "pcie5": 63e9,
    }
    assert {name: Link.named(name).bandwidth for name in expected} == expected


def test_every_entry_of_the_catalogue_can_be_built_and_names_its_source():
    for name in hardware("devices"):
        device = Device.named(name)
        assert device.source
        assert Link.named(device.inside).source
        assert Link.named(device.across).source
        assert all(Device.reported(reported) == device for reported in device.reported_as)
        if name != "cpu":
            assert device.memory > 20e9
            assert device.bandwidth > Link.named(device.inside).bandwidth
            assert device.peak_fp8 is None or device.peak_fp8 == pytest.approx(2 * device.peak_bf16, rel=0.02)
    for name in hardware("clusters"):
        assert Cluster.parse(name).name == name


def test_published_devices():
    assert Device.named("h100").peak_bf16 == 989.4e12  # dense: the datasheet's 1,979 count sparsity
    assert Device.named("a100").peak_fp8 is None
    assert Device.reported("NVIDIA H100 80GB HBM3").name == "h100"
    assert Device.reported("NVIDIA H100") is None


def test_catalogue_clusters():
    rack = Cluster.parse("gb200-nvl72")
    assert (rack.world, rack.domain, rack.gpus_per_node) == (72, 72, 4)
    big = Cluster.parse("llama3-16k")
    assert (big.world, big.across.name) == (16_384, "roce-400")


def test_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('nodes = 4\ngpus_per_node = 4\ndevice = "a100"\nacross = "ethernet-100"\ndomain = 2\n')
    cluster = Cluster.parse(str(file))
    assert (cluster.world, cluster.domain, cluster.name) == (16, 2, "mine")
    assert (cluster.inside.name, cluster.across.name) == ("nvlink3", "ethernet-100")
    file.write_text('device = "l40s"\n')
    assert Cluster.parse(str(file)).world == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes = 2", r'cluster.device: is required and missing. Add device = "h100"'),
        ('device = "h100"\ngpu_per_node = 4', r'cluster.gpu_per_node: unknown key. Did you mean "gpus_per_node"'),
        ('device = "h10"', r'cluster.device = "h10": no such device.*Did you mean "h100"'),
        ('device = "h100"\ninside = "nvlink"', r'cluster.inside = "nvlink": no such link.*"nvlink'),
        ('device = "h100"\nacross = "nfiniband-ndr"', r'cluster.across.*Did you mean "infiniband-ndr"'),
        ('device = "h100"\ndomain = 3', r"cluster.domain = 3: must be a multiple or a divisor of gpus_per_node = 8"),
        ('device = "h100"\ndomain = 0', r"cluster.domain = 0"),
        ('device = "h100"\nnodes = 0', r"cluster.nodes = 0: must be at least 1"),
        ('device = "h100"\ngpus_per_node = 0', r"cluster.gpus_per_node = 0: must be at least 1"),
        ('device = "h100"\nnodes = "two"', r'cluster.nodes = "two": must be a whole number, not text'),
        ("nodes = ", r"cannot be read as TOML"),
    ],
)
def test_mistakes_in_a_file(tmp_path, text, words):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=words):
        Cluster.parse(str(file))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8xh1000", r'cluster.device = "h1000": no such device in the catalogue. Did you mean "h100"'),
        ("0x8xh100", r'cluster = "0x8xh100": counts must be at least 1'),
        ("0xh100", r"counts must be at least 1"),
        ("8xH100", r'Did you mean "8xh100"\?'),
        ("dgx-h10", r'cluster = "dgx-h10": no such cluster.*nor a shape like 8xh100.*Did you mean "dgx-h100"'),
        ("64x8", r"no such cluster.*Known: dgx-a100"),
        ("2x3x8xh100", r"no such cluster"),
        ("8xh100\n", r"no such cluster"),
        ("nowhere.toml", r'cluster = "nowhere.toml": there is no such file'),
    ],
)
def test_mistakes(text, words):
    with pytest.raises(BadInput, match=words):
        Cluster.parse(text)


def test_the_field_is_named_as_the_caller_calls_it():
    with pytest.raises(BadInput, match=r'^CLUSTER.device = "x"'):
        Cluster.parse("8xx", field="CLUSTER")
