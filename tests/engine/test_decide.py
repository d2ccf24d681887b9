"""Which engine a node gets: `auto`, what goes together, and what is told in one line."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from peerinfer.config import EngineConfig
from peerinfer.engine import decide
from peerinfer.engine.decide import decide_engine
from peerinfer.engine.gpu import find_gpu
from peerinfer.engine.sglang_flags import flag_value, served_name
from peerinfer.engine.sglang_model import DEFAULT_ID, converted_model_path, sglang_model
from peerinfer.node.ports import EngineError

AUTO = EngineConfig()


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Python that has an SGLang, as far as anybody can see without starting it; and no models yet."""
    (tmp_path / "packages" / "sglang").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setenv("PEERINFER_MODELS", str(tmp_path / "models"))
    return sys.executable


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "find_gpu", lambda: "NVIDIA")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "find_gpu", lambda: None)


def test_auto_is_sglang_where_it_is_installed_and_there_is_a_gpu(sglang: str, gpu: None) -> None:
    decision = decide_engine(replace(AUTO, python=sglang, args=("--tp", "2")))
    assert decision.config == replace(
        AUTO, kind="sglang", model=DEFAULT_ID, python=sglang, args=("--tp", "2")
    )
    assert decision.why == "SGLang is installed and there is a GPU (NVIDIA)"


def test_auto_is_embedded_without_a_gpu(sglang: str, no_gpu: None) -> None:
    decision = decide_engine(replace(AUTO, python=sglang))
    assert (decision.config.kind, decision.why) == ("embedded", "this machine has no GPU")


def test_auto_is_embedded_without_sglang_and_with_a_gguf_file(gpu: None, sglang: str) -> None:
    decision = decide_engine(AUTO)
    assert decision.config.kind == "embedded"
    assert decision.why == f"SGLang is not installed in {sys.prefix}"
    decision = decide_engine(replace(AUTO, python=sglang, model="some.gguf"))
    assert (decision.config.kind, decision.why) == ("embedded", "the model is a GGUF file")


@pytest.mark.parametrize("url", ["http://127.0.0.1:30000", "http://127.0.0.1:30000/v1/"])
def test_a_server_that_is_named_is_attached(no_gpu: None, url: str) -> None:
    for kind in ("auto", "sglang"):
        config = decide_engine(replace(AUTO, kind=kind, url=url)).config
        assert (config.kind, config.url) == ("sglang", "http://127.0.0.1:30000")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (replace(AUTO, kind="vllm"), "there is no engine 'vllm'; choose auto, sglang, embedded, simulated"),
        (replace(AUTO, kind="sglang"), "pip install 'peerinfer[sglang]'"),
        (replace(AUTO, kind="sglang", python="/no/python"), "/no/python is no Python that runs"),
        (replace(AUTO, url="localhost:30000"), "'localhost:30000' is no URL of a server"),
        (replace(AUTO, url="http://h:99999"), "is no URL of a server"),
        (replace(AUTO, url="http://h", kind="embedded"), "--engine embedded needs none"),
        (replace(AUTO, url="http://h", args=("--tp", "2")), "the one at --engine-url runs"),
        (replace(AUTO, args=("--tp", "2")), "the engine is embedded (this machine has no GPU)"),
        (replace(AUTO, kind="simulated", args=("--tp", "2")), "the engine is simulated (as asked for)"),
        (replace(AUTO, model="some/model"), "--model some/model is for SGLang, but this machine has no GPU"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(no_gpu: None, config: EngineConfig, reason: str) -> None:
    with pytest.raises(EngineError) as error:
        decide_engine(config)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_sglang_gets_a_directory_or_an_id(sglang: str, tmp_path: Path) -> None:
    """The default is the converted model once it is there."""
    assert sglang_model("") == sglang_model("SmolLM2-135M-Instruct") == DEFAULT_ID
    converted = converted_model_path()
    converted.mkdir(parents=True)
    assert sglang_model("") == str(converted)
    assert sglang_model("org/name") == "org/name"
    with pytest.raises(EngineError, match=r"holds no config\.json"):
        sglang_model(str(converted))
    (converted / "config.json").touch()
    assert sglang_model(str(converted)) == str(converted)
    for named, reason in (
        (str(converted / "config.json"), "is a file"),
        ("name", "there is no directory name"),
    ):
        with pytest.raises(EngineError, match=reason):
            sglang_model(named)


def test_a_model_is_served_under_a_name_that_is_the_same_on_all_machines(tmp_path: Path) -> None:
    assert served_name((), "org/name") == "org/name"
    assert served_name((), str(tmp_path)) == tmp_path.name
    assert served_name(("--served-model-name=mine",), "org/name") == "mine"
    assert flag_value(("--a", "1", "--a=2", "--b"), "--a") == "2"
    assert flag_value(("--a", "1", "--a=2", "--b"), "--b") is None


def test_gpus_are_found_by_their_devices_unless_they_are_hidden(tmp_path: Path) -> None:
    assert find_gpu({}, root=tmp_path) is None
    (tmp_path / "dev" / "dri").mkdir(parents=True)
    (tmp_path / "dev" / "kfd").touch()
    assert find_gpu({}, root=tmp_path) is None
    (tmp_path / "dev" / "dri" / "renderD128").touch()
    assert find_gpu({}, root=tmp_path) == "AMD"
    (tmp_path / "dev" / "nvidia0").touch()
    assert find_gpu({}, root=tmp_path) == "NVIDIA"
    assert find_gpu({"CUDA_VISIBLE_DEVICES": "0"}, root=tmp_path) == "NVIDIA"
    assert find_gpu({"CUDA_VISIBLE_DEVICES": ""}, root=tmp_path) is None
