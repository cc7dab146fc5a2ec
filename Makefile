# Every target runs scripts/setup.sh first, which is fast once everything is installed.

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-full test lint docs wheel dist image bench soak chaos
.PHONY: golden engines nccl services-up services-down clean-cache

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: ## download libtorch and a small model into the cache folder
	@scripts/setup.sh

demo: setup ## run the whole loop on a simulated shop, then serve the console; DEMO_EXIT=1 stops after the report
	@scripts/demo.sh

demo-full: setup ## the same with Kafka, Redis, PostgreSQL and Milvus, which it starts
	@scripts/demo.sh full

test: setup ## run all tests, with real servers; the last line is the total; SOUK_DATA=DIR adds tests on public datasets
	@scripts/test.sh

lint: setup ## check format, clippy, licences and advisories of dependencies, shell scripts, docker/, links in documents
	@scripts/lint.sh

docs: ## render README.md, docs/ and the other documents as a site, in target/site (or DIST=DIR); broken links are errors
	@scripts/docs.sh

wheel: ## build a wheel for pip, in target/dist (or DIST=DIR); the package torch brings libtorch
	@scripts/dist.sh wheel

dist: ## build the wheel, and a tarball that contains libtorch, with checksums and a bill of materials, in target/dist
	@scripts/dist.sh tarball wheel

image: ## build the container image without a registry of images, run it, and start compose's small profile; needs root
	@scripts/image.sh

bench: setup ## benchmark Souk against alternatives (scripts/bench.sh STAGE for one); downloads several GB of Python packages
	@scripts/bench.sh

soak: setup ## long reliability tests of the search service: kills, generated requests, minutes under load
	@scripts/soak.sh

nccl: setup ## compile NCCL support for several GPUs; needs no GPU; downloads 200 MB of headers
	@scripts/nccl.sh

chaos: setup ## chaos test of the loop: 100 kills of the trainer, five restarts of all servers, a full disk, a cut connection
	@scripts/chaos.sh

golden: setup ## compare with transformers on fresh random models; SEED=N, REGENERATE=1; needs the packages of bench
	@scripts/golden.sh

engines: setup ## test docs/integrations.md against real OpenSearch and Solr from Maven Central; needs Java 17; downloads 600 MB
	@scripts/engines.sh

services-up: ## start Kafka, Redis, PostgreSQL, Milvus and S3 on free ports; print the variables with their addresses
	@scripts/services.sh up

services-down: ## stop these servers and delete their data
	@scripts/services.sh down

clean-cache: ## delete downloads and cargo's intermediate files from the cache folder
	@scripts/clean_cache.sh
