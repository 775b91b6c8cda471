"""Every device record is reachable by its name or as a file; a record that is not one is refused in one line."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.backends.cost.devices import DEVICES, Device, closest_device, device_for, find_device
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.triton.targets import TARGETS
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.errors import OptionError
from mirage_eg.pipeline.run import cache_lookup
from mirage_eg.pipeline.run.options import Options


@pytest.mark.parametrize("name", DEVICES)
def test_every_record_is_found_by_its_name(name: str) -> None:
    assert find_device(name) is find_device(name.lower()) is DEVICES[name]
    assert Options(gpu=name.lower()).device_record is DEVICES[name]
    assert DEVICES[name].shared_memory == TARGETS[DEVICES[name].target].shared_memory


@pytest.mark.parametrize("program", WORKLOADS)
def test_an_h200_is_predicted_to_be_no_slower_than_an_h100(program: str) -> None:
    graph = WORKLOADS[program](16)
    h100, h200 = (predict_us(graph, Options(gpu=name).device_record) for name in ("h100", "h200"))
    assert h200 < 1.05 * h100  # attention is limited by arithmetic, which is the same; the fitted times of a launch differ


def test_without_an_option_the_h100_ranks_and_with_a_target_its_first() -> None:
    assert Options().device_record is Options(target="sm_90").device_record is DEVICES["H100"]
    assert Options(target="sm_100").device_record is DEVICES["B200"]


@given(device=st.sampled_from(list(DEVICES.values())), target=st.sampled_from(list(TARGETS)))
def test_a_gpu_sets_the_target_and_refuses_another(device: Device, target: str) -> None:
    assert Options(gpu=device.name).device_record.target == device.target
    if target == device.target:
        assert Options(gpu=device.name, target=target).device_record is device
    else:
        with pytest.raises(
            OptionError, match=f"got {device.name}, whose target is {device.target}, and target {target}; try: "
        ):
            Options(gpu=device.name, target=target)


def test_unknown_devices_are_refused() -> None:
    with pytest.raises(OptionError, match=r"gpu: got 'h300', wanted one of h100, h200, .* or a FILE.json; try: "):
        Options(gpu="h300")
    with pytest.raises(OptionError, match="gpu: got 3, wanted"):
        Options(gpu=3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="gpu: got H100 of target 'sm_70', wanted"):
        Options(gpu=replace(DEVICES["H100"], target="sm_70"))
    with pytest.raises(OptionError, match=r"none\.json: cannot be read: No such file"):
        Options(gpu="none.json")


def written(folder: Path, data: object) -> str:
    path = folder / "gpu.json"
    path.write_text(json.dumps(data))
    return str(path)


def test_a_file_with_a_record_ranks(tmp_path: Path) -> None:
    mine = replace(DEVICES["H200"], name="mine", memory_bandwidth=1e12)
    assert Options(gpu=written(tmp_path, asdict(mine))).device_record == mine


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"launch_us": -1}, "launch_us: got -1, wanted a number above 0"),
        ({"launch_us": True}, "launch_us: got True, wanted a number above 0"),
        ({"step_us": float("nan")}, "step_us: got nan, wanted a number above 0"),
        ({"matrix_rate": "fast"}, "matrix_rate: got 'fast', wanted a number above 0"),
        ({"multiprocessors": 1.5}, "multiprocessors: got 1.5, wanted an int above 0"),
        ({"name": ""}, "name: got '', wanted a text"),
        ({"target": "sm_70"}, "target: got 'sm_70', wanted one of sm_90"),
        ({"rate": 1}, "got the field 'rate', wanted fields of name"),
    ],
)
def test_a_file_with_a_wrong_field_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = written(tmp_path, asdict(DEVICES["H100"]) | change)
    with pytest.raises(OptionError) as error:
        find_device(path)
    assert str(error.value).startswith(f"gpu: {path}: {message}") and "\n" not in str(error.value)


@given(missing=st.sampled_from([field.name for field in fields(Device)]))
def test_a_file_without_a_field_is_refused(tmp_path_factory: pytest.TempPathFactory, missing: str) -> None:
    data = {name: value for name, value in asdict(DEVICES["H100"]).items() if name != missing}
    with pytest.raises(OptionError, match=f"got no {missing}, wanted all of .*; try: mirage-eg bench cost"):
        find_device(written(tmp_path_factory.mktemp("gpu"), data))


def test_a_file_without_a_json_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="got list, wanted an object"):
        find_device(written(tmp_path, []))
    (tmp_path / "text.json").write_text("{")
    with pytest.raises(OptionError, match=r"text\.json: got no JSON"):
        find_device(str(tmp_path / "text.json"))


@pytest.mark.parametrize(
    ("gpu", "target", "name"),
    [
        ("NVIDIA H200", "sm_90", "H200"),
        ("NVIDIA H100 80GB HBM3", "sm_90", "H100"),
        ("NVIDIA H800", "sm_90", "H100"),
        ("NVIDIA A100-SXM4-80GB", "sm_80", "A100"),
        ("AMD Instinct MI300X", "gfx942", "MI300X"),
        ("NVIDIA L40S", "sm_89", None),
    ],
)
def test_the_gpu_here_is_the_one_that_ranks(monkeypatch: pytest.MonkeyPatch, gpu: str, target: str, name: str | None) -> None:
    assert closest_device(gpu, target) is (None if name is None else DEVICES[name])
    monkeypatch.setattr(cache_lookup, "uses_gpu", lambda options: options.device != "cpu")
    monkeypatch.setattr("mirage_eg.backends.measure.timing.gpu_name", lambda: gpu)
    monkeypatch.setattr("mirage_eg.backends.measure.timing.gpu_target", lambda: target)

    def record(options: Options) -> Device:
        return cache_lookup.for_this_machine(options)[0].device_record

    assert record(Options()) is DEVICES[name or "H100"]
    assert record(Options(device="cpu")) is DEVICES["H100"]
    assert record(Options(gpu="b200")) is DEVICES["B200"]
    other = next(other for other in TARGETS if other != target)
    assert record(Options(target=other)) is device_for(other)


def test_the_record_that_ranks_is_part_of_the_identity_of_a_run() -> None:
    graph = WORKLOADS["rmsnorm"](1)
    runs = [cache_lookup.identity("p", graph, Options(gpu=gpu)) for gpu in ("h100", "h200", None)]
    assert runs[0] != runs[1] and runs[0] == runs[2]
    json.dumps(runs)  # checkpoints and the cache write it


def test_an_elementwise_kernel_of_many_tiny_blocks_is_slow() -> None:
    """262,144 blocks of 32 elements took 150 µs longer on an H200 than the bytes take."""

    def added(*grid: int) -> float:
        graph = mi.new_kernel_graph()
        x, y = graph.new_input((2048, 4096)), graph.new_input((2048, 4096))
        block = mi.new_threadblock_graph(grid)
        block.new_output(block.add(block.new_input(x, (0, 1)), block.new_input(y, (0, 1))), (0, 1))
        [z] = graph.customized([x, y], block)
        graph.mark_output(z)
        return predict_us(graph.graph(), DEVICES["H200"])

    assert added(2048, 128) > added(128, 32) + 100
