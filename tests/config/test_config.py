import json
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from command import as_function
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from rollout_kit import errors
from rollout_kit.config.interpolation import _replace
from rollout_kit.config.keys import (
    AuditConfig,
    CollectConfig,
    ControlConfig,
    EntrypointConfig,
    InspectConfig,
    Parallelism,
    RunConfig,
)
from rollout_kit.config.load import Config, load, parse_keys
from rollout_kit.config.sources import Layer, Merged, _yaml_loader
from rollout_kit.errors import ConfigError
from rollout_kit.serving import registry

dump_config = as_function("ng_dump_config")
help = as_function("ng_help")
plan_vllm = as_function("ng_plan_vllm")
prepare_data = as_function("ng_prepare_data")
validate = as_function("ng_validate")
version = as_function("ng_version")

WEATHER = """
from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.serving.service import ServerConfig

class Config(ServerConfig):
    threshold: float = 0.5
    cities: list[str] = []
    strict: bool = False

class Weather(ResourcesServer):
    Config = Config

    def verify(self, task, response):
        return 1.0
"""
MODEL = """
from pydantic import Field
from rollout_kit.serving.model import Model, ModelConfig

class Config(ModelConfig):
    tiny_url: str | list[str] = ""
    tiny_api_key: str | None = None
    tiny_model: str

class Tiny(Model):
    Config = Config
"""
AGENT = """
from rollout_kit.serving.service import ServerConfig, ServerRef, Service

class Config(ServerConfig):
    resources_server: ServerRef
    model_server: ServerRef = ServerRef(type="responses_api_models", name="policy_model")
    max_steps: int | None = None

class Agent(Service):
    kind = "responses_api_agents"
    Config = Config
"""
WIRED = """
weather: {resources_servers: {weather: {}}}
asker:
  responses_api_agents:
    simple_agent:
      resources_server: {type: resources_servers, name: weather}
      model_server: {type: responses_api_models, name: policy_model}
policy_model:
  responses_api_models:
    tiny:
      tiny_url: ${policy_base_url}
      tiny_api_key: ${policy_api_key}
      tiny_model: ${policy_model_name}
"""
ENV = """
policy_base_url: http://localhost:8000/v1
policy_api_key: sk-from-env
policy_model_name: small
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """An empty working directory with an implementation of each type."""
    for folder, app in [
        ("resources_servers/weather", WEATHER),
        ("responses_api_models/tiny", MODEL),
        ("responses_api_agents/simple_agent", AGENT),
    ]:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "app.py").write_text(app)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def collect(text: str, *argv: str, env: str = "") -> Config:
    Path("run.yaml").write_text(text)
    Path("env.yaml").write_text(env)
    return load(["+config_paths=[run.yaml]", *argv], CollectConfig)


def refusal(text: str, *argv: str, env: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        collect(text, *argv, env=env)
    return str(caught.value)


def test_both_spellings_of_an_instance_mean_the_same():
    nested = collect("weather: {resources_servers: {weather: {threshold: 1}}}")
    flat = collect("weather: {threshold: 1}")
    assert nested.instances == flat.instances
    assert flat.instances["weather"].settings == {"threshold": 1}


def test_a_nemo_gym_block_runs_as_it_is():
    config = collect(
        """
        weather:
          resources_servers:
            weather: {entrypoint: app.py, grading_mode: null, domain: knowledge, verified: false,
                      description: x, value: y, threshold: 0.1}
        weather_simple_agent:
          responses_api_agents:
            simple_agent:
              entrypoint: app.py
              resources_server: {type: resources_servers, name: weather}
              model_server: {type: responses_api_models, name: policy_model}
              datasets: [{name: example, type: example, jsonl_fpath: data/example.jsonl}]
        policy_model: {responses_api_models: {tiny: {entrypoint: app.py, tiny_model: m}}}
        """
    )
    assert config.instances["weather"].settings == {"threshold": 0.1}
    assert config.instances["weather_simple_agent"].datasets[0]["name"] == "example"
    assert "weather_simple_agent" in config.instances


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("weather: {treshold: 1}", "unknown key 'treshold' (did you mean 'threshold'?) [run.yaml]"),
        (
            "w: {resources_servers: {weather: {treshold: 1}}}",
            "w (weather): unknown key 'treshold' (did you mean 'threshold'?) [run.yaml]",
        ),
        ("weather: {num_worker: 2}", "(did you mean 'num_workers'?)"),
        ("weather: {threshold: x}", "threshold: expected a number (got 'x') [run.yaml]"),
        ("weather: {threshold: .nan}", "threshold: must be a finite number"),
        ("weather: {cities: [a, {}]}", "cities.1: must be a valid string (got {}) [run.yaml]"),
        ("weather: {placement: lokal}", "placement: must be local, process, ray or an http(s) URL"),
        ("weather: {placement: local, num_workers: 2}", "more than one worker needs"),
        ("weather: {placement: 'http://h', port: 1}", "port: means nothing with a URL"),
        ("tiny: {}", "tiny (tiny): tiny_model: is required"),
        (
            "tiny: {tiny_model: 3, tiny_api_key: 7}",
            "tiny_api_key: expected text or null (got ****)",
        ),
        ("wether: {threshold: 1}", "unknown key 'wether' in run.yaml (did you mean 'weather'?)"),
        ("w: {resource_servers: {weather: {}}}", "'resource_servers' (did you mean"),
        ("w: {resources_servers: {wether: {}}}", "'wether' among the resources_servers (did you"),
        ("w: {resources_servers: {weather: {}, tiny: {}}}", "holds 2 implementations"),
        ("w: {resources_servers: {weather: {}}, responses_api_models: {}}", "two server types"),
        (
            "w: {resources_servers: {weather: {}}, host: h}",
            "'host' lies beside 'resources_servers': an instance's keys belong under its"
            " implementation, as in w.resources_servers.weather.host",
        ),
        ("w: {resources_servers: {weather: 3}}", "must be a mapping of settings, got 3"),
        ("w: {resources_servers: weather}", "must hold one implementation"),
        ("num_sample_in_parallel: 3", "(did you mean 'num_samples_in_parallel'?)"),
        ("things: [1, 2]", "unknown key 'things' in run.yaml"),
        ("limit: abc", "limit: expected an int or null (got 'abc') [run.yaml]"),
        ("head_server: {prt: 1}", "head_server.prt: unknown key (did you mean 'port'?) [run.yaml]"),
        ("responses_create_params: 3", "responses_create_params: expected a mapping"),
        ("weather: {_inherit_from: x}", "weather: inherits from x, but there is no 'x'"),
        ("weather: '${inherit_from:x}'", "weather: inherits from x, but there is no 'x'"),
        ("a: 1\na: 2", "run.yaml:2:1: found duplicate key a"),
        ("a: [1\nb: }", "run.yaml:2:2:"),
        ("- 1", "run.yaml: the top level must be a mapping"),
        ("text", "run.yaml: the top level must be a mapping"),
        ("weather: {cities: ['${']}", "not a valid ${…}"),
        ("weather: {num_gpus: 1}", "num_gpus: needs placement: ray"),
        ("weather: {placement: ray, port: 80}", "port: means nothing with placement: ray"),
        ("weather: {placement: ray, num_gpus: -1}", "num_gpus"),
    ],
)
def test_a_mistake_in_yaml_is_refused_with_key_reason_and_origin(text, expected):
    assert expected in refusal(text)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (
            "+num_sample_in_parallel=3",
            "unknown key 'num_sample_in_parallel' on the command line "
            "(did you mean 'num_samples_in_parallel'?)",
        ),
        ("+limit=abc", "+limit=abc: expected an int or null"),
        ("+limit=-1", "+limit=-1: must be greater than or equal to 0"),
        ("+pass_threshold=nan", "+pass_threshold=nan: must be a finite number"),
        ("+request_timeout_s=inf", "+request_timeout_s=inf: must be a finite number"),
        ("+resume=maybe", "+resume=maybe: expected auto or append or fresh"),
        ("+num_repeats={a: x}", "num_repeats.a: must be a valid integer"),
        ("+head_server.prt=1", "+head_server.prt=1: unknown key (did you mean 'port'?)"),
        ("+reload=true", "'reload' on the command line is a key of ng_run only"),
        (
            "+policy_name=x",
            "'policy_name' on the command line (no server has it, and no ${policy_name} in the",
        ),
        ("+note=new", "'note' on the command line has no effect: nothing uses it"),
        ("++weather.treshold=1", "'treshold' (did you mean 'threshold'?) [command line]"),
        ("~nothing", "~nothing: there is no 'nothing'"),
        ("+config_paths=[ran.yaml]", "ran.yaml: no such file, asked for by the command line"),
    ],
)
def test_a_mistake_on_the_command_line_is_refused(argument, expected):
    assert expected in refusal("weather: {threshold: 1}\nnote: old", argument)


def test_all_problems_of_all_instances_are_reported_at_once_one_line_each():
    lines = refusal("weather: {treshold: 1, cities: 3}\ntiny: {port: x}", "+limit=x").split("\n")
    assert len(lines) == 5
    assert [line.split(" ")[0] for line in lines] == [
        "weather",
        "weather",
        "tiny",
        "tiny",
        "+limit=x:",
    ]


def test_a_missing_file_lists_the_places_and_a_close_name():
    message = refusal("{}", "+config_paths=[rum.yaml]")
    assert "did you mean 'run.yaml'?" in message
    assert str(Path("rum.yaml").absolute()) in message


@pytest.mark.parametrize(
    ("argument", "key", "expected"),
    [
        ("+limit=null", "limit", None),
        ("+num_samples_in_parallel=20", "num_samples_in_parallel", Parallelism(20, 20, 20)),
        ("+num_samples_in_parallel=8-16-64", "num_samples_in_parallel", Parallelism(8, 16, 64)),
        ("+agent_name=007", "agent_name", "007"),
        ("+num_repeats={a: 2, _default: 1}", "num_repeats", {"a": 2, "_default": 1}),
        ("+input_jsonl_fpath=a=b,c (1)#é.jsonl", "input_jsonl_fpath", "a=b,c (1)#é.jsonl"),
        (
            "+output_jsonl_fpath=~/a=b (1),2#.jsonl",
            "output_jsonl_fpath",
            Path.home() / "a=b (1),2#.jsonl",
        ),
        ("+json=true", "json_output", True),
    ],
)
def test_values_take_the_type_of_their_key(argument, key, expected):
    found = getattr(collect("{}", argument).command, key)
    assert found == expected
    assert isinstance(found, type(expected))


def test_env_lies_over_the_files_and_under_the_command_line():
    text = "a: {tiny_model: '${name}'}\nname: file\nlimit: 1\nwarmup: 1\n".replace("a:", "tiny:")
    config = collect(text, "+limit=3", env="name: env\nlimit: 2\nwarmup: 2\n")
    assert config.instances["tiny"].settings["tiny_model"] == "env"
    assert (config.command.limit, config.command.warmup) == (3, 2)
    origins = {key: config.origins[key] for key in ("tiny.tiny_model", "name", "limit")}
    assert origins == {
        "tiny.tiny_model": "run.yaml",
        "name": "env.yaml",
        "limit": "command line",
    }


def test_a_files_own_config_paths_lie_below_it_and_load_once():
    Path("base.yaml").write_text("weather: {threshold: 1, strict: true}")
    Path("other.yaml").write_text("config_paths: [base.yaml]\nweather: {threshold: 2}")
    config = collect("config_paths: [other.yaml, base.yaml]\nweather: {cities: [a]}")
    assert config.instances["weather"].settings == {"threshold": 2, "strict": True, "cities": ["a"]}


def test_files_that_include_each_other_end():
    Path("a.yaml").write_text("config_paths: [run.yaml]\nlimit: 1")
    assert collect("config_paths: [a.yaml]\nwarmup: 1").command.limit == 1


def test_mappings_merge_and_lists_replace():
    Path("over.yaml").write_text("weather: {cities: [c]}")
    config = collect("weather: {threshold: 1, cities: [a, b]}", "+config_paths=[over.yaml]")
    assert config.instances["weather"].settings == {"threshold": 1, "cities": ["c"]}


def test_an_override_may_reach_into_a_list():
    config = collect("weather: {cities: [a, b]}", "++weather.cities.1=c")
    assert config.instances["weather"].settings == {"cities": ["a", "c"]}
    assert config.origins["weather.cities"] == "command line"


def test_an_empty_file_is_fine_and_scientific_notation_is_a_float():
    Path("more.yaml").write_text("weather: {threshold: 1e-5}")
    config = collect("# nothing\n", "+config_paths=[more.yaml]")
    assert config.instances["weather"].settings == {"threshold": 1e-5}


def test_create_params_of_files_are_defaults_and_those_typed_are_the_commands():
    text = "responses_create_params: {service_tier: scale, temperature: 0.1, metadata: {a: x}}"
    config = collect(
        text,
        "+responses_create_params.temperature=0.3",
        "+responses_create_params.model=gpt-4o-mini",
        "+responses_create_params.instructions=Be brief, please (a=b)",
        "+responses_create_params.metadata.b=y",
    )
    assert config.default_params == {"service_tier": "scale", "metadata": {"a": "x"}}
    assert config.command.responses_create_params == {
        "temperature": 0.3,
        "model": "gpt-4o-mini",
        "instructions": "Be brief, please (a=b)",
        "metadata": {"b": "y"},
    }


def test_the_other_commands_keys_may_stand_in_a_file():
    Path("run.yaml").write_text("ready_timeout_s: 5\nlimit: 3\nnum_samples_in_parallel: 9")
    assert load(["+config_paths=run.yaml"], RunConfig).command.ready_timeout_s == 5
    with pytest.raises(ConfigError, match="'limit' on the command line is a key of ng_collect"):
        load(["+limit=3"], RunConfig)


def test_interpolation_reaches_env_and_the_environment(monkeypatch):
    monkeypatch.setenv("TINY", "from-environment")
    config = collect(WIRED, "+policy_model_name=${oc.env:TINY}", env=ENV)
    settings = config.instances["policy_model"].settings
    assert settings["tiny_model"] == "from-environment"
    assert settings["tiny_url"] == "http://localhost:8000/v1"


@pytest.mark.parametrize(
    ("argument", "field", "expected"),
    [
        ("+policy_model_name=007", "tiny_model", "007"),
        ("+policy_base_url=http://h/?a=b,c", "tiny_url", "http://h/?a=b,c"),
        ("+policy_base_url=[http://a,http://b]", "tiny_url", ["http://a", "http://b"]),
        ("+policy_api_key=12345678", "tiny_api_key", "12345678"),
        ("++policy_model.responses_api_models.tiny.tiny_model=a=b", "tiny_model", "a=b"),
    ],
)
def test_a_value_takes_the_type_of_the_field_that_interpolates_it(argument, field, expected):
    config = collect(WIRED, argument, env=ENV)
    assert config.instances["policy_model"].settings[field] == expected


def test_a_missing_target_is_reported_once_with_who_needs_it_and_how_to_give_it():
    message = refusal(WIRED, env="policy_api_key: sk-1234\npolicy_model_nam: x")
    assert (
        "${policy_base_url} has no value, and policy_model.responses_api_models.tiny.tiny_url"
        in (message)
    )
    assert "+policy_model_name=<value> or put it in env.yaml" in message
    assert "did you mean 'policy_model_nam'?" in message


def test_all_mandatory_values_are_reported_at_once():
    text = "weather: {threshold: '???', cities: '${a}'}\na: ${b}\nb: ???\nunused: ???"
    assert refusal(text).split("\n") == [
        "weather.threshold is mandatory (???) and has no value: "
        "give +weather.threshold=<value> or put it in env.yaml",
        "${b} has no value, and weather.cities needs it: give +b=<value> or put it in env.yaml",
    ]


def test_what_nothing_uses_need_not_resolve():
    config = collect("weather: {}\nnote: ${nowhere}\nlater: ???")
    assert config.values["note"] == "${nowhere}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("weather: {cities: '${weather}'}", "weather.cities: ${weather} cannot be resolved"),
        ("weather: {cities: '${a}'}\na: ${a}", "weather.cities: ${a} cannot be resolved"),
        ("weather: {cities: '${oc.env:NO_SUCH}'}", "set the environment variable NO_SUCH"),
        ("weather: {cities: '${now:x}'}", "Unsupported interpolation type now"),
    ],
)
def test_an_interpolation_that_cannot_be_resolved_says_where_and_why(text, expected):
    assert expected in refusal(text)


def test_the_only_model_stands_in_for_policy_model():
    config = collect(WIRED.replace("policy_model:", "mine:"), env=ENV)
    reference = config.instances["asker"].settings["model_server"]
    assert reference == {"type": "responses_api_models", "name": "mine"}


def test_a_reference_that_is_only_a_default_is_wired_too():
    text = "tiny: {tiny_model: m}\nweather: {}\nsimple_agent: {resources_server: {name: weather}}"
    settings = collect(text).instances["simple_agent"].settings
    assert settings == {
        "resources_server": {"type": "resources_servers", "name": "weather"},
        "model_server": {"type": "responses_api_models", "name": "tiny"},
    }


def test_an_agent_is_added_for_one_environment_and_one_model():
    config = collect("tiny: {tiny_model: m}\nweather: {}")
    assert "weather_simple_agent" in config.instances
    assert config.instances["weather_simple_agent"].settings["resources_server"] == {
        "type": "resources_servers",
        "name": "weather",
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("name: weather", "name: wether"), "no instance 'wether' (did you mean 'weather'?)"),
        (
            ("resources_servers, name: weather", "resources_servers, name: policy_model"),
            "is one of",
        ),
        (("responses_api_models, name", "resources_servers, name"), "'policy_model' is one of the"),
    ],
)
def test_a_reference_to_nothing_or_to_another_type_is_refused(change, expected):
    assert expected in refusal(WIRED.replace(*change), env=ENV)


def test_a_server_elsewhere_need_not_be_installed_here(place):
    broken = place / "resources_servers" / "broken"
    broken.mkdir()
    (broken / "app.py").write_text("import no_such_module")
    config = collect(
        "a: {resources_servers: {theirs: {x: 1, placement: 'http://host:1'}}}\n"
        "b: {resources_servers: {theirs: {y: 2, python: /venv/bin/python}}}\n"
        "c: {resources_servers: {broken: {z: 3, python: /venv/bin/python}}}\n"
    )
    assert [one.settings for one in config.instances.values()] == [{"x": 1}, {"y": 2}, {"z": 3}]
    assert config.instances["a"].placement == "http://host:1"
    assert "cannot be imported" in refusal("c: {resources_servers: {broken: {z: 3}}}")


def test_common_keys_are_kept_apart_from_settings():
    instance = collect("weather: {host: h, port: 80, num_workers: 2}").instances["weather"]
    assert (instance.host, instance.port, instance.num_workers) == ("h", 80, 2)
    instance = collect("weather: {process: p, env: {A: 1}}").instances["weather"]
    assert (instance.process, instance.env, instance.settings) == ("p", {"A": "1"}, {})


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("{process: p, num_workers: 2}", "one process cannot be several"),
        ("{process: ../../escape}", "is a label"),
        ("{token: t0123456789}", "is for a server placed by URL"),
    ],
)
def test_common_keys_that_mean_nothing_are_refused(block: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        collect(f"weather: {block}")


def test_secrets_are_known_by_value_and_one_typed_is_warned_about():
    config = collect(WIRED, env=ENV)
    [hidden] = config.warnings
    assert config.secrets == {"sk-from-env"} and "simple_agent of this folder" in hidden
    typed = collect(WIRED, "+policy_api_key=sk-typed", env=ENV)
    assert typed.secrets == {"sk-typed"}
    assert "policy_api_key was typed on the command line" in typed.warnings[-1]


def test_the_shipped_vllm_block_is_valid_from_anywhere():
    path = "responses_api_models/vllm_model/configs/my_vllm.yaml"
    config = load([f"+config_paths=[{path}]"], InspectConfig)
    assert config.instances["vllm_model"].settings["dtype"] == "auto"


def run(main, *argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(list(argv))
    return exit_.value.code


def test_ng_validate_lists_the_instances(capsys):
    Path("run.yaml").write_text(WIRED + ENV)
    assert run(validate, "+config_paths=run.yaml") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["weather", "resources_servers", "weather", "default"]
    assert lines[-1] == "configuration is valid"


def test_ng_validate_says_what_is_wrong_without_a_traceback(capsys):
    Path("run.yaml").write_text("weather: {treshold: 1, cities: 3}")
    assert run(validate, "+config_paths=run.yaml") == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: weather (weather): ")
    assert len(captured.err.splitlines()) == 2
    assert captured.out == ""


def test_ng_dump_config_prints_yaml_with_origins_and_no_secrets(capsys):
    Path("run.yaml").write_text(WIRED)
    Path("env.yaml").write_text(ENV)
    assert run(dump_config, "+config_paths=run.yaml", "+policy_model_name=a: b # é") == 0
    out = capsys.readouterr().out
    assert "policy_base_url: http://localhost:8000/v1  # env.yaml" in out
    assert "sk-from-env" not in out
    dumped = yaml.safe_load(out)
    assert dumped["policy_model_name"] == "a: b # é"
    assert dumped["policy_model"]["responses_api_models"]["tiny"]["tiny_model"] == "a: b # é"


def test_ng_dump_config_as_json_has_values_and_origins(capsys):
    Path("run.yaml").write_text("weather: {threshold: 1}")
    assert run(dump_config, "+config_paths=run.yaml", "+json=true") == 0
    dumped = json.loads(capsys.readouterr().out)
    assert dumped["values"]["weather"] == {"threshold": 1}
    assert dumped["origins"]["weather.threshold"] == "run.yaml"


def test_ng_help_and_ng_version_read_no_file(capsys):
    Path("env.yaml").write_text("broken: [")
    assert run(help) == 0
    assert "ng_collect_rollouts" in capsys.readouterr().out
    assert run(version, "+json=true") == 0
    assert json.loads(capsys.readouterr().out)["python"]
    assert run(version, "+jsn=true") == 1
    assert "did you mean 'json'?" in capsys.readouterr().err


def test_help_names_every_key_and_imports_nothing_heavy():
    script = (
        "import sys; from rollout_kit.commands import entry;"
        "code = entry.guard('ng_collect_rollouts', ['--help=all'], lambda: 3);"
        "heavy = {'hydra', 'omegaconf', 'aiohttp', 'fastapi', 'openai'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    for name, field in CollectConfig.model_fields.items():
        assert f"  {field.alias or name}" in shown.stdout


keys = st.sampled_from(["a", "b", "c"])
leaves = st.integers() | st.none() | st.lists(st.integers(), max_size=2)
trees = st.dictionaries(keys, st.recursive(leaves, lambda inner: st.dictionaries(keys, inner)))


@given(st.lists(trees, max_size=4))
def test_every_leaf_has_the_origin_of_the_last_file_that_set_it(layers):
    merged = Merged()
    for number, tree in enumerate(layers):
        merged.add(Layer(str(number), tree))
    found = dict(_leaves(merged.tree, ()))
    assert set(merged.origins) == set(found)
    for place, value in found.items():
        tree = layers[int(merged.origins[place])]
        for key in place.split("."):
            tree = tree[key]
        assert tree == value


def _leaves(value, path):
    if isinstance(value, dict) and (value or not path):
        for key, child in value.items():
            yield from _leaves(child, (*path, key))
    else:
        yield ".".join(path), value


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("+responses_create_params.temprature=1", "did you mean 'temperature'?"),
        ("+responses_create_params.max_output_token=5", "did you mean 'max_output_tokens'?"),
        ("++askr.responses_api_agents.asker.x=1", "did you mean 'asker'?"),
    ],
)
def test_a_slip_below_the_top_level_is_refused_too(override, expected):
    with pytest.raises(ConfigError) as caught:
        collect(WIRED, override, env=ENV)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("+num_repeats=true", "+num_repeats=true: expected an int or a mapping"),
        ("+num_repeats={a: true}", "num_repeats.a: expected an int"),
        ("+limit=true", "+limit=true: expected an int or null"),
        ("+num_samples_in_parallel=true", "give a number, auto, or min-start-max"),
        ("+rollout_timeout_s=false", "expected a number"),
        ("+head_server.port=true", "expected an int"),
    ],
)
def test_a_boolean_is_no_number(argument: str, expected: str) -> None:
    assert expected in refusal("", argument)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("max_tokens=1", "max_tokens: the Responses API calls this max_output_tokens"),
        ("messages=[]", "messages: the Responses API calls this input"),
        ("temprature=1", "temprature: unknown (did you mean 'temperature'?)"),
        ("temperature=hot", "temperature: expected a number, got 'hot'"),
        ("temperature=-1", "temperature: must be at least 0, got -1"),
        ("top_p=7", "top_p: must be at most 1, got 7"),
        ("n=4", "n: each request asks for one answer: give +num_repeats instead"),
        ("background=true", "background: must not be set"),
        ("max_output_tokens=0", "max_output_tokens: must be at least 1, got 0"),
        ("max_output_tokens=true", "max_output_tokens: expected an int, got True"),
        ("tool_choice=must", "tool_choice: expected auto, none, required or a mapping, got 'must'"),
        ("tools={}", "tools: expected a list, got {}"),
        ("input=[{role: banana, content: x}]", "input[0].role: expected one of assistant"),
        ("input=[{role: tool, content: x}]", "type function_call_output"),
        ("input=[hi]", "input[0]: expected a mapping, got 'hi'"),
    ],
)
def test_create_params_that_mean_nothing_are_refused(given: str, expected: str) -> None:
    assert expected in refusal("", f"+responses_create_params.{given}")


@pytest.mark.parametrize("word", ["true", "false"])
@pytest.mark.parametrize("key", ["throughput_log", "record", "log_dir", "output_jsonl_fpath"])
def test_a_boolean_is_no_path(key: str, word: str) -> None:
    assert f"+{key}={word}: expected a path" in refusal("", f"+{key}={word}")


def test_a_key_that_a_command_needs_is_named_as_it_is_typed(capsys) -> None:
    for main, key in ((plan_vllm, "model_name"), (prepare_data, "output_dirpath")):
        with pytest.raises(SystemExit) as ended:
            main([])
        assert ended.value.code == 1
        assert f"{key}: is required, and missing: +{key}=…" in capsys.readouterr().err


def test_no_run_starts_anew_without_saying_how() -> None:
    assert "+resume=fresh" in refusal("", "+resume_from_cache=false")


def test_create_params_of_other_engines_may_be_sent() -> None:
    config = collect("", "+responses_create_params.guided_regex=ab")
    assert config.command.responses_create_params == {"guided_regex": "ab"}


def test_a_value_that_nothing_uses_is_named() -> None:
    config = collect("timeout: 900\nused: 3\nweather: {threshold: '${used}'}")
    [warning] = config.warnings
    assert "'timeout' in run.yaml has no effect" in warning
    assert "request_timeout_s or rollout_timeout_s" in warning


def test_a_key_of_the_servers_is_set_for_those_that_know_it(tmp_path: Path) -> None:
    knows = "def verify(self, task, response):\n        return self.config.get('fast_mode')"
    text = "knows: {resources_servers: {knows: {}}}\nother: {resources_servers: {other: {}}}\n"
    text += "model: {responses_api_models: {local_model: {}}}"
    for name, body in (("knows", knows), ("other", knows.replace("fast_mode", "x"))):
        folder = tmp_path / "resources_servers" / name
        folder.mkdir(parents=True)
        (folder / "app.py").write_text(
            "from rollout_kit import ResourcesServer\n\n\n"
            f"class {name.title()}(ResourcesServer):\n    {body}\n"
        )
    (tmp_path / "run.yaml").write_text(text)
    config = load(["+config_paths=[run.yaml]", "+fast_mode=True"], CollectConfig, tmp_path)
    assert config.instances["knows"].settings == {"fast_mode": True}
    assert config.instances["other"].settings == {}
    with pytest.raises(ConfigError, match=r"unknown key 'quick_check'.*no server has it"):
        load(["+config_paths=[run.yaml]", "+quick_check=True"], CollectConfig, tmp_path)


def test_the_limits_of_the_http_client_have_their_name_of_nemo_gym() -> None:
    text = "GlobalAIOHTTPAsyncClientConfig: {global_aiohttp_client_timeout_s: 900}"
    assert collect(text).command.global_aiohttp_client_timeout_s == 900
    typed = "+GlobalAIOHTTPAsyncClientConfig.global_aiohttp_connector_limit=7"
    config = collect(text, typed, "+global_aiohttp_client_timeout_s=5")
    assert config.command.global_aiohttp_connector_limit == 7
    assert config.command.global_aiohttp_client_timeout_s == 5
    expected = "unknown key 'timeout'; it has global_aiohttp_connector_limit"
    assert expected in refusal("GlobalAIOHTTPAsyncClientConfig: {timeout: 1}")


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]"
    for before, after in pairwise("abcdefghi")
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BOMB, "aliases"),
        ("a: &a\n  b: *a", "nested over 60 deep"),
        ("[" * 20_000, "nested too deep"),
        ("\n".join(f"key_{number}: 1" for number in range(300_000)), "are no configuration"),
    ],
)
def test_a_yaml_that_is_no_configuration_is_refused_at_once(text: str, expected: str) -> None:
    assert expected in refusal(text)


def test_a_pipe_is_no_configuration(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "env.yaml")
    with pytest.raises(ConfigError, match=r"env\.yaml: is no regular file"):
        load([], CollectConfig, tmp_path)
    (tmp_path / "env.yaml").unlink()
    os.mkfifo(tmp_path / "run.yaml")
    with pytest.raises(ConfigError, match=r"run\.yaml: "):
        load(["+config_paths=[run.yaml]"], CollectConfig, tmp_path)


@pytest.mark.parametrize(
    ("target", "expected"),
    [("env.yaml", "Too many levels of symbolic links"), ("gone.yaml", "No such file")],
)
def test_an_env_yaml_that_is_a_broken_link_is_not_passed_over(
    tmp_path: Path, target: str, expected: str
) -> None:
    (tmp_path / "env.yaml").symlink_to(tmp_path / target)
    with pytest.raises(ConfigError, match=rf"env\.yaml: cannot be read: {expected}"):
        load([], CollectConfig, tmp_path)


@pytest.mark.parametrize("key", ["output_jsonl_fpath", "record", "throughput_log"])
def test_an_empty_path_is_not_the_working_directory(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"\+{key}=: is empty; give a path"):
        load([f"+{key}="], CollectConfig, tmp_path)


def test_a_server_of_the_folder_that_hides_a_shipped_one_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers/mcqa"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(
        "from rollout_kit import ResourcesServer\n\n\n"
        "class Own(ResourcesServer):\n    def verify(self, task, response):\n        return 1\n"
    )
    (tmp_path / "run.yaml").write_text("mcqa: {resources_servers: {mcqa: {}}}")
    config = load(["+config_paths=[run.yaml]"], CollectConfig, tmp_path)
    [warning] = config.warnings
    assert "resources_servers/mcqa of this folder is used" in warning


def test_a_copy_of_a_shipped_server_is_not_named(tmp_path: Path) -> None:
    shipped = Path(__file__).resolve().parents[2] / "resources_servers/mcqa"
    shutil.copytree(shipped, tmp_path / "resources_servers/mcqa")
    (tmp_path / "run.yaml").write_text("mcqa: {resources_servers: {mcqa: {}}}")
    assert load(["+config_paths=[run.yaml]"], CollectConfig, tmp_path).warnings == ()


def test_a_misplaced_key_of_the_command_line_is_told_its_place(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("w: {resources_servers: {mcqa: {}}}")
    expected = r"as in w\.resources_servers\.mcqa\.grading_mode \[command line\]"
    with pytest.raises(ConfigError, match=expected):
        load(["+config_paths=[run.yaml]", "+w.grading_mode=x"], CollectConfig, tmp_path)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("+w.mcqa.grading_mode=x", "'mcqa' lies beside 'resources_servers'"),
        ("+w.resources_servers.grading_mode=x", "'grading_mode' lies beside 'mcqa'"),
    ],
)
def test_a_key_that_skips_a_part_of_its_place_is_told_the_whole(
    tmp_path: Path, word: str, expected: str
) -> None:
    (tmp_path / "run.yaml").write_text("w: {resources_servers: {mcqa: {}}}")
    place = "as in w.resources_servers.mcqa.grading_mode [command line]"
    with pytest.raises(ConfigError, match=f"{expected}.*{re.escape(place)}"):
        load(["+config_paths=[run.yaml]", word], CollectConfig, tmp_path)


def test_a_value_in_place_of_a_server_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("w: {resources_servers: {mcqa: {}}}")
    expected = "'w' is a server, and no key: set one of its keys, as in +w.resources_servers.mcqa."
    with pytest.raises(ConfigError, match=re.escape(expected)):
        load(["+config_paths=[run.yaml]", "+w=x"], CollectConfig, tmp_path)


def test_a_folder_that_only_holds_configurations_hides_no_shipped_server(tmp_path: Path) -> None:
    folder = tmp_path / "responses_api_models/vllm_model/configs"
    folder.mkdir(parents=True)
    (folder / "my_vllm.yaml").write_text("vllm_model: {model_name: my-model}")
    path = "responses_api_models/vllm_model/configs/my_vllm.yaml"
    assert not load([f"+config_paths=[{path}]"], CollectConfig, tmp_path).warnings


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("my_env", "+entrypoint=resources_servers/my_env"),
        ("resources_servers/my_env/", "+entrypoint=resources_servers/my_env"),
    ],
)
def test_a_bare_name_of_a_server_is_told_its_key(word: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected) + "$"):
        parse_keys([word], EntrypointConfig)
    with pytest.raises(ConfigError, match=re.escape(expected) + "$"):
        load([word], AuditConfig, tmp_path)


def test_a_bare_name_of_a_file_is_told_its_key() -> None:
    assert "name the file as the input: +input_jsonl_fpath=x.jsonl" in refusal("", "x.jsonl")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--input", "x.jsonl"], "+input_jsonl_fpath=x.jsonl"),
        (["--output=y.jsonl"], "+output_jsonl_fpath=y.jsonl"),
        (["--agent", "a"], "+agent_name=a"),
    ],
)
def test_a_flag_of_other_tools_is_told_its_key(flags: list[str], expected: str) -> None:
    assert expected in refusal("", *flags)


@pytest.mark.parametrize(
    ("has_pip", "uv", "expected"),
    [
        (True, None, " -m pip install 'x[y]'"),
        (False, "/bin/uv", "uv pip install --python "),
        (False, None, " -m ensurepip && "),
    ],
)
def test_a_remedy_works_in_the_environment_that_needs_it(
    has_pip: bool, uv: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda name: object() if has_pip else None)
    monkeypatch.setattr(errors.shutil, "which", lambda name: uv)
    assert expected in (said := errors.how_to_install("x[y]")) and "'x[y]'" in said


OPENAI = "policy_model: {responses_api_models: {openai_model: {%s, openai_model: m}}}"
URL = "openai_base_url: 'http://h/v1'"


@pytest.mark.parametrize(
    "keys",
    [
        f"{URL}, openai_default_headers: 'x-api-key: sk-planted-secret'",
        f"{URL}, openai_default_headers: ['x-api-key: sk-planted-secret']",
        f"{URL}, openai_default_headers: {{x-api-key: {{a: sk-planted-secret}}}}",
        f"{URL}, openai_default_headers: {{x-api-key: 'sk-planted-secret\u2028x'}}",
        f"{URL}, openai_api_key: [sk-planted-secret]",
        f"{URL}, max_tries: '${{my_pw}}'",
        f"{URL}, max_tries: '${{oc.env:SERVICE_TOKEN}}'",
        "openai_base_url: 'ftp://u:sk-planted-secret@h/v1'",
        "openai_base_url: '${my_pw}'",
    ],
)
def test_an_error_shows_no_secret(keys, monkeypatch):
    monkeypatch.setenv("SERVICE_TOKEN", "sk-planted-secret")
    said = refusal(OPENAI % keys, env="my_pw: sk-planted-secret")
    assert "openai_model" in said and "planted" not in said


def test_an_environment_variable_that_names_a_secret_is_one_under_any_key(monkeypatch):
    monkeypatch.setenv("SERVICE_TOKEN", "sk-planted-secret")
    monkeypatch.setenv("CITY", "Paris-on-Seine")
    names = "${oc.env:SERVICE_TOKEN}', '${oc.env:CITY}"
    config = collect(f"weather: {{resources_servers: {{weather: {{cities: ['{names}']}}}}}}")
    assert config.secrets == {"sk-planted-secret"}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("localhost:8000/v1", "must start with http:// or https:// and name a host"),
        ("http:///v1", "must start with http:// or https:// and name a host"),
        ("http://h:99999/v1", "is not a URL: Port out of range 0-65535"),
        ("http://h/v1#a", "must not contain blanks or '#'"),
        ("http://h/v 1", "must not contain blanks or '#'"),
        ("http://h/v1/responses", "must not end in /responses, which is added to each request"),
        ("http://h/v1/chat/completions/?code=1", "must not end in /chat/completions, which"),
    ],
)
def test_a_url_that_cannot_work_is_refused_at_the_start(url, expected):
    assert f"openai_base_url: {expected}" in refusal(OPENAI % f"openai_base_url: '{url}'")


def test_blanks_around_urls_and_keys_are_no_part_of_them():
    config = collect(OPENAI % "openai_base_url: 'http://h/v1 ', openai_api_key: \"sk-key-1\\n\"")
    instance = config.instances["policy_model"]
    server = registry.load(instance.type, instance.implementation)
    settings = server.Config.of(instance.settings, instance.secrets)
    assert settings.openai_base_url == "http://h/v1"
    assert settings.openai_api_key == "sk-key-1"


@pytest.mark.parametrize("value", ["{deep: [x-y-z]}", "[x-y-z]", "x-y-z"])
def test_what_env_yaml_holds_for_other_files_is_no_mistake(value):
    env = f"values: {value}"
    assert collect(WIRED, env=f"{ENV}{env}").secrets == {"sk-from-env", "x-y-z"}
    Path("env.yaml").write_text(env)
    assert not load([], ControlConfig).warnings
    Path("env.yaml").write_text("head_sever: {port: 5}")
    with pytest.raises(ConfigError, match="did you mean 'head_server'"):
        load([], ControlConfig)


ENTRIES = ("${a}", "${b}", "${c}", "${a.b}", "x${a}", "${ a }", "\\${a}", "${", "???", "", "7", 7)


@given(
    st.dictionaries(
        keys,
        st.recursive(
            st.sampled_from(ENTRIES),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        ),
    )
)
@example({"a": "${b}", "b": "${c}", "c": 1})
@example({"a": "${a}"})
def test_what_is_replaced_without_omegaconf_is_what_it_makes_of_it(tree):
    try:
        ours = _replace(tree, tree, 0)
    except (LookupError, RecursionError):
        return
    assert ours == OmegaConf.to_container(OmegaConf.create(tree), resolve=True)


def test_most_configurations_need_no_omegaconf():
    tree = {"name": "m", "model": {"name": "${name}", "urls": ["${url}", "b"]}, "url": "${at}"}
    assert _replace(tree | {"at": "x"}, tree | {"at": "x"}, 0) == {
        "name": "m",
        "model": {"name": "m", "urls": ["x", "b"]},
        "url": "x",
        "at": "x",
    }


@given(st.text("0123456789_+-.:eExinfnaNTtrueyYesOoFf~ull{}[],\n ", max_size=12))
@example("1e-5")
@example("2024-01-01")
@example("a: 1\na: 2")
@example("{a: {b: 1, b: 2}}")
@example("1:30.5")
def test_yaml_is_what_omegaconf_reads(text):
    assert read_yaml(text, _yaml_loader()) == read_yaml(text, get_yaml_loader())


def read_yaml(text, loader):
    try:
        return repr(yaml.load(text, loader))
    except (yaml.YAMLError, ValueError) as error:
        return str(error)


def test_a_key_of_the_version_before_is_ignored_with_what_to_write() -> None:
    config = load(["+rows=shards"], CollectConfig)
    assert any("'rows' is ignored" in each and "+shard=1/2" in each for each in config.warnings)
