# Every target sets up what it needs in .venv/ first.
.PHONY: setup demo test lint retrain

export OMP_NUM_THREADS ?= 2

setup:
	@./setup.sh

# runs the main job; without a GPU on the host target
demo: setup
	@.venv/bin/cudal1 demo

# TESTS="tests/unit/test_cache_store.py -k misses" narrows it; JOBS=4 uses more processes; MARK=slow runs the slow ones
test: setup
	@OMP_NUM_THREADS=1 .venv/bin/pytest -n $(or $(JOBS),2) -m "$(or $(MARK),not slow)" $(or $(TESTS),tests)

lint: setup
	@./lint.sh check

# tokenizer, corpus and stage 1 of the bundled model; a killed run goes on. `cudal1 train --steps scores` measures anew
retrain: setup
	@.venv/bin/cudal1 train --steps tokenizer --fresh
	@.venv/bin/cudal1 train --steps corpus,sft
