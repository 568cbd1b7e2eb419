import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollout_kit.errors import ConfigError
from rollout_kit.serving import registry

WEATHER = """
from rollout_kit.serving.resources_server import ResourcesServer
from .engine import ANSWER

class Weather(ResourcesServer):
    answer = ANSWER
"""


def write(root: Path, name: str, app: str, type_: str = "resources_servers", **files: str) -> Path:
    folder = root / type_ / name
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(app)
    for module, text in files.items():
        (folder / f"{module}.py").write_text(text)
    return folder


def test_a_server_is_imported_with_its_siblings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path, "weather", WEATHER, engine="ANSWER = 1")
    assert registry.find("resources_servers", "weather") == folder
    assert registry.load("resources_servers", "weather").answer == 1


def test_the_same_folder_gives_the_same_class(tmp_path):
    write(tmp_path, "weather", WEATHER, engine="ANSWER = 2")
    first = registry.load("resources_servers", "weather", tmp_path)
    assert registry.load("resources_servers", "weather", tmp_path) is first
    assert pickle.loads(pickle.dumps(first)) is first


def test_a_thread_waits_for_the_import_that_another_has_begun(tmp_path, monkeypatch):
    slow = "from tests_pace import began, goes_on\nbegan.set()\ngoes_on.wait(60)\n" + WEATHER
    write(tmp_path, "slow", slow, engine="ANSWER = 1")
    began, goes_on = threading.Event(), threading.Event()
    pace = SimpleNamespace(began=began, goes_on=goes_on)
    monkeypatch.setitem(sys.modules, "tests_pace", pace)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(registry.load, "resources_servers", "slow", tmp_path)
        assert began.wait(60)
        second = threads.submit(registry.load, "resources_servers", "slow", tmp_path)
        wait([second], timeout=0.2)  # long enough for a thread that does not wait
        goes_on.set()
        assert second.result() is first.result()


def test_one_name_in_two_folders_gives_two_classes(tmp_path):
    for number in (3, 4):
        write(tmp_path / str(number), "weather", WEATHER, engine=f"ANSWER = {number}")
    loaded = [registry.load("resources_servers", "weather", tmp_path / n) for n in ("3", "4", "3")]
    assert [one.answer for one in loaded] == [3, 4, 3]
    assert loaded[0] is loaded[2]


def test_a_base_in_the_same_module_is_not_the_server(tmp_path):
    app = WEATHER + "\nclass Better(Weather):\n    pass\n"
    write(tmp_path, "layered", app, engine="ANSWER = 1")
    assert registry.load("resources_servers", "layered", tmp_path).__name__ == "Better"


def test_a_server_may_live_in_a_sibling_module(tmp_path):
    write(tmp_path, "split", "from .server import Weather", server=WEATHER, engine="ANSWER = 1")
    assert registry.load("resources_servers", "split", tmp_path).__name__ == "Weather"


REFUSED = {
    "two": (WEATHER + "\nclass Other(ResourcesServer):\n    pass\n", "Other, Weather"),
    "none": ("x = 1", "no server for resources_servers"),
    "typo": ("import rollout_kti", "No module named 'rollout_kti'"),
    "broken": ("class A(:\n", "SyntaxError: invalid syntax (line 1)"),
    "model": ("from rollout_kit.serving.model import Model\nclass M(Model):\n    pass", "only M"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_app_without_one_server_is_refused_by_file_and_reason(tmp_path, name):
    app, reason = REFUSED[name]
    folder = write(tmp_path, name, app, engine="ANSWER = 1")
    with pytest.raises(ConfigError) as caught:
        registry.load("resources_servers", name, tmp_path)
    assert reason in str(caught.value)
    assert str(folder / "app.py") in str(caught.value)


def test_an_import_error_keeps_its_cause_and_can_be_repaired(tmp_path):
    folder = write(tmp_path, "repaired", "import rollout_kti")
    with pytest.raises(ConfigError) as caught:
        registry.load("resources_servers", "repaired", tmp_path)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    (folder / "app.py").write_text(WEATHER)
    (folder / "engine.py").write_text("ANSWER = 9  # a size of its own")
    assert registry.load("resources_servers", "repaired", tmp_path).answer == 9


def test_an_unknown_implementation_is_answered_with_a_close_one(tmp_path):
    write(tmp_path, "weather", WEATHER, engine="ANSWER = 1")
    with pytest.raises(ConfigError, match="did you mean 'weather'") as caught:
        registry.load("resources_servers", "wether", tmp_path)
    assert str(tmp_path / "resources_servers") in str(caught.value)


@pytest.mark.parametrize("name", ["", "..", "../weather", "/etc"])
def test_a_name_cannot_leave_its_folder(tmp_path, name):
    write(tmp_path, "weather", WEATHER, engine="ANSWER = 1")
    assert registry.find("resources_servers", name, tmp_path) is None


def test_folders_without_an_app_are_no_implementations(tmp_path):
    write(tmp_path, "weather", WEATHER, engine="ANSWER = 1")
    (tmp_path / "resources_servers" / "__pycache__").mkdir()
    found = registry.implementations("resources_servers", tmp_path)
    assert "weather" in found
    assert "__pycache__" not in found


def test_relative_paths_are_looked_up_here_first_then_where_it_is_installed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkout = Path(registry.__file__).parents[2]
    assert registry.roots() == [tmp_path.resolve(), checkout]
    block = "responses_api_models/vllm_model/configs/my_vllm.yaml"
    assert registry.resolve_path(block) == checkout / block
    (tmp_path / block).parent.mkdir(parents=True)
    (tmp_path / block).touch()
    assert registry.resolve_path(block) == tmp_path.resolve() / block
    assert registry.resolve_path("no/such.yaml") is None


def test_the_checkout_is_one_root_when_it_is_the_working_directory():
    checkout = Path(registry.__file__).parents[2]
    assert registry.roots(checkout) == [checkout]
