#!/bin/bash
# Leaves a process behind, in a process group of its own, that ends later.
set -m
sleep 0.2 >/dev/null 2>&1 </dev/null &
