# What people type; `make` alone lists it. The scripts in .ci/ do the work, and print what they do and how long it took.

.DEFAULT_GOAL := help
.PHONY: help run test deploy-test check bench clean

# The quickstart works on a copy, so that playing with it leaves the repository as it was.
quickstart := target/quickstart
# Without Kafka: it starts sooner, and needs neither C++ nor OpenSSL.
without_kafka := --quiet --locked --no-default-features --features cli --bin evenkeel

help: ## List these targets
	@echo 'make TARGET, where TARGET is one of'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' Makefile
	@echo 'and, in the environment,'
	@sed -n 's/^#   \(EVENKEEL_[A-Z_]*=[^ ]*\)  */  \1  /p' .ci/test .ci/deploy-test

run: ## Build evenkeel and watch it keep a folder of small files true; needs no service
	@.ci/system run
	@cargo build $(filter-out --quiet,$(without_kafka))
	@test -e $(quickstart) || { mkdir -p target && cp -R examples/quickstart $(quickstart); }
	@cat $(quickstart)/welcome.txt
	@cargo run $(without_kafka) -- run --config $(quickstart)/evenkeel.yaml

test: ## Run every test, against a real Kafka, etcd and collector too, which it sets up
	@.ci/test

deploy-test: ## Prove image, compose, chart, alerts and dashboard on real engines, which it sets up; needs root
	@.ci/deploy-test

check: ## Format, lints, docs, features, licences, and the cost of the hot path
	@.ci/check

bench: ## Measure: a table on standard error, a JSON object a line on standard output
	@.ci/bench

clean: ## Remove what was built, and the quickstart's copy
	@cargo clean
	@rm -rf $(quickstart)
