# Every target prepares what it needs first (scripts/setup.sh), which takes no time once that is done.

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-full test lint bench soak chaos golden nccl services-up services-down clean-cache

help: ## lists the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: ## fetches what Souk builds on (libtorch, a small model) into the cache folder
	@scripts/setup.sh

demo: setup ## the whole loop on a simulated shop, then the console; DEMO_EXIT=1 stops after the report
	@scripts/demo.sh

demo-full: setup ## the same on Kafka, Redis, PostgreSQL and Milvus, started beside it
	@scripts/demo.sh full

test: setup ## all tests, with real servers beside them; the last line is the sum
	@scripts/test.sh

lint: setup ## format, clippy, licences and advisories of dependencies, shell scripts
	@scripts/lint.sh

bench: setup ## Souk beside what others would use (scripts/bench.sh STAGE for one); several GB of Python packages
	@scripts/bench.sh

soak: setup ## what the search service must survive, in its long form: kills, made-up requests, minutes under load
	@scripts/soak.sh

nccl: setup ## compiles what several GPUs exchange tensors through; needs no GPU, 200 MB of headers
	@scripts/nccl.sh

chaos: setup ## the loop under attack: 100 kills of the trainer, everything else restarted five times, a full disk, a cut wire
	@scripts/chaos.sh

golden: setup ## compares with transformers on fresh random models; SEED=N, REGENERATE=1; needs the same packages
	@scripts/golden.sh

services-up: ## starts Kafka, Redis, PostgreSQL, Milvus and S3 on free ports; prints the variables that name them
	@scripts/services.sh up

services-down: ## stops them and deletes what they stored
	@scripts/services.sh down

clean-cache: ## deletes what setup fetched and cargo built in the cache folder
	@scripts/clean_cache.sh
